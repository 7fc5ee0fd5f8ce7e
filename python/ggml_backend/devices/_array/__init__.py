"""``ARRAY``, a device that computes with NumPy, PyTorch or CuPy."""
