"""Optimizers: one training step is one graph, on the devices that hold the weights::

    optimizer = gb.optim.AdamW(loss, [w, b], lr=1e-3)
    sched.allocate(optimizer.graph)
    for inputs, targets in batches:
        x.set(inputs), y.set(targets)
        print(optimizer.step(sched))

``docs/howto/train.md`` explains the rest.
"""

from __future__ import annotations

from ._optimizer import SGD, AdamW, Optimizer

__all__ = ["SGD", "AdamW", "Optimizer"]
