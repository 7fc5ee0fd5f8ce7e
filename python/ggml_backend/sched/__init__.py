"""The scheduler: plans, costs, statistics and traces of graphs on several backends, and allocators without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.errors.messages import no_name
from .._base.renamed import load
from ..tensor._callbacks import set_abort_callback
from .pending import Pending
from .plan import ArenaPlan, CopyInfo, Plan, PlanBlock, Split
from .scheduler import Memory, Scheduler

if TYPE_CHECKING:
    from ._calibrate import calibrate
    from ._costs import CopyCost, Costs, DeviceCosts, OpCost, Prediction
    from ._recompute import Recomputation
    from .alloc import GraphAllocator, TensorAllocator
    from .stats import SchedulerStats, SplitTime, Traffic
    from .trace import Trace, TraceEvent
else:
    _LATER = {
        "_calibrate": ("calibrate",),
        "_costs": ("CopyCost", "Costs", "DeviceCosts", "OpCost", "Prediction"),
        "_recompute": ("Recomputation",),
        "alloc": ("GraphAllocator", "TensorAllocator"),
        "stats": ("SchedulerStats", "SplitTime", "Traffic"),
        "trace": ("Trace", "TraceEvent"),
    }

    def __getattr__(name):
        found = load(__name__, _LATER, name)
        return no_name(__name__, name, __all__) if found is None else found


__all__ = [
    "ArenaPlan", "CopyCost", "CopyInfo", "Costs", "DeviceCosts", "GraphAllocator", "Memory", "OpCost", "Pending",
    "Plan", "PlanBlock", "Prediction", "Recomputation", "Scheduler", "SchedulerStats", "Split", "SplitTime",
    "TensorAllocator", "Trace", "TraceEvent", "Traffic", "calibrate", "set_abort_callback",
]  # fmt: skip
