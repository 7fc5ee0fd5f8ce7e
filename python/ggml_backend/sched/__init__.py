"""The scheduler: plans, costs, statistics and traces of graphs on several backends, and allocators without it."""

from __future__ import annotations

from ._costs import CopyCost, Costs, DeviceCosts, OpCost, Prediction
from .alloc import GraphAllocator, TensorAllocator
from .pending import Pending
from .plan import ArenaPlan, CopyInfo, Plan, PlanBlock, Split
from .scheduler import Memory, Scheduler, Split
from .stats import SchedulerStats, SplitTime, Traffic
from .trace import Trace, TraceEvent

__all__ = [
    "ArenaPlan", "CopyCost", "CopyInfo", "Costs", "DeviceCosts", "GraphAllocator", "Memory", "OpCost", "Pending",
    "Plan", "PlanBlock", "Prediction", "Scheduler", "SchedulerStats", "Split", "Split", "SplitTime",
    "TensorAllocator", "Trace", "TraceEvent", "Traffic",
]  # fmt: skip
