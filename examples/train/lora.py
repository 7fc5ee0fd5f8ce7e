"""Trains adapters of low rank for a quantized Llama, and merges them into a new model file.

    python -m examples.train.lora MODEL.gguf TEXT.txt --out MERGED.gguf

The weights of the model do not change: they stay mapped and quantized, and have no gradients. Each adapted matrix W
gets two small matrices, ``y = W x + B A x scale / rank`` (Hu et al. 2021, arXiv:2106.09685). Only A and B have
gradients and state.

To save memory, a step keeps only the input of each block, and computes the block again for its gradients (Chen et al.
2016, arXiv:1604.06174). So only the results of one block are in memory at a time. Logits are computed for a few tokens
at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops

from ..command import Interrupts, count, read_text, run

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
HEAD_ROWS = 8  # tokens whose logits are in memory at the same time
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the network, from the keys of a Llama file."""

    layers: int
    heads: int
    kv_heads: int
    eps: float
    rope_dims: int
    rope_base: float

    @classmethod
    def of(cls, file: gb.gguf.GGUFFile) -> Sizes:
        keys = file.metadata
        others = keys.get("llama.expert_count") or "rope_freqs.weight" in file.tensors
        if keys.get("general.architecture") != "llama" or others:
            raise ValueError(f"{file.name}: this example trains plain Llama files only")
        heads = int(keys["llama.attention.head_count"])
        width = file.tensors["token_embd.weight"].shape[1]
        return cls(
            int(keys["llama.block_count"]),
            heads,
            int(keys.get("llama.attention.head_count_kv", heads)),
            float(keys["llama.attention.layer_norm_rms_epsilon"]),
            int(keys.get("llama.rope.dimension_count", keys.get("llama.attention.key_length", width // heads))),
            float(keys.get("llama.rope.freq_base", 10000.0)),
        )


@dataclass(frozen=True)
class Adapter:
    """The matrices ``down (rank, inputs)`` and ``up (outputs, rank)``. ``up`` begins with zeros."""

    down: gb.Tensor
    up: gb.Tensor


class Network:
    """A Llama with adapters, for one piece of text."""

    def __init__(
        self, sizes: Sizes, w: Mapping[str, gb.Tensor], adapters: Mapping[str, Adapter], scale: float, tokens: gb.Tensor
    ) -> None:
        self.sizes, self.w, self.adapters, self.scale, self.tokens = sizes, w, adapters, scale, tokens
        self.positions = tokens.context.constant(np.arange(tokens.size, dtype=np.int32))
        self.head = "output.weight" if "output.weight" in w else "token_embd.weight"
        self.numbers = tokens.context.constant(np.arange(w[self.head].shape[0], dtype=np.float32))  # of all tokens

    def linear(self, name: str, x: gb.Tensor) -> gb.Tensor:
        y = ops.mul_mat(self.w[name], x, prec="f32")
        a = self.adapters.get(name)
        return y if a is None else y + ((x @ a.down.T) @ a.up.T) * self.scale

    def norm(self, name: str, x: gb.Tensor) -> gb.Tensor:
        return ops.rms_norm(x, self.sizes.eps) * self.w[f"{name}.weight"]

    def heads(self, name: str, x: gb.Tensor, n: int, rotate: bool) -> gb.Tensor:
        """A projection of x as ``(heads, tokens, head)``."""
        y = self.linear(f"{name}.weight", x)
        y = y.reshape(x.shape[0], n, y.shape[1] // n)
        if rotate:
            s = self.sizes
            y = ops.rope(y, self.positions, s.rope_dims, "normal_exact", freq_base=s.rope_base)
        return y.transpose(1, 0, 2)

    def attention(self, block: str, x: gb.Tensor) -> gb.Tensor:
        s = self.sizes
        q = self.heads(f"{block}.attn_q", x, s.heads, True)
        k = self.heads(f"{block}.attn_k", x, s.kv_heads, True)
        v = self.heads(f"{block}.attn_v", x, s.kv_heads, False).transpose(0, 2, 1).contiguous()
        scores = ops.diag_mask_inf(ops.mul_mat(k, q) * (1 / math.sqrt(q.shape[-1])), 0)
        y = ops.mul_mat(v, ops.soft_max(scores)).transpose(1, 0, 2).contiguous()
        return self.linear(f"{block}.attn_output.weight", y.reshape(x.shape[0], y.shape[1] * y.shape[2]))

    def embedded(self) -> gb.Tensor:
        """The input ``(tokens, width)`` of the first block."""
        return ops.get_rows(self.w["token_embd.weight"], self.tokens)

    def block(self, i: int, x: gb.Tensor) -> gb.Tensor:
        b = f"blk.{i}"
        x = x + self.attention(b, self.norm(f"{b}.attn_norm", x))
        y = self.norm(f"{b}.ffn_norm", x)
        gate, up = (self.linear(f"{b}.ffn_{part}.weight", y) for part in ("gate", "up"))
        return x + self.linear(f"{b}.ffn_down.weight", ops.glu(gate, up, op="swiglu"))

    def logits(self, x: gb.Tensor) -> gb.Tensor:
        """The logits of rows that the last block computed."""
        return self.linear(self.head, self.norm("output_norm", x))

    def loss(self, x: gb.Tensor, targets: gb.Tensor) -> tuple[gb.Tensor, gb.Tensor]:
        """The mean cross entropy, and the logits of the last tokens."""
        losses, n = [], targets.size
        for i in range(0, n, HEAD_ROWS):
            rows = min(HEAD_ROWS, n - i)
            logits = self.logits(x[i : i + rows])
            losses.append(self.cross_entropy(logits, targets[i : i + rows]) * (rows / n))
        return functools.reduce(operator.add, losses), logits

    def cross_entropy(self, logits: gb.Tensor, targets: gb.Tensor) -> gb.Tensor:
        """Mean cross entropy. The row of a target is 1 in the column of its number, and 0 in the others."""
        column = targets.reshape(targets.size, 1).astype("float32")
        return ops.cross_entropy_loss(logits, ops.equal(ops.repeat(self.numbers, logits), column), 0.0)


class LoraTrainer:
    """A model file with adapters for some of its matrices."""

    def __init__(
        self,
        model: Path,
        backend: gb.Backend,
        *,
        parts: Sequence[str] = ("attn_q", "attn_v"),
        rank: int = 8,
        alpha: float = 16.0,
        n_tokens: int = 64,
        seed: int = 1,
    ) -> None:
        self.model, self.backend, self.scale = model, backend, alpha / rank
        with gb.gguf.open(model) as file:
            sizes = Sizes.of(file)
            self.nbytes = file.nbytes
            self.frozen = file.load(backend)
        self.adapters = self._adapters(parts, rank, sizes.layers, backend, seed)
        ctx, inputs = gb.Context(), gb.Context()
        self.tokens = inputs.tensor((n_tokens,), gb.int32, name="tokens")
        self.targets = inputs.tensor((n_tokens,), gb.int32, name="targets")
        network = Network(sizes, self.frozen, self.adapters, self.scale, self.tokens)
        with ctx.as_default():
            trained = self._graph_of(network, backend)
        self.optimizer = gb.optim.AdamW(
            self.loss, [*trained], grads=[*trained.values()], weight_decay=0.0, max_norm=1.0
        )
        self.seeing = ctx.graph(self.loss)
        self.inputs = inputs.allocate(backend)  # memory of their own, so only graphs that run are planned
        self.scheduler = gb.Scheduler(backend)

    def _graph_of(self, network: Network, backend: gb.Backend) -> dict[gb.Tensor, gb.Tensor]:
        """Builds the loss. Returns the gradient of each adapter's tensors, the last block first.

        Gradients read the tensors that the copies wrote, not the copies. So they depend on nothing before.
        """
        memory, layers = gb.Context(), network.sizes.layers
        x = network.embedded()
        entered = [memory.tensor(x.shape, name=f"enters block {i}") for i in range(layers)]
        left = memory.tensor(x.shape, name="leaves the last block")
        self.activations = memory.allocate(backend)
        for i in range(layers):
            x = network.block(i, ops.cpy(x, entered[i]))
        loss, self.logits = network.loss(ops.cpy(x, left), self.targets)
        self.loss = loss.named("loss")
        (slope,) = gb.grad(network.loss(left, self.targets)[0], [left])
        found: dict[gb.Tensor, gb.Tensor] = {}
        for i in reversed(range(layers)):
            again = ops.sum(network.block(i, entered[i]) * slope)
            own = [a for name, a in self.adapters.items() if name.startswith(f"blk.{i}.")]
            trained = [t for a in own for t in (a.down, a.up)]
            slope, *grads = gb.grad(again, [entered[i], *trained])
            found.update(zip(trained, grads, strict=True))
        return found

    def _adapters(
        self, parts: Sequence[str], rank: int, layers: int, backend: gb.Backend, seed: int
    ) -> dict[str, Adapter]:
        memory, rng = gb.Context(usage="weights"), np.random.default_rng(seed)
        found = {}
        for i in range(layers):
            for part in parts:
                name = f"blk.{i}.{part}.weight"
                outputs, inputs = self.frozen[name].shape
                down = memory.tensor((rank, inputs), name=f"{name}.lora_a")
                found[name] = Adapter(down, memory.tensor((outputs, rank), name=f"{name}.lora_b"))
        memory.allocate(backend)
        for a in found.values():
            a.down.set((rng.standard_normal(a.down.shape) / math.sqrt(a.down.shape[1])).astype(np.float32))
            a.up.set(0)
        return found

    def feed(self, piece: Tokens) -> None:
        """Sets ``n_tokens + 1`` tokens as inputs. Each token but the last predicts the next one."""
        self.tokens.set(np.ascontiguousarray(piece[:-1]))
        self.targets.set(np.ascontiguousarray(piece[1:]))

    def step(self, pieces: Sequence[Tokens], rate: float) -> float:
        """One step with the mean gradient of several pieces. Returns their mean loss."""
        self.optimizer.lr = rate
        losses = []
        for i, piece in enumerate(pieces):
            self.feed(piece)
            act = self.optimizer.step if i == len(pieces) - 1 else self.optimizer.add
            losses.append(act(self.scheduler))
        return float(np.mean(losses))

    def loss_on(self, pieces: Sequence[Tokens]) -> float:
        """The mean loss. It uses the memory of the steps. Before the first step, it frees its own memory."""
        losses = []
        with contextlib.ExitStack() as stack:
            own = self.optimizer.n_steps == 0
            scheduler = stack.enter_context(gb.Scheduler(self.backend)) if own else self.scheduler
            for piece in pieces:
                self.feed(piece)
                scheduler.compute(self.seeing)
                losses.append(self.loss.item())
        return float(np.mean(losses))

    def memory(self) -> int:
        """Bytes of a step without the file: the plan, inputs of blocks, adapters with gradient sums and moments."""
        plan = self.scheduler.prepare(self.optimizer.graph, allocate=False).memory["CPU"]
        trained = sum(t.nbytes for a in self.adapters.values() for t in (a.down, a.up))
        return plan.peak + plan.scratch + self.activations.nbytes + 4 * trained

    def merged(self, name: str, values: Floats) -> Floats:
        """A matrix with its adapter added."""
        a = self.adapters[name]
        change: Floats = self.scale * (a.up.numpy() @ a.down.numpy())
        return values + change

    def merge(self, out: Path) -> None:
        """Writes a model file with all adapters added, in the formats of the first file."""
        with gb.gguf.open(self.model) as file, gb.gguf.Writer(out) as writer:
            writer.copy_from(file, tensors=False)
            for name, t in file.tensors.items():
                if name in self.adapters:
                    writer.add_tensor(name, self.merged(name, t.dequantize()), t.dtype)
                else:
                    writer.add_tensor(name, t)


def pieces_of(tokens: Tokens, size: int) -> tuple[list[Tokens], list[Tokens]]:
    """Cuts tokens into pieces of ``size + 1``. Returns those for training, and every tenth for validation."""
    found = [tokens[i : i + size + 1] for i in range(0, len(tokens) - size, size)]
    if len(found) < 2:
        raise ValueError(f"the text has {len(tokens)} tokens: it needs at least {2 * size + 1}")
    kept = range(9, len(found), 10) or [len(found) - 1]
    return [p for i, p in enumerate(found) if i not in kept], [found[i] for i in kept]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.train.lora",
        description="Train adapters of a quantized Llama, and merge them into a new file.",
        epilog="example:\n  python -m examples.train.lora SmolLM2.gguf notes.txt --out mine.gguf\n"
        '  ggml-backend chat mine.gguf "..."',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a GGUF file of the architecture llama")
    parser.add_argument("text", type=Path, help="the text to learn")
    parser.add_argument("--out", type=Path, required=True, help="the merged model")
    parser.add_argument("--steps", type=count(), default=50, help="(default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: %(default)s)")
    parser.add_argument("--rank", type=count(1024), default=8, help="rank of the adapters (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["attn_q", "attn_v"], help="matrices to adapt")
    parser.add_argument("--tokens", type=count(4096), default=64, help="tokens per piece (default: %(default)s)")
    parser.add_argument("--pieces", type=count(1024), default=4, help="pieces per step (default: %(default)s)")
    parser.add_argument("--threads", type=count(512), help="CPU threads (default: the usable cores)")
    args = parser.parse_args()
    if args.out.is_dir():
        parser.error(f"--out {args.out} is a folder: name a file")
    args.out.parent.mkdir(parents=True, exist_ok=True)  # an error here comes before the training
    backend = gb.Backend("CPU", n_threads=args.threads) if args.threads else gb.Backend("CPU")
    trainer = LoraTrainer(args.model, backend, parts=args.parts, rank=args.rank, n_tokens=args.tokens)
    train(trainer, args)
    trainer.merge(args.out)
    print(f"wrote {args.out}")


def train(trainer: LoraTrainer, args: argparse.Namespace) -> None:
    """Trains, and prints losses. Ctrl-C ends training after the current step."""
    from ggml_backend.models import tokenizer_of

    with gb.gguf.open(args.model) as file:
        tokens = np.array(tokenizer_of(file.metadata).encode(read_text(args.text)), np.int32)
    training, validation = pieces_of(tokens, args.tokens)
    rng = np.random.default_rng(1)
    print(f"{len(tokens)} tokens; validation {trainer.loss_on(validation):.4f}", flush=True)
    with Interrupts() as interrupts:
        for k in range(1, args.steps + 1):
            chosen = rng.integers(0, len(training), args.pieces)
            loss = trainer.step([training[i] for i in chosen], args.rate)
            if k % 10 == 0 or k == args.steps or interrupts.came:
                print(f"step {k:4}  loss {loss:.4f}  validation {trainer.loss_on(validation):.4f}", flush=True)
            if interrupts.came:
                break
    print(f"file {trainer.nbytes / 2**20:.0f} MiB, all else {trainer.memory() / 2**20:.0f} MiB{resident()}")


def resident() -> str:
    """The largest memory of this process so far, as the end of a line. Empty on Windows."""
    try:
        import resource
    except ImportError:
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    return f", resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:.0f} MiB"


if __name__ == "__main__":
    run(main, "python -m examples.train.lora")
