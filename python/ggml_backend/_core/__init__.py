"""Objects of C as Python holds them, and the functions of Python that C calls."""
