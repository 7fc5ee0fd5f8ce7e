"""An optimizer that has made some steps."""

from __future__ import annotations

import pytest

import ggml_backend as gb
from trained_net import Net, started


@pytest.fixture
def trained(cpu: gb.Backend) -> tuple[Net, gb.Scheduler, gb.optim.AdamW]:
    return started(cpu, 3)
