"""Every command on bad input: one sentence on stderr, status 1 (failure) or 2 (wrong use), and nothing printed half.

The tables below have a row for each command and each action of ``gguf``. A command without a row fails a test.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
import small_whisper
from ggml_backend.cli import COMMANDS, main
from ggml_backend.cli.gguf import ACTIONS

Run = Callable[..., tuple[int, str, str]]

# ---------------------------------------------------------------------------------------------------------------- files

CLUSTER = {
    "devices": {"server": {"memory": "64 GiB", "bandwidth": "200 GB/s", "flops": "2 TFLOP/s"}},
    "hosts": [{"name": "a", "count": 2, "devices": ["server"]}],
    "links": [{"between": ["*", "*"], "latency": "5 us", "bandwidth": "25 GB/s"}],
}


def damaged(good: bytes) -> dict[str, bytes]:
    """Files that no reader of GGUF may accept."""
    head = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k"
    return {
        "empty.gguf": b"",
        "text.gguf": b"Once upon a time, there was no model.\n" * 40,
        "noise.gguf": np.random.default_rng(0).bytes(5000),
        "magic.gguf": b"GGUF",
        "future.gguf": b"GGUF" + struct.pack("<I", 99) + bytes(100),
        "swapped.gguf": b"GGUF" + struct.pack(">I", 3) + bytes(100),
        "head.gguf": good[:500],
        "cut.gguf": good[:-5000],
        "tensors.gguf": head + struct.pack("<QQ", 2**60, 0) + bytes(1000),
        "keys.gguf": head + struct.pack("<QQ", 0, 2**60) + bytes(1000),
        "name.gguf": head + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62) + bytes(1000),
        "array.gguf": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 4, 2**61) + bytes(1000),
        "nested.gguf": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<I", 9)
                       + struct.pack("<IQ", 9, 1) * 5000 + bytes(1000),
        "kind.gguf": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<I", 77) + bytes(1000),
        "axes.gguf": head + struct.pack("<QQ", 1, 0) + key + struct.pack("<I", 10**6) + bytes(1000),
        "shape.gguf": head + struct.pack("<QQ", 1, 0) + key + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0)
                      + bytes(1000),
        "type.gguf": head + struct.pack("<QQ", 1, 0) + key + struct.pack("<IQIQ", 1, 32, 4444, 0) + bytes(1000),
        "place.gguf": head + struct.pack("<QQ", 1, 0) + key + struct.pack("<IQIQ", 1, 32, 0, 2**60) + bytes(1000),
    }  # fmt: skip


DAMAGED = [*damaged(bytes(9000)), "absent.gguf", "folder.gguf"]

WRONG_MODELS = {
    "nameless.gguf": (None, "does not say"), "number.gguf": ("number", "'7' is not known"),
    "starling.gguf": ("starling", "'starling' is not known. Known are bert"),
    "escape.gguf": ("\x1b[31mllama", "is not known"),
}  # fmt: skip
"""Files that are valid, and hold no model that the package knows: the value of general.architecture, the message."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("bad")
    sm.write(folder / "good.gguf", sm.SMALL["llama"])
    sm.write_encoder(folder / "bert.gguf")
    small_whisper.write_whisper(folder / "whisper.gguf")
    for name, data in damaged((folder / "good.gguf").read_bytes()).items():
        (folder / name).write_bytes(data)
    (folder / "folder.gguf").mkdir()
    for name, (architecture, _) in WRONG_MODELS.items():
        value = 7 if architecture == "number" else architecture
        sm.write(folder / name, sm.SMALL["llama"], general__architecture=value)
    (folder / "cluster.json").write_text(json.dumps(CLUSTER))
    (folder / "texts.txt").write_text("a cat\nthe mat\n", encoding="utf-8")
    with wave.open(str(folder / "speech.wav"), "wb") as audio:
        audio.setparams((1, 2, 16000, 0, "NONE", ""))
        audio.writeframes(bytes(3200))
    for name, data in {**AUDIO, **TEXTS}.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
        try:
            status: Any = main([str(a) for a in arguments])
        except SystemExit as end:
            status = end.code
        assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before, "a file was left or changed"
        found = capsys.readouterr()
        return int(status), found.out, found.err

    return command


def refused(found: tuple[int, str, str], status: int = 1, word: str = "") -> None:
    """One sentence, and no word of Python's."""
    got, out, err = found
    assert got == status and word in err, found
    assert out == "" and "Traceback" not in err, found
    *usage, last = err.splitlines()
    assert bool(usage) == (status == 2), err
    assert ": error: " in last and all(c.isprintable() for c in last), err
    for python in ("Error:", "NoneType", "<class", "object at 0x", "dict object", "b'", "PosixPath"):
        assert python not in last, err


# ----------------------------------------------------------------------------------------------------- damaged models

# F stands for the file. The output of a command is out.gguf.
OF_MODELS = {
    "chat": "chat F Hello", "generate": "generate F Once", "transcribe": "transcribe F speech.wav",
    "embed": "embed F texts.txt", "imatrix": "imatrix F texts.txt --out out.gguf", "plan": "plan F",
    "plan --cluster": "plan F --cluster cluster.json", "bench": "bench F --rounds 1", "profile": "profile F",
}  # fmt: skip
"""Commands that run or plan a network."""

OF_FILES = {
    "quantize": "quantize F out.gguf Q8_0", "gguf info": "gguf info F", "gguf dump": "gguf dump F",
    "gguf check": "gguf check F", "gguf quantize": "gguf quantize F out.gguf --type q8_0",
    "gguf set": "gguf set F out.gguf general.name=x", "gguf rename": "gguf rename F out.gguf a=b",
    "gguf diff": "gguf diff F good.gguf", "gguf convert": "gguf convert F out.gguf",
    "convert": "convert F out.gguf", "quantize --imatrix": "quantize good.gguf out.gguf Q8_0 --imatrix F",
}  # fmt: skip
"""Commands that read a file of any content."""

OF_NO_FILE = {"info", "calibrate", "check-device", "cluster", "completion", "gguf"}
"""Commands without an input file. ``gguf`` has actions."""


def test_every_command_has_a_row() -> None:
    rows = {name.partition(" --")[0] for name in (*OF_MODELS, *OF_FILES)}
    assert rows == {*COMMANDS, *(f"gguf {action}" for action in ACTIONS)} - OF_NO_FILE
    assert {arguments.split()[0] for arguments, _ in WRONG_USE} == {*COMMANDS}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("command", {**OF_MODELS, **OF_FILES}.values())
def test_damaged_files_are_refused(run: Run, command: str, name: str) -> None:
    refused(run(*[name if word == "F" else word for word in command.split()]), word=name.partition(".")[0])


@pytest.mark.parametrize("name", WRONG_MODELS)
@pytest.mark.parametrize("command", OF_MODELS.values())
def test_files_of_other_networks_are_refused(run: Run, command: str, name: str) -> None:
    refused(run(*[name if word == "F" else word for word in command.split()]), word=WRONG_MODELS[name][1])


@pytest.mark.parametrize(
    ("command", "name"),
    [(command, name) for kind, command in OF_MODELS.items() for name in ("good.gguf", "bert.gguf", "whisper.gguf")
     if kind in {"good.gguf": ("embed", "transcribe"), "bert.gguf": ("chat", "generate", "transcribe", "imatrix",
                 "plan --cluster"), "whisper.gguf": ("chat", "generate", "embed", "imatrix", "plan --cluster")}[name]],
)  # fmt: skip
def test_models_of_another_kind_are_refused(run: Run, command: str, name: str) -> None:
    refused(run(*[name if word == "F" else word for word in command.split()]))


WRONG_VALUES = [None, -1, 0, 1, 3, 1.5, 2**40, 2**63, float("nan"), "x", "", [1], ["x"], [[1]], True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"),
    [("good.gguf", "generate F Once -n 2 --quiet"), ("bert.gguf", "embed F texts.txt"),
     ("whisper.gguf", "transcribe F speech.wav")],
)  # fmt: skip
def test_files_with_any_wrong_value_are_refused_or_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    """Each key in turn gets each wrong value."""
    bad, n_refused = tmp_path / "bad.gguf", 0
    words = [str(bad) if word == "F" else str(folder / word) if "." in word else word for word in command.split()]
    with gb.gguf.open(folder / name) as file:
        keys = [*file.metadata, "general.alignment"]
        if name == "whisper.gguf":
            keys.append("whisper.suppress_tokens")
        for key in keys:
            for value in WRONG_VALUES:
                try:
                    with gb.gguf.Writer(bad) as writer:
                        writer.copy_from(file, keys=[k for k in file.metadata if k != key], tensors=False)
                        if value is not None:
                            writer.add(key, value)
                        writer.copy_from(file, keys=False)
                except (gb.GgmlError, TypeError):
                    continue  # such a file cannot be written
                status = main(words)
                found = capsys.readouterr()
                if status != 0:
                    refused((status, "", found.err))
                    n_refused += 1
    assert n_refused > 40


# ------------------------------------------------------------------------------------------------- audio, texts, usage


def wav(form: bytes, data: bytes, size: int | None = None) -> bytes:
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def pcm(code: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16) -> bytes:
    return struct.pack("<HHIIHH", code, channels, rate, 32000, 2, bits)


AUDIO = {
    "empty.wav": b"", "text.wav": b"Hello " * 100, "mp3.wav": b"ID3\x04" + bytes(500), "head.wav": wav(pcm(), b"")[:20],
    "nodata.wav": wav(pcm(), b"")[:-8], "none.wav": wav(pcm(), b""), "cut.wav": wav(pcm(), bytes(100), 5000),
    "channels.wav": wav(pcm(channels=0), bytes(100)), "many.wav": wav(pcm(channels=60000), bytes(100)),
    "slow.wav": wav(pcm(rate=1), bytes(100)), "fast.wav": wav(pcm(rate=2**32 - 1), bytes(100)),
    "bits.wav": wav(pcm(bits=13), bytes(100)), "adpcm.wav": wav(pcm(code=2), bytes(100)),
    "nan.wav": wav(pcm(code=3, bits=32), np.full(100, np.nan, np.float32).tobytes()),
    "short.wav": wav(b"\1", bytes(100)),
}  # fmt: skip
TEXTS = {"empty.txt": b"", "spaces.txt": b" \n\t\n", "latin.txt": b"caf\xe9 \xff\xfe", "zeros.txt": bytes(100)}


@pytest.mark.parametrize("name", [*AUDIO, "absent.wav", "folder.gguf", "good.gguf"])
def test_audio_that_is_none_is_refused(run: Run, name: str) -> None:
    refused(run("transcribe", "whisper.gguf", name))


@pytest.mark.parametrize(
    ("command", "names"),
    [("embed bert.gguf F", [*TEXTS]), ("imatrix good.gguf F --out out.gguf", ["empty.txt", "spaces.txt", "latin.txt"]),
     ("generate good.gguf --file F", ["empty.txt", "latin.txt"])],
)  # fmt: skip
def test_texts_that_are_none_are_refused(run: Run, command: str, names: list[str]) -> None:
    for name in (*names, "absent.txt", "folder.gguf", "good.gguf"):
        refused(run(*[name if word == "F" else word for word in command.split()]))


TEMPLATES = {
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "takes",
    "{{ 'a' * 10**10 }}": "memory",
    "{% for m in messages %}": "line 1",
    "{{ messages.nothing.at_all }}": "fails",
    "{{ messages.__class__ }}": "fails",
    "{{ raise_exception('roles must alternate') }}": "refuses the messages: roles must alternate",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_bad_templates_are_refused(run: Run, folder: Path, template: str) -> None:
    sm.write(folder / "template.gguf", sm.SMALL["llama"], tokenizer__chat_template=template)
    refused(run("chat", "template.gguf", "Hello"))


WRONG_USE = [
    ("chat", "MODEL.gguf"), ("chat good.gguf x --n-ctx 0", "--n-ctx"), ("chat good.gguf x --threads -1", "--threads"),
    ("chat good.gguf x --temperature -1", "--temperature is -1"), ("chat good.gguf x --max-tokens 0", "--max-tokens"),
    ("chat good.gguf x --temperature inf", "finite"), ("chat good.gguf x --temperature nan", "--temperature is nan"),
    ("chat good.gguf x --top-k -1", "--top-k is -1"), ("chat good.gguf x --top-p 2", "--top-p is 2"),
    ("chat good.gguf x --min-p 2", "--min-p is 2"), ("chat good.gguf x --repeat-penalty 0", "--repeat-penalty is 0"),
    ("chat good.gguf x --seed -1", "--seed is -1"), ("chat good.gguf x --precision f64", "--precision"),
    ("generate good.gguf", "give either a prompt or --file"), ("generate good.gguf x --file texts.txt", "either"),
    ("generate good.gguf x --seed x", "--seed"), ("transcribe whisper.gguf", "AUDIO.wav"),
    ("transcribe whisper.gguf speech.wav --beams 17", "--beams"), ("embed bert.gguf", "TEXTS"),
    ("embed bert.gguf texts.txt --batch-size 0", "--batch-size"),
    ("embed bert.gguf texts.txt --pooling max", "--pooling"), ("quantize good.gguf out.gguf", "TYPE"),
    ("quantize good.gguf out.gguf Q8_0 --max-shard x", "--max-shard"), ("convert good.gguf", "MODEL.gguf"),
    ("imatrix good.gguf texts.txt", "--out"), ("imatrix good.gguf texts.txt --out out.gguf --chunk 1", "--chunk"),
    ("info --wrong", "--wrong"), ("gguf", "action"), ("gguf dump", "file"), ("plan", "FILE.csv"),
    ("plan good.gguf --align 2", "--align"), ("plan good.gguf --sequences 2", "--cluster"), ("calibrate --size x", "x"),
    ("check-device", "NAME"), ("cluster", "action"), ("profile", "SCRIPT"), ("bench nothing", "nothing"),
    ("completion cmd", "cmd"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "word"), WRONG_USE)
def test_wrong_use_shows_the_usage(run: Run, arguments: str, word: str) -> None:
    found = run(*arguments.split())
    assert found[2].startswith("usage: ")
    refused(found, 2, word)


FAILURES = [
    ("chat good.gguf x --n-ctx 100000", "n_ctx is 100000"), ("chat good.gguf x --devices NONE", "no backend 'NONE'"),
    ("chat good.gguf x --devices ,", "backend"), ("chat good.gguf x --import no_such_module", "no_such_module"),
    ("transcribe whisper.gguf speech.wav --language xx", "'xx' is not known"),
    ("transcribe whisper.gguf speech.wav --translate", "cannot translate"),
    ("embed bert.gguf texts.txt --n-ctx 1", "n_ctx is 1"),
    ("embed bert.gguf texts.txt --out none/vectors.npy", "none/vectors.npy"),
    ("quantize good.gguf good.gguf Q8_0", "is the input"), ("quantize good.gguf out.gguf Q9_9", "Q9_9"),
    ("quantize good.gguf none/out.gguf Q8_0", "none/out.gguf"),
    ("imatrix good.gguf texts.txt --out none/out.gguf", "none/out.gguf"),
    ("plan good.gguf --cluster texts.txt", "texts.txt"), ("plan good.gguf --context 0", "--context is 0"),
    ("bench good.gguf --prompt 9000 --rounds 1", "do not fit"), ("profile good.gguf more", "no arguments"),
    ("check-device NONE", "NONE"), ("calibrate NONE", "NONE"), ("cluster run absent.py", "absent.py"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "word"), FAILURES)
def test_what_cannot_work_is_an_error(run: Run, arguments: str, word: str) -> None:
    refused(run(*arguments.split()), 1, word)


# ---------------------------------------------------------------------------------------------- folders of transformers


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder of transformers with a small Llama."""
    safetensors = pytest.importorskip("safetensors.numpy")
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    shapes = {"embed_tokens": (8, 64), "norm": (64,)}
    parts = {"input_layernorm": (64,), "post_attention_layernorm": (64,), "self_attn.q_proj": (64, 64),
             "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
             "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}  # fmt: skip
    shapes |= {f"layers.0.{name}": shape for name, shape in parts.items()}
    tokenizer = {
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate("abcdef")}, "merges": ["a b"]},
        "pre_tokenizer": {"type": "ByteLevel"}, "added_tokens": [{"content": "<s>", "id": 6, "special": True}],
    }  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {f"model.{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    for name, value in {"config": config, "tokenizer": tokenizer, "tokenizer_config": {"bos_token": "<s>"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


WRONG_JSON = [None, -1, 0, 3, 1.5, 2**70, 1e400, "x", "", [], [1], {}, {"a": None}, True]


def paths_of(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [*([path] if path else []), *(p for key, value in inner for p in paths_of(value, (*path, key)))]


@pytest.mark.parametrize("name", ["config", "tokenizer", "tokenizer_config"])
def test_folders_with_any_wrong_value_are_refused_or_converted(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    from damage import replaced

    out, file = tmp_path / "out.gguf", llama / f"{name}.json"
    good = json.loads(file.read_text())
    assert main(["convert", str(llama), str(out), "--quiet"]) == 0
    out.unlink()
    capsys.readouterr()
    n_refused = 0
    for path in paths_of(good):
        for value in WRONG_JSON:
            file.write_text(json.dumps(replaced(good, path, value)).replace("Infinity", "1e400"))
            status = main(["convert", str(llama), str(out), "--quiet"])
            found = capsys.readouterr()
            if status != 0:
                refused((status, "", found.err))
                assert not out.exists(), (path, value)
                n_refused += 1
            out.unlink(missing_ok=True)
    assert n_refused > (0 if name == "tokenizer_config" else 40)


def test_the_error_of_an_unknown_model_type_lists_all_known_ones(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (llama / "config.json").write_text('{"model_type": "starling"}')
    status = main(["convert", str(llama), str(tmp_path / "out.gguf")])
    refused((status, *capsys.readouterr()), word="modernbert, whisper")


def test_folders_that_lack_a_file_are_refused(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        data = (llama / name).read_bytes()
        for bad in (None, b"", b"{", b"[]", data[: len(data) // 2]):
            (llama / name).unlink() if bad is None else (llama / name).write_bytes(bad)
            status = main(["convert", str(llama), str(out)])
            refused((status, *capsys.readouterr()))
            assert not out.exists()
        (llama / name).write_bytes(data)
    assert main(["convert", str(llama), str(out)]) == 0
    with gb.gguf.open(out) as file:
        assert file.metadata["general.architecture"] == "llama"
