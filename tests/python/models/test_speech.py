"""Whisper: the network against NumPy in float64, timestamps, and files of other programs."""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from dataclasses import replace
from math import erf

import numpy as np
import pytest
import safetensors.numpy as safetensors

import ggml_backend as gb
import small_whisper as sm
from ggml_backend.cli import main
from ggml_backend.models import SpeechModel, Transcript, load
from ggml_backend.models._whisper import LANGUAGES, Special
from ggml_backend.models.audio import log_mel
from ggml_backend.models.speech import Segment, _largest
from ggml_backend.models.tokens import _byte_characters
from small_whisper import HEADS, LAYERS, PIECES, VOCAB, E, weights


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "whisper.gguf"
    sm.write_whisper(path)
    return path


def reference(mel, tokens):
    """The logits of the next token, in float64."""
    w = weights(np.float64)

    def norm(name, x):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def gelu(x):
        return 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5))

    def attend(q, k, v, causal):
        heads = [x.reshape(len(x), HEADS, -1).swapaxes(0, 1) for x in (q, k, v)]
        scores = heads[0] @ heads[1].swapaxes(1, 2) / (E // HEADS) ** 0.5
        if causal:
            scores = scores + np.triu(np.full(scores.shape[1:], -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return ((shares / shares.sum(-1, keepdims=True)) @ heads[2]).swapaxes(0, 1).reshape(len(q), E)

    def block(name, x, audio):
        h = norm(f"{name}.attn_ln", x)
        q, k, v = (linear(f"{name}.attn.{p}", h) for p in ("query", "key", "value"))
        x = x + linear(f"{name}.attn.out", attend(q, k, v, audio is not None))
        if audio is not None:
            q = linear(f"{name}.cross_attn.query", norm(f"{name}.cross_attn_ln", x))
            k, v = (linear(f"{name}.cross_attn.{p}", audio) for p in ("key", "value"))
            x = x + linear(f"{name}.cross_attn.out", attend(q, k, v, False))
        return x + linear(f"{name}.mlp.2", gelu(linear(f"{name}.mlp.0", norm(f"{name}.mlp_ln", x))))

    def conv(name, x, stride):
        padded = np.pad(x, ((0, 0), (1, 1)))
        columns = [
            np.einsum("oik,ik->o", w[f"{name}.weight"], padded[:, i : i + 3]) for i in range(0, x.shape[1], stride)
        ]
        return gelu(np.stack(columns, 1) + w[f"{name}.bias"][:, None])

    x = conv("encoder.conv2", conv("encoder.conv1", mel.astype(np.float64), 1), 2).T + w["encoder.positional_embedding"]
    for i in range(LAYERS):
        x = block(f"encoder.blocks.{i}", x, None)
    audio = norm("encoder.ln_post", x)
    x = w["decoder.token_embedding.weight"][tokens] + w["decoder.positional_embedding"][: len(tokens)]
    for i in range(LAYERS):
        x = block(f"decoder.blocks.{i}", x, audio)
    return norm("decoder.ln", x[-1]) @ w["decoder.token_embedding.weight"].T


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU")], ids=len)
def test_logits_are_those_of_numpy(path, devices):
    rng = np.random.default_rng(1)
    mel = log_mel((0.1 * rng.standard_normal(480000)).astype(np.float32))
    tokens = [50257, 100, 7, 50363]
    expected = reference(mel, tokens)
    with load(path, devices) as model:
        assert isinstance(model, SpeechModel)
        model._encode(mel)
        whole = model._decode_prompt(tokens)
        model._decode_prompt(tokens[:2])
        steps = [model._decode([t], [i], [i], [range(i + 1)])[0] for i, t in enumerate(tokens) if i >= 2][-1]
        model._decode([tokens[0]] * 2, [0, 0], [7, 9], [[7], [9]])  # two texts at once, in any cells
        beams = model._decode([tokens[1]] * 2, [1, 1], [3, 4], [[7, 3], [9, 4]])
        np.testing.assert_allclose(beams, [reference(mel, tokens[:2])] * 2, rtol=0, atol=5e-3 * np.abs(expected).max())
    for found in (whole, steps):
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize(("seconds", "beams"), [(0.1, 1), (3, 4), (31, 1)])
def test_any_length_has_a_transcript(path, seconds, beams):
    x = np.random.default_rng(2).standard_normal(int(16000 * seconds)).astype(np.float32) * 0.1
    done = []
    with load(path) as model:
        found = model.transcribe(x, beams=beams, progress=lambda at, all_: done.append((at, all_)))
    assert isinstance(found, Transcript) and found.language == "en"
    assert done[0][0] == 0 and done[-1][0] == done[-1][1]
    assert all(0 <= s.start <= s.end <= seconds + 0.1 for s in found.segments)


@pytest.mark.parametrize("seed", range(5))
def test_beams_find_the_best_text(path, seed):
    """With enough beams, the text is the best of all. With one, each token is the likeliest."""
    rng, letters, end, most = np.random.default_rng(seed), range(10, 13), Special.of(VOCAB).end, 4
    tables: dict[tuple[int, ...], np.ndarray] = {}

    def after(text):
        if text not in tables:
            row = np.full(VOCAB, -np.inf, np.float32)
            row[[*letters, end]] = 2 * rng.standard_normal(len(letters) + 1)
            tables[text] = row
        return tables[text]

    def shares(text):
        row = after(text).astype(np.float64)
        return row - np.log(np.exp(row).sum())

    def texts(text=(), score=0.0):  # all, with their scores
        if len(text) == most:
            yield text, score
            return
        yield text, score + shares(text)[end]
        for letter in letters:
            yield from texts((*text, letter), score + shares(text)[letter])

    best = max(texts(), key=lambda t: t[1] / (len(t[0]) + 1))
    greedy: tuple[int, ...] = ()
    while len(greedy) < most and (token := int(after(greedy).argmax())) != end:
        greedy = (*greedy, token)
    with load(path) as model:
        held: dict[int, int] = {}  # the token of each cell

        def decode(tokens, positions, cells, seen):
            for token, position, cell, places in zip(tokens, positions, cells, seen, strict=True):
                assert places[-1] == cell and len(places) == position + 1
                held[cell] = token
            assert len(set(cells)) == len(cells)
            return np.stack([after(tuple(held[c] for c in places[1:])) for places in seen])

        model._s = replace(model._s, text_context=2 * most)
        model._cache = replace(model._cache, n_cells=1000)
        model._rules = lambda row, tokens: row
        model._decode = decode
        found = model._search(1, after(()), 200)
        assert found.tokens == best[0] and found.score == pytest.approx(best[1], abs=1e-4)
        held.clear()
        assert model._search(1, after(()), 1).tokens == greedy


@pytest.mark.parametrize("n", [1, 2, 17, 49, 50, 60])
def test_largest_values_are_those_of_a_stable_sort(n):
    """Many values are equal, and some are -inf."""
    rng = np.random.default_rng(n)
    for n_values in range(1, 8):
        x = rng.integers(0, n_values, 50).astype(np.float32)
        x[rng.random(50) < n_values / 8] = -np.inf
        sorted_indices = np.argsort(-x, kind="stable")[:n]
        assert _largest(x, n) == [i for i in sorted_indices if np.isfinite(x[i])]
    assert _largest(np.full(50, np.nan, np.float32), n) == []


def test_rules_of_times(path):
    """The first token is a timestamp up to one second. Timestamps come in pairs and never decrease."""
    rng, time = np.random.default_rng(3), Special.of(VOCAB).first_time
    with load(path) as model:
        for _ in range(20):
            tokens: list[int] = []
            for _ in range(25):
                logits = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
                logits[time:] += rng.choice([0, 6])
                allowed = model._rules(logits, tokens)
                token = int(allowed.argmax())
                assert np.isfinite(allowed[token])
                if token == 50256:
                    break
                tokens.append(token)
            assert time <= tokens[0] <= time + 50
            times = [t for t in tokens if t >= time]
            assert times == sorted(times)
            assert not any(50257 <= t < time for t in tokens)
            runs = "".join("t" if t >= time else "w" for t in tokens)
            assert "ttt" not in runs and not runs.startswith("tt")


def test_segments_have_the_times_of_their_tokens(path):
    time = Special.of(VOCAB).first_time
    with load(path) as model:
        tokens = [time, 10, 11, time + 100, time + 100, 12, time + 250]
        segments, used = model._segments(tokens, 30.0, 30.0)
        assert segments == [Segment(30.0, 32.0, PIECES[10] + PIECES[11]), Segment(32.0, 35.0, PIECES[12])]
        assert used == 30.0, "a single time at the end: nothing follows"
        assert model._segments([*tokens, time + 250], 30.0, 30.0)[1] == 5.0, "the next window begins there"
        assert model._segments([time, 10], 0.0, 8.0) == ([Segment(0.0, 8.0, PIECES[10])], 8.0)


def test_subtitles():
    found = Transcript("a b", (Segment(0.0, 1.5, " a"), Segment(3661.25, 3662.0, " b")), "en")
    assert found.srt() == "1\n00:00:00,000 --> 00:00:01,500\na\n\n2\n01:01:01,250 --> 01:01:02,000\nb\n"
    assert found.to_dict()["segments"][0] == {"start": 0.0, "end": 1.5, "text": " a"}


def test_special_tokens_follow_from_the_vocabulary():
    english, many, large = Special.of(51864), Special.of(51865), Special.of(51866)
    assert (english.end, english.start, english.no_timestamps, english.first_time) == (50256, 50257, 50362, 50363)
    assert (many.end, many.start, many.languages, many.first_time) == (50257, 50258, 50259, 50364)
    assert (large.n_languages, large.transcribe, large.first_time) == (100, 50360, 50365)
    assert len(LANGUAGES) == 100 and LANGUAGES[:3] == ("en", "zh", "de")


@pytest.mark.parametrize(
    ("audio", "options", "words"),
    [
        (np.zeros(0, np.float32), {}, "no samples"),
        (np.zeros((2, 100), np.float32), {}, "one axis"),
        (np.zeros(100, np.int16), {}, "floats between -1 and 1 with one axis, not int16"),
        (np.array(["a", "b"]), {}, "floats"),
        (np.full(100, np.nan, np.float32), {}, "no numbers"),
        (np.full(100, 1e300), {}, "too large for float32"),
        (np.zeros(100, np.float32), {"language": "xx"}, "language 'xx' is not known"),
        (np.zeros(100, np.float32), {"task": "sing"}, "task must be one of 'transcribe', 'translate', not 'sing'"),
        (np.zeros(100, np.float32), {"rate": 0}, "rate is 0: it must be from 100 to 768000"),
        (np.zeros(100, np.float32), {"rate": 2**70}, "rate is 1180591620717411303424"),
        (np.zeros(100, np.float32), {"beams": 17}, "beams is 17"),
    ],
)
def test_wrong_arguments_are_errors(path, audio, options, words):
    with load(path) as model, pytest.raises(gb.errors.InvalidArgumentError, match=words):
        model.transcribe(audio, **options)


def test_a_network_for_shorter_windows_is_an_error():
    keys = {f"whisper.{name}": value for name, value in sm.KEYS.items()} | {"whisper.encoder.context_length": 1499}
    shapes = replace(sm.SIZES, audio_context=1499).shapes()
    tensors = {name: np.empty(shape, np.float16) for name, shape in shapes.items()}
    with pytest.raises(gb.errors.FileError, match="context_length is 1499: it must be a whole number from 1500"):
        sm.Sizes.of(keys, tensors)


@pytest.mark.parametrize(
    ("audio", "options", "words"),
    [
        (3, {}, "audio must be a path, not int"),
        ([0.0, 0.5], {}, "audio must be a path, not list"),
        (np.zeros(100, np.float32), {"rate": 1.5}, "rate must be an int, not float"),
        (np.zeros(100, np.float32), {"language": 3}, "language must be a code such as 'en', not int"),
        (np.zeros(100, np.float32), {"progress": 3}, "progress must be a function, not int"),
    ],
)
def test_wrong_types_are_type_errors(path, audio, options, words):
    with load(path) as model, pytest.raises(TypeError, match=words):
        model.transcribe(audio, **options)


def whisper_cpp(path):
    """Writes a file in the format of whisper.cpp of early 2024."""

    def whole(*values):
        return struct.pack(f"<{len(values)}i", *values)

    of = {c: b for b, c in enumerate(_byte_characters())}
    parts = [
        b"lmgg",
        whole(VOCAB, 1500, E, HEADS, LAYERS, 448, E, HEADS, LAYERS, 80, 1),
        whole(80, 201),
        b"\0" * 80 * 201 * 4,
    ]
    parts.append(whole(len(PIECES)))
    for piece in PIECES:
        raw = bytes(of[c] for c in piece)
        parts += [whole(len(raw)), raw]
    for name, x in weights().items():
        half = x.ndim > 1 and "positional" not in name
        if "conv" in name and name.endswith("bias"):
            x = x[:, None]
        data = x.astype(np.float16 if half else np.float32)
        parts += [whole(x.ndim, len(name), int(half)), whole(*reversed(x.shape)), name.encode(), data.tobytes()]
    path.write_bytes(b"".join(parts))


def test_files_of_whisper_cpp_are_converted(path, tmp_path, capsys):
    whisper_cpp(tmp_path / "ggml-model.bin")
    assert main(["convert", str(tmp_path / "ggml-model.bin"), str(tmp_path / "made.gguf")]) == 0
    x = np.random.default_rng(4).standard_normal(16000).astype(np.float32)
    with load(path) as first, load(tmp_path / "made.gguf") as second:
        assert first.transcribe(x) == second.transcribe(x)
    data = (tmp_path / "ggml-model.bin").read_bytes()
    for n in (3, 20, 100, 70000, len(data) - 1):
        (tmp_path / "cut.bin").write_bytes(data[:n])
        assert main(["convert", str(tmp_path / "cut.bin"), str(tmp_path / "cut.gguf")]) == 1
        assert not (tmp_path / "cut.gguf").exists()
    assert "offset" in capsys.readouterr().err


def ctranslate2(folder):
    """Writes a folder in the format of CTranslate2: queries, keys and values are one matrix."""
    w, parts = weights(np.float16), []

    def add(name, x, code=4):
        raw, text = x.tobytes(), name.encode() + b"\0"
        shape = struct.pack(f"<B{x.ndim}I", x.ndim, *x.shape)
        parts.append(struct.pack("<H", len(text)) + text + shape + struct.pack("<BI", code, len(raw)) + raw)

    for half, last in (("encoder", "ln_post"), ("decoder", "ln")):
        add(f"{half}/num_heads", np.array(HEADS, np.int16), 2)
        add(f"{half}/position_encodings/encodings", w[f"{half}.positional_embedding"])
        for kind, part in (("gamma", "weight"), ("beta", "bias")):
            add(f"{half}/layer_norm/{kind}", w[f"{half}.{last}.{part}"])
        for i in range(LAYERS):
            for kind, part in (("weight", "weight"), ("bias", "bias")):

                def one(attention, name, i=i, part=part, half=half):
                    found = w.get(f"{half}.blocks.{i}.{attention}.{name}.{part}")
                    return np.zeros(E, np.float16) if found is None else found

                a = f"{half}/layer_{i}/self_attention"
                add(f"{a}/linear_0/{kind}", np.concatenate([one("attn", p) for p in ("query", "key", "value")]))
                add(f"{a}/linear_1/{kind}", one("attn", "out"))
                if half == "decoder":
                    a = f"{half}/layer_{i}/attention"
                    add(f"{a}/linear_0/{kind}", one("cross_attn", "query"))
                    add(f"{a}/linear_1/{kind}", np.concatenate([one("cross_attn", p) for p in ("key", "value")]))
                    add(f"{a}/linear_2/{kind}", one("cross_attn", "out"))
                for j, mlp in enumerate(("mlp.0", "mlp.2")):
                    add(f"{half}/layer_{i}/ffn/linear_{j}/{kind}", w[f"{half}.blocks.{i}.{mlp}.{part}"])
            norms = {
                "self_attention": "attn_ln",
                "ffn": "mlp_ln",
                **({"attention": "cross_attn_ln"} if half == "decoder" else {}),
            }
            for source, target in norms.items():
                for kind, part in (("gamma", "weight"), ("beta", "bias")):
                    add(f"{half}/layer_{i}/{source}/layer_norm/{kind}", w[f"{half}.blocks.{i}.{target}.{part}"])
    for name in ("conv1", "conv2"):
        add(f"encoder/{name}/weight", w[f"encoder.{name}.weight"])
        add(f"encoder/{name}/bias", w[f"encoder.{name}.bias"])
    add("decoder/embeddings/weight", w["decoder.token_embedding.weight"])
    head = struct.pack("<I", 6) + struct.pack("<H", 12) + b"WhisperSpec\0" + struct.pack("<II", 3, len(parts))
    (folder / "model.bin").write_bytes(head + b"".join(parts) + struct.pack("<I", 0))
    vocab = {
        "model": {"vocab": {p: i for i, p in enumerate(PIECES)}},
        "added_tokens": [{"content": "<|x|>", "id": len(PIECES)}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(vocab), encoding="utf-8")


def test_folders_of_ctranslate2_are_converted(path, tmp_path, capsys):
    ctranslate2(tmp_path)
    assert main(["convert", str(tmp_path), str(tmp_path / "made.gguf")]) == 0
    x = np.random.default_rng(4).standard_normal(16000).astype(np.float32)
    with load(path) as first, load(tmp_path / "made.gguf") as second:
        assert first.transcribe(x) == second.transcribe(x)
    (tmp_path / "tokenizer.json").unlink()
    assert main(["convert", str(tmp_path), str(tmp_path / "again.gguf")]) == 1
    assert "tokenizer.json" in capsys.readouterr().err


def transformers_folder(folder):
    """Writes the files that transformers would save. Returns the configuration."""
    parts = {
        "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj",
        "attn.out": "self_attn.out_proj", "attn_ln": "self_attn_layer_norm", "cross_attn.query": "encoder_attn.q_proj",
        "cross_attn.key": "encoder_attn.k_proj", "cross_attn.value": "encoder_attn.v_proj",
        "cross_attn.out": "encoder_attn.out_proj", "cross_attn_ln": "encoder_attn_layer_norm", "mlp.0": "fc1",
        "mlp.2": "fc2", "mlp_ln": "final_layer_norm",
    }  # fmt: skip
    whole = {"encoder.ln_post": "encoder.layer_norm", "decoder.ln": "decoder.layer_norm",
             "decoder.token_embedding": "decoder.embed_tokens"}  # fmt: skip
    made = {}
    for name, x in weights(np.float16).items():
        stem, _, kind = name.rpartition(".")
        if kind == "positional_embedding":
            name = f"{stem}.embed_positions.weight"
        elif ".blocks." in stem:
            half, _, number, part = stem.split(".", 3)
            name = f"{half}.layers.{number}.{parts[part]}.{kind}"
        else:
            name = f"{whole.get(stem, stem)}.{kind}"
        made[f"model.{name}"] = x
    safetensors.save_file(made, folder / "model.safetensors")
    config = {
        "model_type": "whisper", "vocab_size": VOCAB, "d_model": E, "encoder_attention_heads": HEADS,
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "num_mel_bins": 80, "max_source_positions": 1500,
        "max_target_positions": 448, "suppress_tokens": [3, 4],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {"model": {"vocab": {p: i for i, p in enumerate(PIECES)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocab), encoding="utf-8")
    return config


def test_folders_of_transformers_are_converted(path, tmp_path, capsys):
    config = transformers_folder(tmp_path)
    assert main(["convert", str(tmp_path), str(tmp_path / "made.gguf"), "--quiet"]) == 0
    with gb.gguf.open(path) as first, gb.gguf.open(tmp_path / "made.gguf") as second:
        assert {*first.tensors} == {*second.tensors}
        for name, tensor in first.tensors.items():
            np.testing.assert_array_equal(tensor.numpy(), second.tensors[name].numpy().astype(np.float32))
        assert second.metadata["whisper.suppress_tokens"].tolist() == [3, 4]
    assert load(tmp_path / "made.gguf").transcribe(np.zeros(1600, np.float32)).language == "en"
    assert main(["convert", str(tmp_path), str(tmp_path / "small.gguf"), "--quiet", "--type", "Q8_0"]) == 0
    with gb.gguf.open(tmp_path / "small.gguf") as file:
        assert file.tensors["encoder.blocks.0.mlp.0.weight"].dtype.name == "q8_0"
    assert load(tmp_path / "small.gguf").transcribe(np.zeros(1600, np.float32)).language == "en"
    capsys.readouterr()
    for key in config:
        for value in (None, 0, -1, "x", [], 2**40):
            bad = {k: v for k, v in {**config, key: value}.items() if v is not None}
            (tmp_path / "config.json").write_text(json.dumps(bad))
            status = main(["convert", str(tmp_path), str(tmp_path / "bad.gguf"), "--quiet"])
            err = capsys.readouterr().err
            if status == 0:  # sizes that only the network checks
                with pytest.raises(gb.errors.FileError) if key != "suppress_tokens" else nullcontext():
                    load(tmp_path / "bad.gguf")
            else:
                assert status == 1 and len(err.splitlines()) == 1 and "Error" not in err, err
                assert not (tmp_path / "bad.gguf").exists()
            (tmp_path / "bad.gguf").unlink(missing_ok=True)
