"""Command line of the training example."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ggml_backend as gb

from ..command import Interrupts, add_devices, count, plain, run
from .model import Config
from .picture import svg
from .text import Text, read
from .trainer import Trainer, learning_rate

EXAMPLE = """\
example:
  python -m examples.train --out run                 trains 1000 steps, a few minutes
  python -m examples.train --out run --steps 2000    goes on from there, also after Ctrl-C
  python -m examples.train --out run --write 500     only writes 500 characters
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m examples.train",
        description="Train a small transformer on the characters of a text.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", metavar="FOLDER", type=Path, help="folder of loss.svg and of the state to continue")
    made.add_argument("--new", action="store_true", help="begin again, even if the folder has a state")
    made.add_argument("--text", default="topics", help="a text file (default: the topics of Python's help())")
    made.add_argument("--steps", type=count(), default=1000, help="steps of all runs together (default: %(default)s)")
    made.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (default: %(default)s)")
    made.add_argument("--rows", type=count(4096), default=16, help="sequences a batch (default: %(default)s)")
    for name in ("width", "layers", "heads", "context"):
        default = getattr(Config(1), name)
        made.add_argument(f"--{name}", type=count(8192), default=default, help=f"network {name} (default: %(default)s)")
    made.add_argument(
        "--every", type=count(), default=100, help="number of steps between validations (default: %(default)s)"
    )
    made.add_argument("--write", type=count(), metavar="N", help="write N characters and stop")
    made.add_argument("--prompt", default="The ", help="beginning of samples (default: %(default)r)")
    made.add_argument("--seed", type=count(), default=1, help="(default: %(default)s)")
    made.add_argument("--threads", type=count(512), help="CPU threads (default: the usable cores)")
    add_devices(made)
    return made


def backend_of(name: str, threads: int | None) -> gb.Backend:
    return gb.Backend(name, n_threads=threads) if name == "CPU" and threads else gb.Backend(name)


def begin(args: argparse.Namespace, state: Path | None) -> Trainer:
    """Makes a new trainer, or loads the trainer of the state."""
    names = [*args.devices] if "CPU" in args.devices else [*args.devices, "CPU"]
    backends = [backend_of(name, args.threads) for name in names]
    text = read(args.text)
    if state is not None and state.exists() and not args.new:
        trainer = Trainer.load(state, text, backends)
        print(f"goes on from step {trainer.step_number} of {state}")
        return trainer
    known = Text.of(text, args.context)
    config = Config(len(known.characters), args.width, args.layers, args.heads, args.context)
    trainer = Trainer(config, known, backends, args.rows, args.seed)
    n = sum(w.size for w in trainer.weights.values())
    memory = trainer.scheduler.memory(backends[0])
    print(
        f"{len(text)} characters, {config.vocabulary} of them different; {n} weights; memory for activations and"
        f" gradients {memory.allocated / 2**20:.1f} MiB, without reuse {memory.no_reuse / 2**20:.1f} MiB"
    )
    return trainer


def keep(trainer: Trainer, folder: Path | None) -> None:
    if folder is not None:
        trainer.save(folder / "state.gguf")
        (folder / "loss.svg").write_text(svg(trainer.curves, "Loss of the training example"), encoding="utf-8")


def train(trainer: Trainer, args: argparse.Namespace) -> bool:
    """Trains up to ``args.steps``. Returns False after Ctrl-C."""
    began, last_step = time.perf_counter(), trainer.step_number
    with Interrupts() as interrupts:
        while trainer.step_number < args.steps and not interrupts.came:
            loss = trainer.step(learning_rate(trainer.step_number, args.steps, args.rate))
            n = trainer.step_number
            if n % args.every == 0 or n == args.steps or interrupts.came:
                each, validation = (time.perf_counter() - began) / (n - last_step), trainer.validate()
                print(
                    f"step {n:5}  loss {loss:.4f}  validation {validation:.4f}  {1e3 * each:.0f} ms a step", flush=True
                )
                keep(trainer, args.out)
                began, last_step = time.perf_counter(), n
    return not interrupts.came


def main() -> None:
    made = parser()
    args = made.parse_args()
    if args.width % args.heads:
        made.error(f"--width {args.width} is no multiple of --heads {args.heads}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    trainer = begin(args, args.out / "state.gguf" if args.out is not None else None)
    if args.write:
        print(plain(trainer.write(args.write, args.prompt)))
        return
    finished = train(trainer, args)
    if not finished and args.out is not None:
        print(f"stopped at step {trainer.step_number}; the same command goes on")
        return
    print(plain(trainer.write(300, args.prompt)))


if __name__ == "__main__":
    run(main, "python -m examples.train")
