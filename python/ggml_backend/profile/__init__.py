"""Profiles: the time of each operator, as a share of the machine's limits. Pictures of plans and
traces."""

from __future__ import annotations

from ._limits import MachineLimits
from .profile import Profile, ProfileChange, ProfileComparison, ProfileRow, ProfileStep, ProfileTable

__all__ = [
    "MachineLimits", "Profile", "ProfileChange", "ProfileComparison", "ProfileRow", "ProfileStep", "ProfileTable",
]  # fmt: skip
