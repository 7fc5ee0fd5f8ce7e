"""The scheduler: plans, costs, statistics and traces of graphs on several backends, and allocators without it."""

from __future__ import annotations

from .alloc import GraphAllocator, TensorAllocator
from .pending import Pending
from .plan import ArenaPlan, CopyInfo, Plan, PlanBlock, Split
from .scheduler import Memory, Scheduler

__all__ = [
    "ArenaPlan", "CopyInfo", "GraphAllocator", "Memory", "Pending", "Plan", "PlanBlock", "Scheduler", "Split",
    "TensorAllocator",
]  # fmt: skip
