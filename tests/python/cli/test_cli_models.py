"""Commands on whole models and their files."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import wave

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
import small_whisper
from ggml_backend.cli import main
from ggml_backend.models import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sm.write(folder / "llama.gguf", sm.SMALL["llama"])
    sm.write(folder / "experts.gguf", sm.SMALL["qwen3moe"])
    sm.write_encoder(folder / "bert.gguf")
    small_whisper.write_whisper(folder / "whisper.gguf")
    loop = "{% for i in range(99999999) %}{% for j in range(99999999) %}{% endfor %}{% endfor %}"
    sm.write(folder / "endless.gguf", sm.SMALL["llama"], tokenizer__chat_template=loop)
    sm.write(folder / "unknown.gguf", sm.SMALL["llama"], general__architecture="starling")
    sm.write(folder / "no-template.gguf", sm.SMALL["llama"], tokenizer__chat_template=None)
    sm.write(folder / "no-layers.gguf", sm.SMALL["llama"], llama__block_count=None)
    (folder / "cut.gguf").write_bytes((folder / "llama.gguf").read_bytes()[:-100])
    (folder / "empty.wav").touch()
    (folder / "cut.wav").write_bytes(b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00")
    with wave.open(str(folder / "silent.wav"), "wb") as audio:
        audio.setparams((1, 2, 16000, 0, "NONE", ""))
    with wave.open(str(folder / "whole.wav"), "wb") as audio:
        audio.setparams((1, 2, 16000, 0, "NONE", ""))
        audio.writeframes(bytes(2000))
    (folder / "short.wav").write_bytes((folder / "whole.wav").read_bytes()[:1000])
    (folder / "texts.txt").write_text("a cat sits on the mat.\n\nthe kitten lies\ncats\n", encoding="utf-8")
    (folder / "long.txt").write_text("".join(sm.PIECES[32 + i * 7 % 64] for i in range(300)), encoding="utf-8")
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    def command(*arguments, stdin=""):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = main([str(a) for a in arguments])
        out = capsys.readouterr()
        return status, out.out, out.err

    return command


PROMPT = "".join(sm.PIECES[40:50])


def test_generate_prints_what_the_model_writes(run, folder):
    with load(folder / "llama.gguf") as model:
        expected = "".join(model.generate(PROMPT, max_tokens=6))
    status, out, err = run("generate", "llama.gguf", PROMPT, "--max-tokens", 6)
    assert (status, out) == (0, expected + "\n")
    assert "tokens/s" in err
    assert re.search(
        r"; planned [\d.]+ [KM]iB \(weights .*, cache .*, compute .*\), the whole process \d+.* at most$", err
    )
    (folder / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    assert run("generate", "llama.gguf", "--file", "prompt.txt", "-n", 6, "--quiet") == (0, expected + "\n", "")
    assert run("generate", "llama.gguf", "--file", "-", "-n", 6, "--quiet", stdin=PROMPT)[1] == expected + "\n"
    assert run("generate", "llama.gguf", PROMPT, "-n", 6, "--stop", expected[2])[1] == expected[:2] + "\n"
    assert run("generate", "llama.gguf", PROMPT, "-n", 6, "--devices", "SIM:mem=64M,name=X,CPU")[1] == expected + "\n"


def test_chat_answers_one_question_or_many(run, folder):
    with load(folder / "llama.gguf") as model:
        messages = [{"role": "user", "content": PROMPT}]
        first = "".join(model.chat(messages, max_tokens=5))
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": PROMPT[::-1]}]
        second = "".join(model.chat(messages, max_tokens=5))
    assert run("chat", "llama.gguf", PROMPT, "-n", 5)[:2] == (0, first + "\n")
    found = run("chat", "llama.gguf", "-n", 5, stdin=f"{PROMPT}\n\n{PROMPT[::-1]}\n")
    assert found[:2] == (0, f"{first}\n{second}\n")
    assert run("chat", "llama.gguf", PROMPT, "-n", 5, "--system", PROMPT[:3])[1] != first + "\n"


def test_embed_writes_vectors_or_shows_similarities(run, folder):
    status, _, err = run("embed", "bert.gguf", "texts.txt", "--out", "vectors.npy")
    assert (status, err) == (0, "3 vectors of 32 dimensions in vectors.npy\n")
    with load(folder / "bert.gguf") as model:
        expected = model.embed(["a cat sits on the mat.", "the kitten lies", "cats"])
    np.testing.assert_allclose(np.load(folder / "vectors.npy"), expected, atol=1e-6)
    status, out, _ = run("embed", "bert.gguf", "-", "--pooling", "cls", stdin="a cat\nthe mat\n")
    assert status == 0 and "1.00" in out and "the mat" in out


def test_embed_says_that_it_cuts_texts(run):
    status, out, err = run("embed", "bert.gguf", "-", "--n-ctx", 8, stdin="a cat\n" + "the mat " * 9 + "\n")
    assert status == 0 and len(out.splitlines()) == 3
    warning = "1 of 2 texts has more than 8 tokens (n_ctx): the rest is cut off"
    assert err == f"python -m ggml_backend embed: warning: {warning}\n"


def test_quantize_takes_a_mixture_or_a_format(run, folder):
    status, out, _ = run("quantize", "llama.gguf", "small.gguf", "Q8_0", "--quiet")
    assert status == 0 and "44 q8_0" in out
    with gb.gguf.open(folder / "small.gguf") as file:
        assert file.tensors["blk.0.attn_q.weight"].dtype.name == "q8_0"
        assert file.metadata["general.file_type"] == 7
    assert "".join(load(folder / "small.gguf").generate(PROMPT, max_tokens=3))
    status, out, _ = run("quantize", "experts.gguf", "mixed.gguf", "q4_K_M", "--quiet")
    assert status == 0 and "attn_v.weight in half of the layers" in out and "small" in out
    with gb.gguf.open(folder / "mixed.gguf") as file:
        assert file.metadata["general.file_type"] == 15
        assert file.tensors["blk.0.ffn_gate_inp.weight"].dtype.name == "float32"


def test_importances_are_squares_of_the_inputs_of_matrices(run, folder):
    assert run("imatrix", "experts.gguf", "long.txt", "--out", "imatrix.gguf", "--chunk", 64)[0] == 0
    with gb.gguf.open(folder / "imatrix.gguf") as file:
        assert file.metadata["imatrix.chunk_count"] == 5
        counts = file.tensors["blk.0.ffn_up_exps.weight.counts"].numpy()
        assert counts.shape == (sm.EXPERTS, 1) and counts.sum() == 300 * sm.USED
        assert file.tensors["blk.0.attn_q.weight.counts"].numpy() == 300
        sums = file.tensors["blk.0.attn_q.weight.in_sum2"].numpy()[0]
    w = sm.weights_of(sm.SMALL["qwen3moe"])
    ids = [sm.PIECES.index(c) for c in (folder / "long.txt").read_text(encoding="utf-8")]
    rows = sm.rms(w["token_embd.weight"][ids].astype(np.float64), w["blk.0.attn_norm.weight"])
    np.testing.assert_allclose(sums, (rows**2).sum(0), rtol=1e-4)
    status, out, _ = run("quantize", "experts.gguf", "mixed.gguf", "Q4_K_M", "--imatrix", "imatrix.gguf", "--quiet")
    assert status == 0 and "1 of 44 tensors have no importances" in out, "the embedding multiplies nothing"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("chat",), 2, "MODEL.gguf"),
        (("generate", "llama.gguf"), 2, "give either a prompt or --file"),
        (("generate", "llama.gguf", "x", "--temperature", "-1"), 2, "--temperature is -1"),
        (("generate", "llama.gguf", "x", "--top-p", "7"), 2, "--top-p is 7"),
        (("generate", "llama.gguf", "x", "-n", "0"), 2, "0 is not from 1"),
        (("generate", "missing.gguf", "x"), 1, "missing.gguf"),
        (("generate", "bert.gguf", "x"), 1, "'bert' is an embedding model: use ggml-backend embed"),
        (("embed", "llama.gguf", "texts.txt"), 1, "'llama' is a language model: use ggml-backend chat or generate"),
        (("chat", "whisper.gguf", "x"), 1, "'whisper' is a speech model: use ggml-backend transcribe"),
        (("embed", "whisper.gguf", "texts.txt"), 1, "use ggml-backend transcribe"),
        (("chat", "llama.gguf", "x", "--stop", ""), 2, "argument --stop: the text is empty"),
        (("generate", "llama.gguf", "x", "--stop", ""), 2, "argument --stop: the text is empty"),
        (("generate", "texts.txt", "x"), 1, "texts.txt"),
        (("generate", "llama.gguf", "x", "--devices", "NONE"), 1, "no backend 'NONE'"),
        (("generate", "llama.gguf", "x", "--n-ctx", "100000"), 1, "n_ctx is 100000"),
        (("generate", "llama.gguf", "--file", "llama.gguf"), 1, "GGUF file"),
        (("generate", "llama.gguf", PROMPT * 60, "--n-ctx", "64"), 1, "600 tokens, the context 64"),
        (("embed", "bert.gguf", "nothing.txt"), 1, "nothing.txt"),
        (("chat", "endless.gguf", PROMPT), 1, "chat template of the file fails"),
        (("chat", "no-template.gguf", PROMPT), 1, "no chat template"),
        (("chat", "llama.gguf", PROMPT * 60, "--n-ctx", "64"), 1, "larger n_ctx (option --n-ctx), at most the model's"),
        (("chat", "llama.gguf", PROMPT * 900), 1, "n_ctx (option --n-ctx) cannot exceed the context of"),
        (("generate", "unknown.gguf", PROMPT), 1, "known. Known are bert, gemma2"),
        (("plan", "unknown.gguf"), 1, "Add an architecture"),
        (("bench", "unknown.gguf"), 1, "Add an architecture"),
        (("generate", "no-layers.gguf", PROMPT), 1, "no key llama.block_count"),
        (("generate", "cut.gguf", PROMPT), 1, "cut.gguf"),
        (("transcribe", "whisper.gguf", "texts.txt"), 1, "texts.txt"),
        (("transcribe", "whisper.gguf", "empty.wav"), 1, "empty.wav"),
        (("transcribe", "whisper.gguf", "cut.wav"), 1, "cut.wav"),
        (("transcribe", "whisper.gguf", "silent.wav"), 1, "no samples"),
        (("transcribe", "whisper.gguf", "missing.wav"), 1, "missing.wav"),
        (("transcribe", "whisper.gguf", "empty.wav", "--beams", "0"), 2, "--beams"),
        (("transcribe", "llama.gguf", "empty.wav"), 1, "'llama' is a language model: use ggml-backend chat"),
        (("transcribe", "bert.gguf", "empty.wav"), 1, "'bert' is an embedding model: use ggml-backend embed"),
        (("transcribe", "whisper.gguf", "short.wav"), 1, "promises 2000 bytes of data, 956 are there"),
        (("transcribe", "whisper.gguf", "whole.wav", "--translate"), 1, "cannot translate: it knows only English"),
        (("transcribe", "whisper.gguf", "whole.wav", "--language", "de"), 1, "known are en"),
        (("plan", "llama.gguf", "--context", "1000000"), 1, "--context is 1000000: this model takes 1 to "),
        (("plan", "llama.gguf", "--context", "0"), 1, "--context is 0: this model takes 1 to "),
        (("imatrix", "llama.gguf", "texts.txt"), 2, "--out"),
        (("quantize", "llama.gguf", "small.gguf"), 2, "TYPE"),
        (("quantize", "llama.gguf", "small.gguf", "Q9_9"), 1, "Q9_9"),
        (("quantize", "llama.gguf", "small.gguf", "Q4_K_X"), 1, "did you mean 'q4_k_s' or 'q4_k_m' or 'q4_k'?"),
        (("quantize", "llama.gguf", "small.gguf", "fp16"), 1, "it is called float16"),
        (("quantize", "llama.gguf", "small.gguf", "zz"), 1, "no format or mixture 'zz'; known are float32, float16"),
        (("quantize", "llama.gguf", "small.gguf", "Q8_1"), 1, "q8_1 is a format for activations, not for weights"),
        (("gguf", "quantize", "llama.gguf", "small.gguf", "--tensor-type", "*=q8_k"), 1, "format for activations"),
        (("gguf", "quantize", "llama.gguf", "small.gguf", "--tensor-type", "*=i32"), 1, "not a format of floats"),
        (("quantize", "llama.gguf", "missing/q.gguf", "Q8_0"), 1, "missing/q.gguf: No such file or directory"),
        (("quantize", "llama.gguf", ".", "Q8_0"), 1, ".: Is a directory"),
        (("quantize", "llama.gguf", "missing/q.gguf", "Q8_0", "--max-shard", "100K"), 1, "No such file or directory"),
    ],
)
def test_each_error_is_one_line(run, arguments, status, words):
    found, out, err = run(*arguments)
    assert found == status and words in err and "Traceback" not in err
    assert out == ""
    assert len(err.splitlines()) == 1 or status == 2


def test_a_chat_without_questions_prints_nothing(run):
    assert run("chat", "llama.gguf") == (0, "", "")
    assert run("chat", "llama.gguf", stdin="\n \n") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "closed", "words"),
    [
        (("chat", "llama.gguf"), "<&-", "the standard input is closed: give your question as an argument"),
        (("embed", "bert.gguf", "-"), "<&-", "the standard input is closed: give the name of a file in place of -"),
        (("generate", "llama.gguf", "--file", "-"), "<&-", "the standard input is closed"),
        (("generate", "llama.gguf", "x"), ">&-", "the standard output is closed: the result would be lost"),
        (("chat", "llama.gguf", "x"), ">&-", "the standard output is closed"),
        (("embed", "bert.gguf", "texts.txt"), ">&-", "the standard output is closed"),
        (("transcribe", "whisper.gguf", "whole.wav"), ">&-", "the standard output is closed"),
    ],
)
def test_a_closed_stream_is_an_error_of_one_line(folder, arguments, closed, words):
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "ggml_backend", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_commands_that_write_a_file_need_no_stdout(folder):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ggml_backend"]
    command += ["embed", "bert.gguf", "texts.txt", "--out", "closed.npy"]
    assert subprocess.run(command, cwd=folder, timeout=120, check=False).returncode == 0
    assert np.load(folder / "closed.npy").shape == (3, 32)


def test_terminals_get_line_breaks_but_no_other_control_characters(monkeypatch):
    from ggml_backend.cli import _models

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert _models.visible("a\x1b[2J\nb") == "a\\x1b[2J\nb"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_pieces_with_escape_sequences_do_not_reach_a_terminal(run, folder, monkeypatch, command):
    title = "\x1b]0;title\x07"
    pieces = [*sm.PIECES[:50], *(title + piece for piece in sm.PIECES[50:])]
    sm.write(folder / "title.gguf", sm.SMALL["llama"], tokenizer__ggml__tokens=pieces)
    assert title in run(command, "title.gguf", PROMPT, "-n", 12)[1]  # a file gets what the model wrote
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    status, out, err = run(command, "title.gguf", PROMPT, "-n", 12)
    assert status == 0 and "\\x1b]0;title\\x07" in out
    assert "\x1b" not in out + err and "\x07" not in out + err


def test_set_changes_keys_and_keeps_their_types(run, folder):
    assert run("gguf", "set", "bert.gguf", "new.gguf", "general.name=7", "bert.pooling_type=2", "x.y=[1,2]",
               "--remove", "bert.feed_forward_length")[0] == 0  # fmt: skip
    with gb.gguf.open(folder / "new.gguf") as file:
        assert file.metadata["general.name"] == "7" and file.metadata["bert.pooling_type"] == 2
        assert file.metadata["x.y"].tolist() == [1, 2] and "bert.feed_forward_length" not in file.metadata
    status, out, _ = run("gguf", "diff", "bert.gguf", "new.gguf")
    assert (status, out.splitlines()) == (
        1,
        ["! general.name: 'small encoder', then '7'", "- bert.feed_forward_length = 64",
         "! bert.pooling_type: 1, then 2", "+ x.y = 2 values"],
    )  # fmt: skip
    assert run("gguf", "set", "bert.gguf", "new.gguf", "--remove", "none")[0] == 1
    assert run("gguf", "set", "bert.gguf", "new.gguf", "bert.pooling_type=-1")[0] == 1
    assert run("gguf", "set", "bert.gguf", "new.gguf")[0] == 2


def test_rename_changes_only_names(run, folder):
    assert run("gguf", "rename", "bert.gguf", "new.gguf", "blk.0.*=layer.zero.*", "token_types.weight=types")[0] == 0
    with gb.gguf.open(folder / "bert.gguf") as a, gb.gguf.open(folder / "new.gguf") as b:
        for name, tensor in a.tensors.items():
            new = {"token_types.weight": "types"}.get(name, name.replace("blk.0.", "layer.zero."))
            np.testing.assert_array_equal(tensor.numpy(), b.tensors[new].numpy())
        assert dict(a.metadata).keys() == dict(b.metadata).keys()
    for wrong in ("none=a", "blk.0.*=x", "blk.0.attn_q.bias=blk.0.attn_k.bias", "=x", "token_types.weight"):
        assert run("gguf", "rename", "bert.gguf", "wrong.gguf", wrong)[0] == 1
        assert not (folder / "wrong.gguf").exists()


def test_diff_measures_the_error_of_quantization(run):
    assert run("gguf", "diff", "llama.gguf", "llama.gguf") == (0, "", "")
    run("quantize", "llama.gguf", "small.gguf", "Q8_0", "--quiet")
    status, out, _ = run("gguf", "diff", "llama.gguf", "small.gguf")
    (row,) = [r for r in out.splitlines() if r.startswith("! blk.0.attn_q.weight")]
    assert status == 1 and "float32, then q8_0, root mean square difference" in row and "0." in row.rpartition("(")[2]
