"""Objects of C as Python holds them."""
