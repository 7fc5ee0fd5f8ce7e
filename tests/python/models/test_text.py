"""Decoders: networks against NumPy in float64, and generation."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
from ggml_backend.models import Sampling, TextModel, load
from ggml_backend.models.architectures import Decoder, Encoder
from threads import run_threads

IDS = np.random.default_rng(1).integers(32, sm.VOCAB, 21).tolist()


def close_to(ours, theirs, limit=2e-5):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit * np.abs(theirs).max())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    sm.write(path, sm.SMALL["llama"])
    return path


@pytest.fixture
def model(llama):
    with TextModel(llama, n_ctx=128, n_batch=8, cache="float32") as model:
        model.tokenizer.stops = frozenset()
        yield model


def text_of(tokens):
    return "".join(sm.PIECES[t] if t >= 32 else chr(t) for t in tokens)


@pytest.mark.parametrize("devices", [("CPU",), ("SIM",), ("SIM", "CPU"), ("SIM", "SIM", "CPU")], ids="-".join)
@pytest.mark.parametrize("name", sm.SMALL)
def test_logits_are_those_of_numpy(name, devices, tmp_path):
    sm.write(tmp_path / "model.gguf", sm.SMALL[name])
    reference = sm.Reference(sm.SMALL[name])
    with TextModel(tmp_path / "model.gguf", devices, n_ctx=64, n_batch=8, cache="float32") as model:
        for n in (1, 8, 21):  # one token, a whole batch, batches with padding; each continues the one before
            close_to(model.logits(IDS[:n]), reference.logits(IDS[:n]))
        close_to(model.logits(IDS[5:]), reference.logits(IDS[5:]))


@pytest.mark.parametrize("kind", [list, "".join, iter], ids=["list", "name", "iterator"])
def test_a_single_device_holds_all_weights_and_the_cache(llama, kind):
    with TextModel(llama, kind(["SIM"]), n_ctx=64) as model:
        sim, cpu = model.backends
        assert cpu.name == "CPU"  # added for what a device cannot compute
        assert {b.type for b in [*model.weights.buffers, *model.cache.buffers]} == {sim.buffer_type}


@pytest.mark.parametrize("cache", ["float16", "bfloat16", "q8_0"])
def test_caches_of_other_types_change_logits_little(llama, cache):
    with TextModel(llama, n_ctx=64, cache=cache) as model:
        expected = sm.Reference(sm.SMALL["llama"]).logits(IDS)
        close_to(model.logits(IDS), expected, 0.05)


def test_greedy_text_is_that_of_numpy(model):
    reference, expected = sm.Reference(sm.SMALL["llama"]), list(IDS)
    for _ in range(12):
        expected.append(int(reference.logits(expected).argmax()))
    written = model.generate(IDS, max_tokens=12)
    assert "".join(written) == written.text == text_of(expected[21:])
    assert (written.tokens, written.n_prompt, written.finish_reason) == (expected[21:], 21, "length")


def test_texts_that_are_generated_in_turn_do_not_mix(model):
    prompts = [IDS[:5], IDS[3:17], IDS[7:9], IDS[:6]]
    alone = ["".join(model.generate(p, max_tokens=9)) for p in prompts]
    running = [model.generate(p, max_tokens=9) for p in prompts]
    pieces = [[] for _ in prompts]
    for turn in range(40):
        g = running[turn * 7 % 4]
        pieces[turn * 7 % 4] += [p for p in [next(g, "")] if p]
    for g, found, expected in zip(running, pieces, alone, strict=True):
        assert "".join(found) + "".join(g) == expected
    assert model.generate_all(prompts, max_tokens=9) == alone


def test_threads_share_a_model(model):
    prompts = [IDS[i : i + 6] for i in range(6)]
    expected = ["".join(model.generate(p, max_tokens=6)) for p in prompts]
    found: list[str | None] = [None] * 6

    def work(i):
        found[i] = "".join(model.generate(prompts[i], max_tokens=6))

    run_threads(6, work)
    assert found == expected


def test_a_text_that_continues_another_computes_only_new_tokens(model):
    model.logits(IDS[:12])
    before = model.stats.prompt_tokens
    close_to(model.logits(IDS), sm.Reference(sm.SMALL["llama"]).logits(IDS))
    assert model.stats.prompt_tokens - before == 9
    close_to(model.logits(IDS[:12] + IDS[:3]), sm.Reference(sm.SMALL["llama"]).logits(IDS[:12] + IDS[:3]))


def test_random_work_on_one_cache_gives_the_logits_of_fresh_models(llama):
    """Sequences begin, grow, end and reuse cells of others in any order."""
    rng, reference = np.random.default_rng(3), sm.Reference(sm.SMALL["llama"])
    with TextModel(llama, n_ctx=40, n_batch=8, cache="float32") as model:
        kept: list[list[int]] = []
        for _ in range(40):
            begin = kept[rng.integers(len(kept))] if kept and rng.random() < 0.6 else []
            ids = [*begin[: rng.integers(len(begin) + 1)], *rng.integers(32, sm.VOCAB, rng.integers(1, 12)).tolist()]
            ids = ids[:38]
            kept.append(ids)
            close_to(model.logits(ids), reference.logits(ids))
            used = model.cache.owner[model.cache.owner >= 0]
            assert len(used) == sum(len(s.cells) for s in model.cache.sequences) <= 40


def test_a_full_cache_is_an_error_and_changes_no_sequence(llama):
    with TextModel(llama, n_ctx=24, n_batch=8, cache="float32") as model:
        first = model.generate(IDS[:10], max_tokens=8)
        begin = next(first)
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=r"2\d tokens do not fit the context of 24: .* larger n_ctx"
        ):
            model.logits(IDS[3:18])
        rest = begin + "".join(first)
        assert rest == "".join(model.generate(IDS[:10], max_tokens=8))
    with TextModel(llama, n_ctx=24, cache="float32") as model:
        whole = model.generate(IDS)
        assert len("".join(whole)) == len(whole.tokens) == 4 and whole.finish_reason == "length"
        with pytest.raises(gb.errors.InvalidArgumentError, match="the prompt has 25 tokens, the context 24"):
            model.generate([40] * 25)


def test_a_stop_text_can_end_inside_a_token(model):
    whole = "".join(model.generate(IDS, max_tokens=12))
    for begin in range(10):
        for n in (1, 2, 3):
            stop = whole[begin : begin + n]
            found = model.generate(IDS, max_tokens=12, stop=[stop, "never there"])
            assert "".join(found) == whole[: whole.index(stop)]
            assert found.finish_reason == "stop"
    assert "".join(model.generate(IDS, max_tokens=12, stop="never there")) == whole


def test_a_stop_token_ends_the_answer(model):
    tokens = model.generate(IDS, max_tokens=12)
    list(tokens)
    model.tokenizer.stops = frozenset({tokens.tokens[4]})
    found = model.generate(IDS, max_tokens=12)
    assert "".join(found) == text_of(tokens.tokens[: tokens.tokens.index(tokens.tokens[4])])
    assert found.finish_reason == "stop"


def test_characters_are_never_split(model):
    """A character may consist of several tokens."""
    bytes_of = {i: bytes([b]) for i, b in enumerate("é漢🙂x".encode())}
    model.tokenizer._bytes = bytes_of
    stream = gb.models.tokens.TextStream(model.tokenizer)
    assert [stream.push(i) for i in range(len(bytes_of))] == ["", "é", "", "", "漢", "", "", "", "🙂", "x"]
    stream.push(0)
    assert stream.end() == "\N{REPLACEMENT CHARACTER}"


def test_an_interrupt_keeps_the_text(model, monkeypatch):
    whole = "".join(model.generate(IDS, max_tokens=12))
    written, feed = model.generate(IDS, max_tokens=12), model._feed
    monkeypatch.setattr(
        model, "_feed", lambda *a: feed(*a) if len(written.tokens) < 5 else (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        for _ in written:
            pass
    assert written.text == whole[:5] and list(written) == []
    monkeypatch.undo()
    assert "".join(model.generate(IDS, max_tokens=12)) == whole


def test_seeds_repeat_a_text(model):
    rules = {"max_tokens": 20, "temperature": 1.5, "top_p": 1.0, "top_k": 0}
    first = "".join(model.generate(IDS, seed=5, **rules))
    assert first == "".join(model.generate(IDS, seed=5, **rules))
    assert first == "".join(model.generate(IDS, max_tokens=20, sampling=Sampling(1.5, 0, 1.0, seed=5)))
    assert len({"".join(model.generate(IDS, seed=s, **rules)) for s in range(6)}) > 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens is 0"),
        ({"stop": [""]}, ValueError, "stop must be a list of texts that are not empty"),
        ({"temperature": -1}, ValueError, "temperature is -1"),
        ({"temperature": float("nan")}, ValueError, "temperature is nan"),
        ({"top_p": 0}, ValueError, "top_p is 0"),
        ({"seed": -3}, ValueError, "seed is -3"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
        ({"sampling": Sampling(), "seed": 1}, ValueError, "either sampling= or its fields"),
        (
            {"warmth": 1},
            TypeError,
            "'warmth' is not one of its options and rules: max_tokens, stop, sampling, temperature",
        ),
        ({"sampling": {"seed": 1}}, TypeError, "sampling must be a Sampling, not dict"),
        ({"stop": 3}, TypeError, "stop must be a list of texts, not int"),
        ({"top_k": 1.5}, TypeError, "top_k must be an int, not float"),
    ],
)
def test_wrong_options_are_errors(model, options, error, words):
    with pytest.raises(error, match=words):
        model.generate(IDS, **options)


@pytest.mark.parametrize(("prompt", "words"), [([], "empty"), ("", "empty"), ([96], "token 96 is not"), ([-1], "-1")])
def test_wrong_prompts_are_errors(model, prompt, words):
    with pytest.raises(gb.errors.InvalidArgumentError, match=words):
        model.generate(prompt)


def test_a_closed_model_is_an_error(llama):
    model = TextModel(llama, n_ctx=32)
    written = model.generate(IDS, max_tokens=5)
    next(written)
    model.close()
    model.close()
    with pytest.raises(gb.errors.StateError, match="closed"):
        list(written)
    with pytest.raises(gb.errors.StateError, match="closed"):
        model.logits(IDS)
    assert repr(model) == "<TextModel: closed>"


def test_a_chat_goes_through_the_template(model):
    messages = [{"role": "user", "content": sm.PIECES[40] + sm.PIECES[41]}]
    assert model.chat_prompt(messages) == f"[user]{sm.PIECES[40]}{sm.PIECES[41]}["
    answer = model.chat(messages, max_tokens=4)
    ids = model.tokenizer.encode(model.chat_prompt(messages), ends=False)
    assert "".join(answer) == "".join(model.generate(ids, max_tokens=4))
    model.template = None
    with pytest.raises(gb.errors.InvalidArgumentError, match="has no chat template"):
        model.chat(messages)


BAD = {
    "an architecture nobody knows": ({"general__architecture": "rwkv9"}, "'rwkv9' is not known. Known are bert"),
    "no architecture": ({"general__architecture": None}, "does not say which network"),
    "no sizes": ({"llama__embedding_length": None}, "no key llama.embedding_length"),
    "a size that is a text": ({"llama__block_count": "six"}, "llama.block_count is 'six'"),
    "layers that are not there": ({"llama__block_count": 7}, "no tensor blk.6"),
    "heads that do not divide": ({"llama__attention__head_count_kv": 3}, "no multiple"),
    "a huge number of layers": ({"llama__block_count": 1 << 31}, "llama.block_count is"),
    "another width": ({"llama__embedding_length": 128}, "has shape"),
    "an odd rotation": ({"llama__rope__dimension_count": 15}, "must be even"),
    "a scaling nobody knows": ({"llama__rope__scaling__type": "magic"}, "'magic'; known are"),
    "no tokenizer": ({"tokenizer__ggml__model": None}, "no tokenizer"),
    "another tokenizer": ({"tokenizer__ggml__model": "rwkv"}, "'rwkv'; known are"),
    "too many pieces": ({"tokenizer__ggml__tokens": ["a"] * 500}, "it must be a list of 500 numbers"),
    "bytes that are none": ({"tokenizer__ggml__token_type": np.full(96, 6, np.int32)}, "not of the form <0x41>"),
    "more experts used than there are": (
        {"llama__expert_count": 4, "llama__expert_used_count": 9}, "llama.expert_used_count is 9"),
    "a template that is a number": ({"tokenizer__chat_template": 3}, "must be a text"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_errors_of_damaged_files_name_the_key(case, tmp_path):
    changes, words = BAD[case]
    sm.write(tmp_path / "model.gguf", sm.SMALL["llama"], **changes)
    with pytest.raises((gb.errors.FileError, gb.errors.UnsupportedError), match=words):
        load(tmp_path / "model.gguf")


def test_a_sim_device_of_little_memory_is_an_error(llama):
    with pytest.raises(gb.errors.AllocationError):
        TextModel(llama, ("SIM:mem=16K", "CPU"))


@pytest.mark.parametrize(
    ("kind", "field"), [(Decoder, "rope"), (Decoder, "activation"), (Decoder, "experts"), (Encoder, "gate")]
)
def test_an_entry_with_an_unknown_word_is_refused(kind, field):
    with pytest.raises(ValueError, match=f"{field}: needs one of .*, is 'relu6'"):
        kind(**{field: "relu6"})
