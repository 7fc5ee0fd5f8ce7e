"""The training example: its network beside NumPy and PyTorch, its files, its command line."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ggml_backend as gb
from source_tree import in_tree

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))

from examples.train import picture  # noqa: E402
from examples.train.model import Config, initial  # noqa: E402
from examples.train.text import Text, batch  # noqa: E402
from examples.train.trainer import Curves, Trainer, learning_rate  # noqa: E402

Array = npt.NDArray[Any]
SMALL = Config(vocabulary=0, width=32, layers=2, heads=2, context=16)
WORDS = "".join(
    f"the {a} {b} sees a {c}. " for a in ("red", "big", "old") for b in ("cat", "dog", "cow") for c in "xyz"
)


def trainer_of(cpu: gb.Backend) -> Trainer:
    known = Text.of(WORDS * 4, SMALL.context)
    config = Config(len(known.characters), SMALL.width, SMALL.layers, SMALL.heads, SMALL.context)
    return Trainer(config, known, [cpu], 4, 1)


# ----------------------------------------------------------------------------------------------- the network by NumPy


def loss_by_hand(config: Config, w: dict[str, Array], tokens: Array, targets: Array) -> float:
    """The loss of the network in the dtype of the weights, from the formulas of the papers."""

    def norm(x: Array, gain: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain

    def soft_max(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    n, t = tokens.shape
    x = w["characters"][tokens] + w["positions"]
    future = np.triu(np.ones((t, t), bool), 1)
    for i in range(config.layers):
        b = f"block{i}."
        y = norm(x, w[b + "norm1"])
        q, k, v = (
            (y @ w[b + part].T).reshape(n, t, config.heads, -1).transpose(0, 2, 1, 3) for part in ("q", "k", "v")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        mixed = soft_max(np.where(future, -np.inf, scores)) @ v
        x = x + mixed.transpose(0, 2, 1, 3).reshape(n, t, -1) @ w[b + "out"].T
        y = norm(x, w[b + "norm2"])
        gate = y @ w[b + "gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[b + "up"].T)) @ w[b + "down"].T
    p = soft_max(norm(x, w["norm"]) @ w["characters"].T)
    return float(-np.log(np.take_along_axis(p, targets[..., None], -1)).mean())


def test_the_loss_and_its_gradients_are_those_of_numpy(cpu: gb.Backend) -> None:
    """In double. The slope along a random direction is that of the gradients: sum of gradient times direction."""
    trainer = trainer_of(cpu)
    config, rng = trainer.config, np.random.default_rng(1)
    weights = {name: value.astype(np.float64) for name, value in initial(config, 1).items()}
    for name in weights:  # larger than at the start, so that no layer is nearly linear
        weights[name] = weights[name] + 0.1 * rng.standard_normal(weights[name].shape)
        trainer.weights[name].set(weights[name].astype(np.float32))
    grads = gb.grad(trainer.loss, [*trainer.weights.values()])
    graph = trainer.loss.context.graph(trainer.loss, *grads)
    inputs, targets = batch(trainer.text.training, 4, config.context, (1, 2))
    trainer.tokens.set(inputs)
    trainer.targets.set(targets)
    trainer.scheduler.compute(graph)
    assert trainer.loss.item() == pytest.approx(loss_by_hand(config, weights, inputs, targets), rel=2e-6)
    found = {name: g.numpy(copy=True).astype(np.float64) for name, g in zip(weights, grads, strict=True)}
    for name in weights:
        direction = rng.standard_normal(weights[name].shape)
        direction *= 1e-5 / np.sqrt((direction**2).mean())
        ends = [
            loss_by_hand(config, {**weights, name: weights[name] + sign * direction}, inputs, targets)
            for sign in (1, -1)
        ]
        scale = np.sqrt((found[name] ** 2).sum() * (direction**2).sum())
        assert abs((found[name] * direction).sum() - (ends[0] - ends[1]) / 2) < 2e-4 * scale, name


def test_the_loss_falls_and_the_same_seed_gives_the_same_curve(cpu: gb.Backend) -> None:
    first, second = trainer_of(cpu), trainer_of(gb.Backend("CPU", n_threads=1))
    losses = [first.step(learning_rate(k, 60, 5e-3)) for k in range(60)]
    assert losses[0] == pytest.approx(math.log(first.config.vocabulary), rel=0.05)
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    assert first.validate() < 0.75 * losses[0]
    for k in range(5):
        assert second.step(learning_rate(k, 60, 5e-3)) == pytest.approx(losses[k], rel=1e-6)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(cpu: gb.Backend, tmp_path: Path) -> None:
    whole, part = trainer_of(cpu), trainer_of(cpu)
    for k in range(12):
        whole.step(1e-3)
        if k == 6:
            whole.validate()
    for _ in range(7):
        part.step(1e-3)
    part.validate()
    part.save(tmp_path / "s.gguf")
    again = Trainer.load(tmp_path / "s.gguf", WORDS * 4, [cpu])
    for _ in range(5):
        again.step(1e-3)
    assert again.curves == whole.curves
    for name, w in whole.weights.items():
        np.testing.assert_array_equal(again.weights[name].numpy(), w.numpy())
    assert again.write(40, "the ") == whole.write(40, "the ")


def test_other_texts_and_files_are_refused(cpu: gb.Backend, tmp_path: Path) -> None:
    trainer = trainer_of(cpu)
    trainer.save(tmp_path / "s.gguf")
    with pytest.raises(ValueError, match="the text has 'Z'"):
        Trainer.load(tmp_path / "s.gguf", WORDS * 4 + "Z", [cpu])
    with gb.gguf.Writer(tmp_path / "m.gguf") as writer:
        writer.add("general.name", "m")
    with pytest.raises(ValueError, match="not a state of this program"):
        Trainer.load(tmp_path / "m.gguf", WORDS, [cpu])
    with pytest.raises(ValueError, match="it needs more than 170"):
        Text.of(WORDS[:100], 16)


def test_the_picture_has_both_curves() -> None:
    curves = Curves([(k, 4 / (1 + k / 100)) for k in range(1, 1001)], [(k, 4.2 / (1 + k / 100)) for k in (100, 1000)])
    root = ET.fromstring(picture.svg(curves, "a < b"))
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert [len(e.get("points", "").split()) for e in lines] == [200, 2]
    for line in lines:
        places = [tuple(map(float, p.split(","))) for p in line.get("points", "").split()]
        assert all(picture.LEFT <= x <= picture.WIDTH and 0 <= y <= picture.HEIGHT for x, y in places)
        assert [p[1] for p in places] == sorted(p[1] for p in places)  # the loss falls, so y grows
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "training loss: 0.364" in texts and "validation loss: 0.382" in texts
    ET.fromstring(picture.svg(Curves(), "nothing yet"))


# ------------------------------------------------------------------------------------------------------- command line


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "examples.train", *map(str, arguments)]


SIZES = ("--width", 32, "--layers", 1, "--heads", 2, "--context", 16, "--rows", 4, "--threads", 1)


@pytest.mark.slow
def test_ctrl_c_keeps_the_state_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(WORDS * 20)
    command = program("--text", tmp_path / "text", "--out", tmp_path / "run", "--steps", 100_000, *SIZES, "--every", 20)
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("step"):
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 0 and err == "", err
    assert "stopped at step" in out
    ET.parse(tmp_path / "run" / "loss.svg")
    with gb.gguf.open(tmp_path / "run" / "state.gguf") as file:
        n = file.metadata["optim.n_steps"]
    assert f"stopped at step {n};" in out
    command = program("--text", tmp_path / "text", "--out", tmp_path / "run", "--steps", n + 5, "--threads", 1)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert f"goes on from step {n} of" in done.stdout and f"step {n + 5:5}  loss" in done.stdout
    command = program("--text", tmp_path / "text", "--out", tmp_path / "run", "--write", 20, "--prompt", "the ")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert len(done.stdout.splitlines()[-1]) == 24 and done.stdout.splitlines()[-1].startswith("the ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--help",), 0, "python -m examples.train --out run "),
        (("--heads", 3), 2, "--width 128 is no multiple of --heads 3"),
        (("--text", "absent.txt"), 1, "absent.txt"),
        (("--rows", 0), 2, "usage:"),
        (("--rate", -1, "--steps", 1, *SIZES), 1, "AdamW: lr is -"),
        (("--devices", "NOSUCH"), 1, "NOSUCH"),
    ],
)
def test_arguments(options: tuple[object, ...], code: int, words: str) -> None:
    done = subprocess.run(program(*options), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code and words in done.stdout + done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------------------ PyTorch


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_loss_curve_is_that_of_pytorch() -> None:
    """The same weights and batches in float32, with the example's text and rates: within 1e-3 for 200 steps."""
    pytest.importorskip("torch", reason="tools/check_torch.sh runs this")
    from examples.train.in_torch import Peer
    from examples.train.text import read

    known = Text.of(read("topics"), 64)
    config = Config(len(known.characters), width=64, layers=2, heads=4, context=64)
    trainer, peer = Trainer(config, known, [gb.Backend("CPU", n_threads=2)], 8), Peer(config, initial(config, 1))
    for k in range(200):
        rate = learning_rate(k, 200, 1e-3)
        theirs = peer.step(*batch(known.training, 8, config.context, (1, k)), rate)
        assert trainer.step(rate) == pytest.approx(theirs, abs=1e-3), k
    assert theirs < 0.75 * trainer.curves.training[0][1]
