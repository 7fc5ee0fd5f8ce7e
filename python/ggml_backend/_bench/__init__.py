"""What ``python -m ggml_backend bench`` measures: operators, products and models, each beside the machine's limit in
the same round."""

from __future__ import annotations

from .measure import Case, Limits, Result, measure
from .models import model_cases
from .ops import op_cases
from .products import explain_products, product_cases, product_types

__all__ = [
    "Case",
    "Limits",
    "Result",
    "explain_products",
    "measure",
    "model_cases",
    "op_cases",
    "product_cases",
    "product_types",
]
