"""Elements and shapes on their way between NumPy and C."""
