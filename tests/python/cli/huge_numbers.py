"""Runs every command on files with one huge number each, in one process. Work must not grow with a number.

It prints the failed cases: those that raise an exception, and those that need more processor time
or memory than small files may need.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.cli import main

HUGE = [0, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1]
SECONDS = 30  # seconds of processor time for files of some kilobytes
MEMORY = 6 << 30  # bytes of address space

KEYS = {
    "llama.embedding_length": 64, "llama.block_count": 2, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.feed_forward_length": 128, "llama.context_length": 32,
    "llama.rope.dimension_count": 16, "llama.vocab_size": 100, "llama.expert_count": 0, "general.alignment": 32,
    "general.file_type": 1, "general.quantization_version": 2, "tokenizer.ggml.bos_token_id": 1,
}  # fmt: skip
CLUSTER = {
    "devices": {"server": {"memory": 2**36, "bandwidth": 2e11, "flops": 2e12, "launch": 0}},
    "hosts": [{"name": "a", "count": 2, "devices": ["server"]}],
    "links": [{"between": ["*", "*"], "latency": 1, "bandwidth": 10**9, "loss": 0, "retransmit": 0}],
    "issue": 1,
}
TABLE = {"id": ["a", "b", "c"], "lower": [0, 1, 2], "upper": [2, 3, 4], "size": [64, 32, 16]}
SAFETENSORS = {"w": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}}


def write_llama(path: Path, key: str, value: int) -> None:
    """A model that is valid except for one number."""
    shapes = {"token_embd": (100, 64), "output_norm": (64,)}
    for i in range(2):
        block = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64),
                 "attn_output": (64, 64), "ffn_norm": (64,), "ffn_gate": (128, 64), "ffn_up": (128, 64),
                 "ffn_down": (64, 128)}  # fmt: skip
        shapes.update({f"blk.{i}.{name}": shape for name, shape in block.items()})
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "llama")
        writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5)
        for name, number in {**KEYS, key: value}.items():
            if name != "general.alignment":
                writer.add(name, number)
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))


def models(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    path, cluster = folder / "model.gguf", folder / "cluster.json"
    cluster.write_text(json.dumps(CLUSTER))
    drawn = ["--html", str(folder / "a.html"), "--svg", str(folder / "a.svg"), "--out", str(folder / "a.csv")]
    for key in KEYS:
        for value in HUGE:
            write_llama(path, key, value)
            yield f"{key} = {value}", [
                ["plan", str(path)], ["plan", str(path), "--devices", "SIM,CPU", "--tokens", "8", *drawn],
                ["plan", str(path), "--cluster", str(cluster), "--simulate"], ["gguf", "info", str(path)],
                ["gguf", "check", str(path)], ["gguf", "dump", str(path), "output_norm.weight"],
                ["gguf", "quantize", str(path), str(folder / "out.gguf"), "--type", "q8_0"],
            ]  # fmt: skip


def numbers_of(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers in a document."""
    if isinstance(data, (dict, list)):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from numbers_of(value, (*path, key))
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield path


def changed(data: Any) -> Iterator[tuple[str, Any]]:
    for path in numbers_of(data):
        for value in HUGE:
            other = copy.deepcopy(data)
            at = other
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            yield f"{'.'.join(map(str, path))} = {value}", other


def clusters(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    model, path = folder / "whole.gguf", folder / "cluster.json"
    write_llama(model, "llama.block_count", 2)
    for name, data in changed(CLUSTER):
        path.write_text(json.dumps(data))
        yield f"cluster {name}", [["plan", str(model), "--cluster", str(path), "--simulate", "--tokens", "8"]]


def tables(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    path = folder / "table.csv"
    drawn = ["--html", str(folder / "a.html"), "--svg", str(folder / "a.svg"), "--out", str(folder / "a.csv"), "--map"]
    for name, data in changed(TABLE):
        rows = zip(*data.values(), strict=True)
        path.write_text("\n".join([",".join(data), *(",".join(map(str, row)) for row in rows)]) + "\n")
        yield f"table {name}", [["plan", str(path), *drawn, "--budget-ms", "100"]]
        if "lower" in name or "upper" in name:  # an axis that begins far from 0
            path.write_text(path.read_text().replace(",0,", f",{name.split()[-1]},"))
            yield f"table {name}, all late", [["plan", str(path), *drawn, "--budget-ms", "100"]]


def safetensors(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    path = folder / "w.safetensors"
    for name, data in changed(SAFETENSORS):
        header = json.dumps(data).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
        yield f"safetensors {name}", [["gguf", "convert", str(path), str(folder / "w.gguf")]]


def profiles(folder: Path) -> Iterator[tuple[str, list[Callable[[], object]]]]:
    with gb.Context() as c, gb.Backend("CPU", n_threads=1) as cpu:
        x = c.tensor((4, 4)).set_input()
        graph = c.graph(gb.ops.relu(x) + 1.0)
        scheduler = gb.Scheduler([cpu])
        scheduler.allocate(graph)
        x.set(0.0)
        with scheduler.profile() as profile:
            scheduler.compute(graph)
    for name, data in changed(json.loads(profile.to_json(limits=False))):

        def use(data: Any = data) -> None:
            found = gb.profile.Profile.from_json(json.dumps(data))
            str(found), found.table(limits=False), found.compare(profile), found.to_trace(), found._repr_html_()

        yield f"profile {name}", [use]


def give_up(*_: Any) -> None:
    raise TimeoutError(f"took more than {SECONDS} seconds of processor time")


def run(folder: Path) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, give_up)
    gb.set_log(None)
    n = 0
    for part in (models, clusters, tables, safetensors, profiles):
        for name, commands in part(folder):
            for command in commands:
                n += 1
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                try:
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        command() if callable(command) else main(command)
                except gb.GgmlError:
                    if not callable(command):
                        raise
                except BaseException as error:
                    print(f"{name}: {command}: {type(error).__name__}: {error}"[:400])
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
    return n


if __name__ == "__main__":
    print(run(Path(sys.argv[1])), "commands")
