"""The command line: exit statuses, one line per error, usage, pipes and Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import COMMANDS, main

COMMAND = [sys.executable, "-m", "ggml_backend"]


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process, or in its own process if options are given."""
    words = list(map(str, arguments))
    if options:
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
        return subprocess.run([*COMMAND, *words], **options)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: Any = main(words)
        except SystemExit as end:
            status = end.code
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def failed(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    if status == 1:
        assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test")
        for i in range(20):
            writer.add_tensor(f"blk.{i}.w", rng.standard_normal((8, 256), np.float32))
        writer.add_tensor("bias", rng.standard_normal(256, np.float32))
    return path


# ------------------------------------------------------------------------------------------------------------ wrong use


@pytest.mark.parametrize(
    ("arguments", "usage", "words"),
    [
        (["gguf", "dump", "f", "--bogus"], "gguf dump", "--bogus"), (["gguf", "info"], "gguf info", "file"),
        (["gguf"], "gguf", "action"), ([], "python -m ggml_backend", "command"),
        (["gguf", "info", "f", "--values"], "gguf info", "--values"), (["plan", "x", "--bogus=3"], "plan", "--bogus"),
        (["bench", "--bogus"], "bench", "--bogus"),
        (["bench", "nothing"], "bench", "nothing"), (["calibrate", "--bogus"], "calibrate", "--bogus"),
        (["info", "--bogus"], "info", "--bogus"), (["bogus"], "python -m ggml_backend", "bogus"),
        (["gguf", "bogus"], "gguf", "bogus"), (["gguf", "quantize", "a", "b"], "gguf quantize", "--type"),
        (["gguf", "dump", "f", "--values", "x"], "gguf dump", "--values"),
        (["info", "\x1b[31m"], "info", "\\x1b[31m"),
    ],
)  # fmt: skip
def test_wrong_use_shows_the_usage_of_the_command(arguments: list[str], usage: str, words: str) -> None:
    done = run(*arguments)
    failed(done, 2, words)
    assert done.stderr.startswith(
        f"usage: python -m ggml_backend {usage}"
        if usage not in ("python -m ggml_backend",)
        else "usage: python -m ggml_backend ["
    )


# ---------------------------------------------------------------------------------------------------------------- files


def test_a_pipe_is_refused_as_a_file(tmp_path: Path, model: Path) -> None:
    pipe, table = tmp_path / "pipe", tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    os.mkfifo(table)
    out = tmp_path / "out.gguf"
    for arguments in (
        ["gguf", "info", pipe], ["gguf", "dump", pipe], ["gguf", "check", pipe], ["gguf", "convert", pipe, out],
        ["plan", pipe], ["plan", table],
        ["gguf", "quantize", pipe, out, "--type", "q8_0"],
        ["gguf", "quantize", model, out, "--type", "q8_0", "--imatrix", pipe], ["bench", "--quick", "--compare", pipe],
    ):  # fmt: skip
        failed(run(*arguments), 1, "not a regular file")
    assert not out.exists()


def test_missing_empty_and_special_files_are_errors(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path, word in (
        (tmp_path / "absent", "No such file"),
        (tmp_path, "directory"),
        (empty, "empty"),
        (Path("/dev/null"), "not a regular file"),
    ):
        for action in ("info", "dump", "check"):
            done = run("gguf", action, path)
            failed(done, 1, str(path))
            assert word in done.stderr or path == empty
    failed(run("gguf", "convert", empty, tmp_path / "out"), 1, "8 bytes")
    failed(run("gguf", "info", "x" * 5000), 1, "too long")
    failed(run("plan", "x" * 5000), 1)
    failed(run("plan", "nonsense"), 1, "nonsense")


def test_names_with_surrogates_are_errors(tmp_path: Path) -> None:
    header = json.dumps({"\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    source = tmp_path / "m.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    failed(run("gguf", "convert", source, tmp_path / "out.gguf"), 1, "surrogate")
    header = json.dumps(
        {"__metadata__": {"k": "\ud800"}, "t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    failed(run("gguf", "convert", source, tmp_path / "out.gguf"), 1, "surrogate")
    assert not (tmp_path / "out.gguf").exists()


def test_the_output_cannot_be_the_input(tmp_path: Path, model: Path) -> None:
    before = model.read_bytes()
    (tmp_path / "soft.gguf").symlink_to(model)
    os.link(model, tmp_path / "hard.gguf")
    (tmp_path / "folder").mkdir()
    for name in (model, tmp_path / "soft.gguf", tmp_path / "hard.gguf", tmp_path / "folder/../model.gguf"):
        failed(run("gguf", "quantize", model, name, "--type", "q8_0"), 1, ": give the output another name")
        failed(run("gguf", "quantize", name, model, "--type", "q8_0"), 1, ": give the output another name")
        assert model.read_bytes() == before
    failed(run("gguf", "convert", model, model), 1, ": give the output another name")


def test_parts_are_not_overwritten(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{i:05d}-of-00002.gguf" for i in (1, 2)]
    for i, path in enumerate(paths):
        writer = gb.gguf.Writer(path).add("split.no", i, "u16").add("split.count", 2, "u16")
        writer.add_tensor(f"t{i}", np.ones((2, 32), np.float32)).close()
    failed(run("gguf", "quantize", paths[0], paths[1], "--type", "q8_0"), 1, ": give the output another name")
    assert main(["gguf", "quantize", str(paths[0]), str(tmp_path / "whole.gguf"), "--type", "q8_0", "--quiet"]) == 0


# ----------------------------------------------------------------------------------------------------------- quantizing


def test_quantizing_twice_needs_requantize(tmp_path: Path, model: Path) -> None:
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    assert main(["gguf", "quantize", str(model), str(once), "--type", "q8_0", "--quiet"]) == 0
    for options in (["--type", "q4_k"], ["--tensor-type", "blk.1.w=q4_0"]):
        failed(run("gguf", "quantize", once, twice, *options), 1, "is quantized already (q8_0)", "--requantize")
        assert not twice.exists()
        assert main(["gguf", "quantize", str(once), str(twice), *options, "--requantize", "--quiet"]) == 0
        twice.unlink()
    for kind in ("q8_0", "f16", "f32"):  # same format, or without loss
        assert main(["gguf", "quantize", str(once), str(twice), "--type", kind, "--quiet"]) == 0


def test_patterns_without_a_match_are_errors(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out.gguf"
    for options in (
        ["--type", "q8_0", "--keep", "nothing*"],
        ["--type", "q8_0", "--keep", "bias", "--keep", "blk.99.*"],
        ["--tensor-type", "blk.x=q8_0"],
    ):
        failed(
            run("gguf", "quantize", model, out, *options), 1, options[-1].partition("=")[0], "no tensor has such a name"
        )
    failed(run("gguf", "dump", model, "bias", "nothing"), 1, "'nothing'")
    failed(run("gguf", "quantize", model, out, "--tensor-type", "=q8_0"), 1, "PATTERN=TYPE")
    failed(run("gguf", "quantize", model, out, "--tensor-type", "bias=q99"), 1, "q99")
    assert not out.exists()
    assert (
        main(
            [
                "gguf",
                "quantize",
                str(model),
                str(out),
                "--tensor-type",
                "blk.1*=q8_0",
                "--tensor-type",
                "blk.*=q4_0",
                "--quiet",
            ]
        )
        == 0
    )
    kinds = {n: t.dtype.name for n, t in gb.gguf.open(out).tensors.items()}
    assert (kinds["blk.1.w"], kinds["blk.2.w"], kinds["bias"]) == ("q8_0", "q4_0", "float32")


# -------------------------------------------------------------------------------------------------- terminals and pipes


def test_a_closed_pipe_ends_the_command(model: Path) -> None:
    """``gguf dump F | head -1`` ends without a message, with the status of SIGPIPE."""
    dump, info = ["gguf", "dump", model, "--values", "100000"], ["gguf", "info", model, "--json"]
    for arguments in (dump, info, ["info"], ["info", "--cpu"]):
        process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(60) == 141 and err == b"", (process.returncode, err)


def test_closed_or_full_output_is_an_error() -> None:
    for words in (["info"], ["info", "--json"], ["info", "--cpu"], ["--help"], ["--version"], ["gguf", "--help"]):
        closed = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words],
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
        assert (closed.returncode, closed.stderr) == (0, ""), words
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
            )
        failed(done, 1, "error: No space left on device")


def test_an_output_named_like_a_pipe_is_refused(model: Path) -> None:
    failed(run("gguf", "quantize", model, "-", "--type", "q8_0"), 1, "the output '-' is no file")
    assert not Path("-").exists()


def test_a_full_disk_is_an_error(model: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run("gguf", "dump", model, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    failed(done, 1, "No space left")


def test_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("w", np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32))
    out = tmp_path / "out.gguf"
    process = subprocess.Popen([*COMMAND, "gguf", "quantize", str(path), str(out), "--type", "q4_k"],
     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # the command has started
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, (process.returncode, err)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["large.gguf"]


def on_a_terminal(*arguments: str | Path) -> str:
    """The output of a command on stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


@pytest.mark.parametrize("script", [False, True], ids=["module", "script"])
def test_ctrl_c_while_the_command_starts(tmp_path: Path, script: bool) -> None:
    """The package imports NumPy before the command can catch an interrupt."""
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    command = [str(Path(sys.executable).with_name("ggml-backend"))] if script else COMMAND
    if script and not Path(command[0]).exists():
        pytest.skip("the script is not beside this Python")
    done = subprocess.run(
        [*command, "info"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (130, -signal.SIGINT), done
    assert (done.stdout, done.stderr) == ("", "\n")


def test_progress_on_terminals_only(tmp_path: Path, model: Path) -> None:
    quantize = ["gguf", "quantize", model, tmp_path / "out.gguf", "--type", "q8_0"]
    for arguments, label in ((quantize, "writing ["), (["gguf", "check", model], "checking [")):
        shown = on_a_terminal(*arguments)
        assert label in shown and "100 %" in shown
        assert run(*arguments).stderr == ""


def test_traceback_on_request(tmp_path: Path) -> None:
    done = run("gguf", "info", tmp_path / "absent", env={**os.environ, "GGML_TRACEBACK": "1"})
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_a_bad_environment() -> None:
    """An impossible path of a module is the reason for missing CUDA, not an error."""
    done = run("info", "--json", env={**os.environ, "GGML_CUDA_MODULE": "x" * 5000})
    assert done.returncode == 0, done
    assert "there is no file" in json.loads(done.stdout)["backends that are not there"]["CUDA"]


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("calibrate", ["--size", "3"], "size must be a multiple of 32, at least 64, not 3"),
        (
            "calibrate",
            ["CPU:speed=9"],
            "Backend('CPU:speed=9'): CPU: parameter 'speed=9' is unknown; known are threads=<count> and level=<name>",
        ),
        ("plan", ["absent"], "absent: neither a file nor an example; examples: llama, moe, whisper, unet, embed"),
        ("plan", ["absent.csv"], "absent.csv: No such file or directory"),
        ("plan", ["llama", "--devices", "A,,B"], "--devices: an empty name"),
        (
            "plan",
            ["llama", "--devices", "SIM:mem=64M,CPU"],
            "--devices: 'CPU' in 'SIM:mem=64M,CPU' is a device: separate devices with parameters by a space",
        ),
        (
            "plan",
            ["llama", "--devices", "c.toml"],
            "--devices: c.toml is no device: a description of a cluster is for --cluster",
        ),
        ("bench", ["--compare", "absent"], "--compare: absent is no result of bench --json: No such file or directory"),
        ("bench", ["--cpu", "--threads", "3"], "--cpu measures the time of one thread, not of 3"),
        ("gguf info", ["absent"], "absent: No such file or directory"),
        ("gguf dump", ["absent", "*"], "absent: No such file or directory"),
        ("gguf check", ["absent"], "absent: No such file or directory"),
        ("gguf convert", ["absent", "out.gguf"], "absent: No such file or directory"),
    ],
)
def test_every_error_has_one_form(tmp_path, monkeypatch, command, arguments, reason):
    monkeypatch.chdir(tmp_path)
    done = run(*command.split(), *arguments)
    assert (done.returncode, done.stderr) == (1, f"python -m ggml_backend {command}: error: {reason}\n")


def test_the_script_calls_itself_by_its_name():
    script = Path(sys.executable).with_name("ggml-backend")
    wrong = subprocess.run([script, "gguf", "info"], capture_output=True, text=True)
    assert wrong.stderr.startswith("usage: ggml-backend gguf info ")
    failed = subprocess.run([script, "gguf", "info", "absent"], capture_output=True, text=True)
    assert failed.stderr == "ggml-backend gguf info: error: absent: No such file or directory\n"
    helped = subprocess.run([script, "plan", "--help"], capture_output=True, text=True)
    assert "example: ggml-backend plan " in helped.stdout and "python -m" not in helped.stdout


MINE = """
import numpy as np
import ggml_backend as gb

@gb.devices.register_device("IMPORTED")
class Imported(gb.devices.Device):
    @gb.devices.op("add", "mul")
    def elements(self, node, out, a, b):
        {"add": np.add, "mul": np.multiply}[node.op](a, b, out=out)
"""


def test_devices_of_an_imported_module(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = run("plan", "llama", "--json", "--devices", "IMPORTED,CPU", "--import", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {s["backend"] for s in json.loads(done.stdout)["splits"]} == {"IMPORTED", "CPU"}
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    arguments = ["calibrate", "IMPORTED", "--size", "64", "--json", "--import", "mine"]
    done = run(*arguments, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "IMPORTED" in json.loads(done.stdout)[0]["device"]
    for command, word in (("plan", "llama"), ("calibrate", "CPU"), ("check-device", "CPU")):
        failed(
            run(command, word, "--import", "no_such_module_here"), 1, f"{command}: error: --import no_such_module_here"
        )
    (tmp_path / "a.csv").write_text("id,lower,upper,size\n")
    failed(run("plan", tmp_path / "a.csv", "--import", "mine"), 2, "--import is for graphs")


def test_an_unknown_device_explains_how_to_make_one():
    words = (
        "gb.devices.register_device registers a Python class (on the command line: --import MODULE),"
        " gb.backend.load_backend loads a shared library"
    )
    failed(run("plan", "llama", "--devices", "NOPE"), 1, "there is no backend 'NOPE'; there are CPU, ", f"; {words}\n")
    assert words not in run("plan", "llama", "--devices", "CPUS").stderr


def test_a_warning_begins_with_the_command_and_shows_no_source_line():
    err = run("plan", "llama", "--devices", "SIM:name=A,ops=add", "CPU").stderr
    assert err.startswith(
        "python -m ggml_backend plan: warning: 28 heavy operations do not run on the device of the highest priority:\n "
        " MUL_MAT "
    )


# ------------------------------------------------------------------------------------------------ traits of processors


def info_of_cpu(**variables: str) -> dict[str, Any]:
    names = ("GGML_CPU_TRAITS", "GGML_CPU_REPRODUCIBLE")
    rest = {name: value for name, value in os.environ.items() if name not in names}
    done = run("info", "--cpu", "--json", env={**rest, **variables})
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_info_of_the_cpu() -> None:
    found = info_of_cpu()
    assert found["level"] in gb.backend.cpu_levels() and found["processor"]
    assert list(found["traits"]) == ["bf16_dots", "byte_dots", "wide", "l1", "l2", "l3"]
    for name, trait in found["traits"].items():
        assert trait["source"] in ("measured", "stated by the processor", "unknown"), name
        assert (trait["value"] == 0) == (trait["source"] == "unknown"), name
        assert trait["meaning"]
    out = run("info", "--cpu").stdout
    assert "\n  byte_dots: " in out and "\nlevel: " in out


def test_given_traits_decide() -> None:
    for rate in (0.5, 2):
        found = info_of_cpu(GGML_CPU_TRAITS=f"bf16_dots={rate},l2=3M")
        assert found["traits"]["bf16_dots"]["value"] == rate
        assert found["traits"]["bf16_dots"]["source"] == "given by GGML_CPU_TRAITS"
        assert found["traits"]["l2"]["value"] == 3 << 20
        batch = found["chosen by traits"]["bfloat16 weights, 512 rows"]
        if found["level"] == "avx512bf16":
            assert batch == "blocked_bf16" if rate > 1 else "trait bf16_dots" in batch
        quantized = found["chosen by traits"]["q8_0 weights, 512 rows"]
        assert quantized.startswith("blocked_bytes"), quantized  # at these rates no level has faster products of pairs
        assert found["chosen by traits"]["bfloat16 weights, 16 rows"].startswith("dense_rows")


def test_reproducible_fixes_traits() -> None:
    found = info_of_cpu(GGML_CPU_REPRODUCIBLE="1", GGML_CPU_TRAITS="bf16_dots=2")
    assert found["reproducible (GGML_CPU_REPRODUCIBLE)"] is True
    assert found["traits"]["bf16_dots"]["source"] == "fixed by GGML_CPU_REPRODUCIBLE"
    assert found["chosen by traits"]["bfloat16 weights, 512 rows"].startswith("blocked_f32")


@pytest.mark.parametrize(
    ("value", "words"),
    [("bf16=2", "must be one of bf16_dots"), ("wide=x", "needs a number from 0 to 1000"), ("wide", "name=value")],
)
def test_wrong_traits_are_an_error(value: str, words: str) -> None:
    failed(run("info", "--cpu", env={**os.environ, "GGML_CPU_TRAITS": value}), 1, "GGML_CPU_TRAITS", words)
    done = run("info", env={**os.environ, "GGML_CPU_TRAITS": value})  # `info` needs no trait
    assert done.returncode == 0, done


PRODUCTS = """
import hashlib, numpy as np, ggml_backend as gb
rng = np.random.default_rng(3)
w, x = (rng.standard_normal(shape, dtype=np.float32) for shape in ((96, 640), (80, 640)))
bits = gb.quantize(w, gb.bfloat16).view(np.uint16)
with gb.Backend("CPU") as cpu, gb.Context() as ctx:
    a, b = ctx.tensor(w.shape, gb.bfloat16), ctx.tensor(x.shape)
    y = gb.ops.mul_mat(a, b)
    z = gb.ops.silu(b)
    graph = ctx.graph(y, z)
    with ctx.allocate(cpu):
        a.set(bits)
        b.set(x)
        graph.compute(cpu)
        print(hashlib.sha256(y.numpy().tobytes() + z.numpy().tobytes()).hexdigest())
        wanted = x.astype(float) @ (bits.astype(np.uint32) << 16).view(np.float32).astype(float).T
        assert np.abs(y.numpy() - wanted).max() < 640**0.5 * 2.0**-6
"""


def test_reproducible_results_do_not_depend_on_traits() -> None:
    def digest(**variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    one = digest(GGML_CPU_REPRODUCIBLE="1", GGML_CPU_TRAITS="bf16_dots=2")
    assert one == digest(GGML_CPU_REPRODUCIBLE="1", GGML_CPU_TRAITS="bf16_dots=0.5")
    pairs, widened = digest(GGML_CPU_TRAITS="bf16_dots=2"), digest(GGML_CPU_TRAITS="bf16_dots=0.5")
    with gb.Backend("CPU") as cpu:  # only these levels have products of pairs, which round activations
        assert (pairs != widened) == (cpu.level in ("avx512bf16", "amx"))


# -------------------------------------------------------------------------------------------------------- completion


def completed_by_bash(script: Path, *words: str) -> set[str]:
    """The completions that bash offers for the last word."""
    program = f"""
    source {script}
    COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
    _shtab_ggml_backend ggml-backend "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shtab", reason="shtab is not installed; the extra [completion] has it")
    path = tmp_path_factory.mktemp("completion") / "ggml-backend"
    path.write_text(run("completion", "bash").stdout)
    return path


def test_bash_completes_commands_options_and_choices(bash_script: Path) -> None:
    offered = completed_by_bash(bash_script, "ggml-backend", "")
    assert set(COMMANDS) <= offered
    assert completed_by_bash(bash_script, "ggml-backend", "gguf", "qu") == {"quantize"}
    assert {"--type", "--keep"} <= completed_by_bash(bash_script, "ggml-backend", "gguf", "quantize", "--")
    assert completed_by_bash(bash_script, "ggml-backend", "gguf", "quantize", "--on-invalid", "c") == {"clip"}


def test_completion_without_its_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    failed(run("completion", "bash"), 1, "pip install 'ggml_backend[completion]'")
    failed(run("completion", "fish"), 2, "invalid choice: 'fish'")
