"""Training: steps, validation, samples, and checkpoints.

The seed and the number of a step determine its batch. So a run that was stopped and continued ends with the same
weights as a run without a stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import ggml_backend as gb

from .model import Config, initial, logits, loss_of
from .text import Text, Tokens, batch

VALIDATION_BATCHES = 4
WARM_UP = 50  # steps in which the learning rate rises


@dataclass
class Curves:
    """The losses so far, as pairs (step, loss)."""

    training: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)

    def metadata(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        curves = {"training": self.training, "validation": self.validation}
        return {f"train.{name}": np.array(pairs, np.float64).reshape(-1) for name, pairs in curves.items()}

    @classmethod
    def of(cls, file: gb.gguf.GGUFFile) -> Curves:
        def pairs(name: str) -> list[tuple[int, float]]:
            flat = np.asarray(file.metadata[f"train.{name}"], np.float64)
            return [(int(step), float(loss)) for step, loss in flat.reshape(-1, 2)]

        return cls(pairs("training"), pairs("validation"))


def learning_rate(step: int, n_steps: int, highest: float) -> float:
    """Rises to the highest rate, then falls to a tenth of it along a cosine."""
    if step < WARM_UP:
        return highest * (step + 1) / WARM_UP
    done = min(1.0, (step - WARM_UP) / max(1, n_steps - WARM_UP))
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


class Trainer:
    """A network with its optimizer."""

    def __init__(
        self, config: Config, text: Text, backends: Sequence[gb.Backend], n_sequences: int, seed: int = 1
    ) -> None:
        self.config, self.text, self.n_sequences, self.seed = config, text, n_sequences, seed
        self.curves = Curves()
        self.scheduler = gb.Scheduler(backends)
        memory = gb.Context(usage="weights")
        self.weights = {name: memory.tensor(shape, name=name) for name, shape in config.shapes().items()}
        memory.allocate(backends[0])
        for name, value in initial(config, seed).items():
            self.weights[name].set(value)

        ctx = gb.Context()
        self.tokens = ctx.tensor((n_sequences, config.context), gb.int32, name="tokens")
        self.targets = ctx.tensor((n_sequences, config.context), gb.int32, name="targets")
        with ctx.as_default():
            self.loss = loss_of(config, logits(config, self.weights, self.tokens), self.targets)
        self.optimizer = gb.optim.AdamW(
            self.loss, [*self.weights.values()], betas=(0.9, 0.99), weight_decay=0.1, max_norm=1.0
        )
        self.scheduler.allocate(self.optimizer.graph)
        self.validation = ctx.graph(self.loss)

        writing = gb.Context()
        self.window = writing.tensor((1, config.context), gb.int32, name="window")
        with writing.as_default():
            self.next = logits(config, self.weights, self.window)
        self.writing = writing.graph(self.next)

    @property
    def step_number(self) -> int:
        return self.optimizer.n_steps

    def _feed(self, tokens: Tokens, *seed: int) -> None:
        inputs, following = batch(tokens, self.n_sequences, self.config.context, (self.seed, *seed))
        self.tokens.set(inputs)
        self.targets.set(following)

    def step(self, rate: float) -> float:
        """Runs one step with the next batch. Returns its loss."""
        self._feed(self.text.training, self.step_number)
        self.optimizer.lr = rate
        loss = self.optimizer.step(self.scheduler)
        self.curves.training.append((self.step_number, loss))
        return loss

    def validate(self) -> float:
        """The mean loss of a few batches of validation text, the same batches each time."""
        losses = []
        for i in range(VALIDATION_BATCHES):
            self._feed(self.text.validation, 0, i)
            self.scheduler.compute(self.validation)
            losses.append(self.loss.item())
        mean = float(np.mean(losses))
        self.curves.validation.append((self.step_number, mean))
        return mean

    def write(self, n: int, prompt: str, temperature: float = 0.8) -> str:
        """Text of ``n`` characters that follow the prompt."""
        rng = np.random.default_rng((self.seed, self.step_number))
        found = [*self.text.encode(prompt)] or [0]
        self.scheduler.allocate(self.writing)
        for _ in range(n):
            seen = found[-self.config.context :]
            window = np.zeros((1, self.config.context), np.int32)  # characters behind the last one have no effect
            window[0, : len(seen)] = seen
            self.window.set(window)
            self.scheduler.compute(self.writing)
            scores = self.next.numpy()[len(seen) - 1] / np.float32(temperature)
            chances = np.exp((scores - scores.max()).astype(np.float64))
            found.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return self.text.decode(np.array(found, np.int32))

    def save(self, path: Path) -> None:
        sizes = {f"train.{name}": value for name, value in asdict(self.config).items()}
        others = {"train.characters": self.text.characters, "train.seed": self.seed, "train.rows": self.n_sequences}
        self.optimizer.save(path, {**sizes, **others, **self.curves.metadata()})

    @classmethod
    def load(cls, path: Path, text: str, backends: Sequence[gb.Backend]) -> Trainer:
        """The trainer that :meth:`save` wrote."""
        with gb.gguf.open(path) as file:
            try:
                sizes = [file.metadata[f"train.{name}"] for name in Config.__dataclass_fields__]
                characters, seed, rows = (file.metadata[f"train.{name}"] for name in ("characters", "seed", "rows"))
                curves = Curves.of(file)
            except KeyError as error:
                raise ValueError(f"{path} is not a state of this program: {error.args[0]}") from None
        config = Config(*sizes)
        trainer = cls(config, Text.of(text, config.context, characters), backends, rows, seed)
        trainer.optimizer.load(path)
        trainer.curves = curves
        return trainer
