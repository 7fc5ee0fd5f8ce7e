"""What :func:`ggml_backend.testing.check_device` does: operators, memory and graphs of a device beside the CPU's."""
