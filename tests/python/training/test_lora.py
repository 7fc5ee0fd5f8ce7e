"""Adapters of the training example: the network, what is trained, and the merged file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import ggml_backend as gb
import small_models
from source_tree import in_tree

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))

from examples.train.lora import LoraTrainer, Network, Sizes, pieces_of  # noqa: E402

Tokens = npt.NDArray[np.int32]
N = 12


@pytest.fixture(params=["f32", "q8_0"])
def trainer(request: pytest.FixtureRequest, tmp_path: Path, cpu: gb.Backend) -> LoraTrainer:
    small_models.write(tmp_path / "model.gguf", small_models.SMALL["llama"], dtype=request.param)
    trainer = LoraTrainer(tmp_path / "model.gguf", cpu, rank=4, n_tokens=N, parts=("attn_q", "attn_v", "ffn_down"))
    trainer.seeing = trainer.loss.context.graph(trainer.loss, trainer.logits)  # also what the tests read
    return trainer


def pieces(trainer: LoraTrainer, n: int) -> list[Tokens]:
    vocabulary = trainer.frozen["token_embd.weight"].shape[0]
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocabulary, N + 1).astype(np.int32) for _ in range(n)]


def logits_of(path: Path, tokens: Tokens) -> npt.NDArray[np.float32]:
    with gb.models.TextModel(path, precision="f32", cache="float32") as model:
        return model.logits([*map(int, tokens)])


def test_the_network_is_that_of_the_package(trainer: LoraTrainer) -> None:
    """With adapters that add nothing yet."""
    (piece,) = pieces(trainer, 1)
    trainer.feed(piece)
    trainer.scheduler.compute(trainer.seeing)
    wanted = logits_of(trainer.model, piece[:-1])
    np.testing.assert_allclose(trainer.logits.numpy()[-1], wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


def whole_graph(trainer: LoraTrainer) -> tuple[gb.Tensor, list[gb.Tensor]]:
    """The loss and the gradients of the same network, whose results are all kept."""
    with gb.gguf.open(trainer.model) as file:
        network = Network(Sizes.of(file), trainer.frozen, trainer.adapters, trainer.scale, trainer.tokens)
    with trainer.loss.context.as_default():
        x = network.embedded()
        for i in range(network.sizes.layers):
            x = network.block(i, x)
        loss = network.loss(x, trainer.targets)[0]
        return loss, gb.grad(loss, trainer.optimizer._weights)


def test_gradients_are_those_of_the_whole_graph(trainer: LoraTrainer) -> None:
    """Blocks that are computed again give the gradients of a network whose results are all kept, bit for bit."""
    (piece,) = pieces(trainer, 1)
    trainer.step([piece], 2e-2)  # adapters that begin with zeros would have no gradient
    loss, kept = whole_graph(trainer)
    graph = trainer.loss.context.graph(trainer.loss, loss, *trainer.optimizer._grads, *kept)
    trainer.feed(piece)
    trainer.scheduler.compute(graph)
    assert loss.item() == trainer.loss.item()
    for again, whole in zip(trainer.optimizer._grads, kept, strict=True):
        np.testing.assert_array_equal(again.numpy(), whole.numpy())
        assert np.abs(whole.numpy()).max() > 0


def test_a_step_keeps_the_results_of_one_block(tmp_path: Path, cpu: gb.Backend) -> None:
    small_models.write(tmp_path / "model.gguf", small_models.SMALL["llama"])
    trainer = LoraTrainer(tmp_path / "model.gguf", cpu, rank=1, n_tokens=64)
    _, kept = whole_graph(trainer)
    with trainer.loss.context.as_default():
        usual = gb.optim.AdamW(trainer.loss, trainer.optimizer._weights, grads=kept)
    peaks = [
        gb.Scheduler(cpu).prepare(optimizer.graph, allocate=False).memory["CPU"].peak
        for optimizer in (trainer.optimizer, usual)
    ]
    assert peaks[0] + trainer.activations.nbytes < 0.4 * peaks[1]


def test_all_tokens_share_the_numbers_of_the_vocabulary(tmp_path: Path, cpu: gb.Backend) -> None:
    """One constant, not one for each few tokens whose logits are in memory together."""
    small_models.write(tmp_path / "model.gguf", small_models.SMALL["llama"])
    trainer = LoraTrainer(tmp_path / "model.gguf", cpu, rank=1, n_tokens=64)
    vocabulary = trainer.frozen["token_embd.weight"].shape[0]
    assert [t.shape for t in trainer.optimizer.graph.leafs].count((vocabulary,)) == 1


def test_the_loss_falls_and_only_adapters_change(trainer: LoraTrainer) -> None:
    before = {name: t.numpy(copy=True) for name, t in trainer.frozen.items()}
    known = pieces(trainer, 2)
    first = trainer.loss_on(known)
    for _ in range(40):
        trainer.step(known, 2e-2)
    assert trainer.loss_on(known) < 0.7 * first
    for name, value in before.items():
        np.testing.assert_array_equal(trainer.frozen[name].numpy(), value)


def test_the_merged_file_gives_the_logits_of_the_adapters(trainer: LoraTrainer, tmp_path: Path) -> None:
    known = pieces(trainer, 2)
    for _ in range(5):
        trainer.step(known, 2e-2)
    trainer.merge(tmp_path / "merged.gguf")
    trainer.loss_on([known[0]])
    ours = trainer.logits.numpy()[-1].astype(np.float64)
    merged, old = logits_of(tmp_path / "merged.gguf", known[0][:-1]), logits_of(trainer.model, known[0][:-1])
    bound = 1e-3 if trainer.frozen["blk.0.attn_q.weight"].dtype == gb.float32 else 0.05  # rounded to 8 bits again
    assert np.abs(merged - ours).max() < bound * np.abs(ours).max()
    assert np.abs(old - ours).max() > 4 * np.abs(merged - ours).max()
    with gb.gguf.open(trainer.model) as first, gb.gguf.open(tmp_path / "merged.gguf") as second:
        assert [*second.tensors] == [*first.tensors] and dict(second.metadata).keys() == dict(first.metadata).keys()
        for name, t in first.tensors.items():
            assert second.tensors[name].dtype == t.dtype
            if name not in trainer.adapters:
                np.testing.assert_array_equal(second.tensors[name].numpy(), t.numpy())


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
def test_other_networks_are_refused(tmp_path: Path, cpu: gb.Backend, kind: str) -> None:
    small_models.write(tmp_path / "model.gguf", small_models.SMALL[kind])
    with pytest.raises(ValueError, match="plain Llama files only"):
        LoraTrainer(tmp_path / "model.gguf", cpu)


def test_pieces_follow_each_other() -> None:
    training, validation = pieces_of(np.arange(101, dtype=np.int32), 8)
    assert len(training) + len(validation) == 12 and len(validation) == 1
    for piece in (*training, *validation):
        assert len(piece) == 9 and (np.diff(piece) == 1).all()
    with pytest.raises(ValueError, match="it needs at least 17"):
        pieces_of(np.arange(10, dtype=np.int32), 8)


def ran(folder: Path, text: bytes, *options: str) -> subprocess.CompletedProcess[str]:
    """The command line with a small model and few short steps."""
    small_models.write(folder / "model.gguf", small_models.SMALL["llama"], dtype="q8_0")
    (folder / "text.txt").write_bytes(text)
    command = [sys.executable, "-m", "examples.train.lora", str(folder / "model.gguf"), str(folder / "text.txt")]
    sizes = ["--steps", "2", "--pieces", "2", "--tokens", "8", "--threads", "1"]
    return subprocess.run([*command, *sizes, *options], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_writes_a_model_into_a_new_folder(tmp_path: Path) -> None:
    out = tmp_path / "new" / "merged.gguf"
    done = ran(tmp_path, b"the cat sees a dog and the dog sees a cat. " * 20, "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "tokens; validation " in lines[0] and lines[-3].startswith("step    2  loss ")
    assert lines[-2].startswith("file ") and lines[-1] == f"wrote {out}"
    merged, old = (logits_of(path, np.arange(1, 6, dtype=np.int32)) for path in (out, tmp_path / "model.gguf"))
    assert np.isfinite(merged).all() and not np.array_equal(merged, old)


@pytest.mark.parametrize(
    ("text", "out", "code", "words"),
    [
        (b"caf\xe9", "merged.gguf", 1, "text.txt is not a text in UTF-8: byte 3 is 0xe9"),
        (b"too short", "merged.gguf", 1, "tokens: it needs at least 17"),
        (b"a text", ".", 2, "is a folder: name a file"),
    ],
)
def test_the_command_refuses(tmp_path: Path, text: bytes, out: str, code: int, words: str) -> None:
    done = ran(tmp_path, text, "--out", str(tmp_path / out))
    assert done.returncode == code and not done.stdout
    assert words in done.stderr.splitlines()[-1]
