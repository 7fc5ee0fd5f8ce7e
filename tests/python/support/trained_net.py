"""A small network whose weights an optimizer trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_backend as gb

Array = npt.NDArray[Any]
ROWS, WIDE, HIDDEN, CLASSES = 12, 6, 10, 4


class Net:
    """``cross_entropy(relu(x @ w1.T) @ w2.T + b)`` with its weights in buffers of the given backends."""

    def __init__(self, *places: gb.Backend, usage: Any = "any", seed: int = 3, rows: int = ROWS) -> None:
        rng = np.random.default_rng(seed)
        self.values = [
            rng.standard_normal(shape).astype(np.float32) for shape in ((HIDDEN, WIDE), (CLASSES, HIDDEN), (CLASSES,))
        ]
        self.weights = []
        for i, (value, name) in enumerate(zip(self.values, ("w1", "w2", "b"), strict=True)):
            context = gb.Context()
            self.weights.append(context.tensor(value.shape, name=name))
            context.allocate(places[i % len(places)], usage)
            self.weights[-1].set(value)
        self.ctx = gb.Context()
        self.x = self.ctx.tensor((rows, WIDE), name="x")
        self.targets = self.ctx.tensor((rows, CLASSES), name="targets")
        w1, w2, b = self.weights
        with self.ctx.as_default():
            self.logits = gb.ops.relu(self.x @ w1.T) @ w2.T + b
            self.loss = gb.ops.cross_entropy_loss(self.logits, self.targets, 0.0).named("loss")

    def feed(self, batch: tuple[Array, Array]) -> None:
        self.x.set(batch[0])
        self.targets.set(batch[1])

    def copies(self) -> list[Array]:
        return [w.numpy(copy=True) for w in self.weights]


def batches(n: int, rows: int = ROWS, seed: int = 5) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(seed)
    eye = np.eye(CLASSES, dtype=np.float32)
    return [
        (rng.standard_normal((rows, WIDE)).astype(np.float32), eye[rng.integers(0, CLASSES, rows)]) for _ in range(n)
    ]


def started(cpu: gb.Backend, n: int, seed: int = 3) -> tuple[Net, gb.Scheduler, gb.optim.AdamW]:
    """After n steps of AdamW."""
    net, sched = Net(cpu, seed=seed), gb.Scheduler(cpu)
    optimizer = gb.optim.AdamW(net.loss, net.weights, 0.05, max_norm=0.5)
    sched.allocate(optimizer.graph)
    for batch in batches(n):
        net.feed(batch)
        optimizer.step(sched)
    return net, sched, optimizer
