"""Text files of users and their programs: byte order marks, encodings, line ends, and tables."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
from ggml_backend._base.files import read_text
from ggml_backend.cli import main
from ggml_backend.cluster import Description
from ggml_backend.cluster._links import links_file, read_links, write_links
from ggml_backend.planning import read_instance
from ggml_backend.profile._pictures import read_table
from ggml_backend.sched._costs import file_of, read_costs, write_costs
from source_tree import in_tree

MARK = codecs.BOM_UTF8
TABLE = "id,lower,upper,size\na,0,2,4\nb,1,3,4\n"


def description() -> str:
    return json.dumps(
        {
            "devices": {"server": {"memory": "1 GiB", "bandwidth": "1 GB/s", "flops": "1 GFLOP/s"}},
            "hosts": [{"name": "a", "devices": ["server"]}],
        }
    )


TOML = """[devices.server]
memory = "1 GiB"
bandwidth = "1 GB/s"
flops = "1 GFLOP/s"
[[hosts]]
name = "a"
devices = ["server"]
"""


def profile_json() -> str:
    cpu, ctx = gb.Backend("CPU", n_threads=1), gb.Context()
    graph = ctx.graph(gb.ops.relu(ctx.tensor((4, 4))))
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    with scheduler.profile() as profile:
        pass
    return profile.to_json(limits=False)


READERS: dict[str, tuple[Callable[[], str], Callable[[Path], Any]]] = {
    "table.csv": (lambda: TABLE, read_table),
    "instance.csv": (lambda: TABLE, lambda path: [np.asarray(part).tolist() for part in read_instance(path)]),
    "cluster.json": (description, lambda path: Description.read(path).devices),
    "profile.json": (profile_json, lambda path: gb.profile.Profile.from_json(path).to_json(limits=False)),
    "any.txt": (lambda: "a few words\n", read_text),
}
if sys.version_info >= (3, 11):
    READERS["cluster.toml"] = (lambda: TOML, lambda path: Description.read(path).devices)


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_ignored(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text().encode())
    expected = read(path)
    path.write_bytes(MARK + path.read_bytes())
    assert read(path) == expected


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_text_in_another_encoding_is_an_error(tmp_path: Path, name: str, encoding: str) -> None:
    text, read = READERS[name]
    mark = "\ufeff" if encoding.endswith("be") else ""
    (tmp_path / name).write_bytes((mark + text()).encode(encoding))
    with pytest.raises(gb.errors.FileError, match=rf"{name}: the text is in {encoding[:6].upper()}; save it in UTF-8"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", READERS)
def test_binary_files_are_refused(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    (tmp_path / name).write_bytes(text().encode()[:9] + b"\0")
    with pytest.raises(gb.errors.FileError, match=rf"{name}: it is not text: NUL at byte 9"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", READERS)
def test_the_error_names_the_kind_of_another_file(tmp_path: Path, name: str) -> None:
    kinds = {
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n": "a Git LFS pointer",
        b"\n<!DOCTYPE html>\n<html>": "an HTML page",
        MARK + b"<html>": "an HTML page",
        b"<?xml version='1.0'?><Error/>": "an XML text",
        b"PK\3\4" + bytes(40): "a ZIP file",
        b"\x1f\x8b\x08\xff": "a gzip file",
        b"\x80\x04\x95\xff": "a pickle",
        b"\x18\0\0\0\0\0\0\0" + b'{"__metadata__":{"a":"b"}}': "a safetensors file",
    }
    _, read = READERS[name]
    for content, kind in kinds.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(gb.errors.FileError, match=rf"{name}: it is {kind}"):
            read(tmp_path / name)


@pytest.mark.parametrize("name", [n for n in READERS if n != "any.txt"])
def test_line_ends_of_other_systems_are_read(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text().encode())
    expected = read(path)
    path.write_bytes(text().replace("\n", "\r\n").encode())
    assert read(path) == expected


def test_the_text_of_a_profile_can_begin_with_a_mark() -> None:
    text = profile_json()
    assert gb.profile.Profile.from_json("\ufeff" + text).to_json(limits=False) == gb.profile.Profile.from_json(
        text
    ).to_json(limits=False)


def test_caches_can_begin_with_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend = gb.Backend("CPU", n_threads=1)
    copy = gb.sched.CopyCost(1.0, 2.0)
    costs = gb.sched.DeviceCosts((gb.sched.OpCost("any", None, 1.0, 2.0, 3.0),), copy, copy)
    write_costs(backend, costs)
    write_links({"a b": copy})
    for path in (file_of(backend), links_file()):
        path.write_bytes(MARK + path.read_bytes())
    assert read_costs(backend) == costs
    assert read_links() == {"a b": copy}


def test_files_of_sentences_can_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(MARK + b"A cat sat.\r\n\r\nOn a mat.\r\n")
    program = (
        "import argparse\nfrom examples.embed.__main__ import read_texts\n"
        f"print(read_texts(argparse.Namespace(sentence=[], file={str(tmp_path / 'texts')!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=in_tree("examples").parent
    )
    assert done.stdout == "['A cat sat.', 'On a mat.']\n"


# --------------------------------------------------------------------------------------------------------------- tables


def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | str) -> str:
    path = tmp_path / "in.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["plan", str(path)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"python -m ggml_backend plan: error: {path}: ") and len(shown) < 500
    with pytest.raises(gb.GgmlError) as error:
        read_instance(path)
    assert shown == f"python -m ggml_backend plan: error: {error.value}\n"
    return shown.partition("in.csv: ")[2].rstrip("\n")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,12345678901234567890123,2,4", "lower must be from -9223372036854775808 to 9223372036854775807, is 1234567"),
        ("a,0,2,-10", "size must be from 0 to 18446744073709551615, is -10"),
        ("a,0,2,18446744073709551616", "size must be from 0 to 18446744073709551615, is 18446744073709551616"),
        ("a,0,-9223372036854775809,1", "upper must be from -9223372036854775808 to"),
        (f"a,0,2,{'7' * 5000}", "(5000 digits)"),
        (f"a,0,2,-{'7' * 5000}", "(5000 digits)"),
        (f"a,0,2,{'x' * 5000}", "size must be an integer, is 'xxxxxxxxxxxxxx"),
        ("a,0,2,4.0", "size must be an integer, is '4.0'"),
        ("a,0,2,", "size must be an integer, is ''"),
        ("a,0,2,1_000", "size must be an integer, is '1_000'"),
        ("a,0,2,٣", "size must be an integer, is '٣'"),
        ("a,0,2,1e3", "size must be an integer, is '1e3'"),
        ("a,3,2,4", "the buffer ends at 2, before its start 3"),
        ("a,0,2", "3 fields, the heading has 4 columns"),
        ("a,0,2,4,5", "5 fields, the heading has 4 columns"),
        ('"a,0,2,4\nb,0,2,4', "a quote is not closed"),
        ('"a"b,0,2,4', "a comma must follow a closed quote"),
        (f'"{"x" * 200000},0,2,4', "a field has more than"),
    ],
)
def test_the_error_of_a_row_names_its_line(tmp_path, capsys, row: str, message: str) -> None:
    for before, line in (("", 2), ("b,0,1,1\n\n", 4), ('"b\nc",0,1,1\n', 4)):
        found = refusal(tmp_path, capsys, f"id,lower,upper,size\n{before}{row}\n")
        assert found.startswith(f"line {line}: ") and message in found


@pytest.mark.parametrize(
    ("heading", "message"),
    [("", "no column id, lower, size, upper; the file has no heading"), ("id,lower,upper", "no column size"),
     ("id;lower;upper;size", "separate the columns by commas"), ("id\tlower\tupper\tsize", "by commas"),
     ("id,lower,upper,size,size", "2 columns are called size"), ("ID,Lower,Upper,Size", "no column id, lower, size"),
     ("x" * 5000, "no column id")],
)  # fmt: skip
def test_a_wrong_heading_is_an_error(tmp_path, capsys, heading: str, message: str) -> None:
    assert message in refusal(tmp_path, capsys, f"{heading}\na,0,2,4\n" if heading else "")


def test_spaces_signs_and_other_columns_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("note, id, size, lower,upper,note\n\n,a, 004 ,+1, 3,\n,b,0,-1,-0,x\n")
    assert [np.asarray(part).tolist() for part in read_instance(path)] == [["a", "b"], [1, -1], [3, 0], [4, 0]]
    path.write_text(f"id,lower,upper,size\na,{-(2**63)},{2**63 - 1},{2**64 - 1}\nb,0,0,{'0' * 5000}7\n")
    assert read_instance(path)[3].tolist() == [2**64 - 1, 7]


@pytest.mark.parametrize("name", [n for n in READERS if n.startswith("cluster")])
def test_very_long_integers_of_descriptions_are_refused(tmp_path: Path, name: str) -> None:
    text = f"rank0 = {'7' * 5000}\n" if name.endswith("toml") else f'{{"rank0": {"7" * 5000}}}'
    (tmp_path / name).write_text(text)
    with pytest.raises(gb.errors.FileError, match=name) as error:
        Description.read(tmp_path / name)
    assert len(str(error.value)) < 500


def test_an_unreadable_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/proc/self/mem"):
        pytest.skip("needs /proc")
    assert main(["plan", "/proc/self/mem"]) == 1
    assert "/proc/self/mem: Input/output error" in capsys.readouterr().err
    for read in (read_table, read_instance, read_text, Description.read, gb.profile.Profile.from_json):
        with pytest.raises(OSError) as error:
            read("/proc/self/mem")
        assert error.value.filename == "/proc/self/mem"


LIMITS = [-(2**63) - 1, -(2**63), -1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**22, 10**60]
CELLS = st.sampled_from(LIMITS).map(str) | st.text(max_size=6) | st.integers(0, 9).map(str)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(rows=st.lists(st.lists(CELLS, min_size=3, max_size=5), max_size=4), ends=st.sampled_from(["\n", "\r\n", "\r"]))
@example(rows=[["a", "1", "2", "3"], ["b", "0", "9", str(2**64 - 1)]], ends="\n")
def test_random_tables_are_read_as_python_reads_them_or_refused(
    tmp_path: Path, rows: list[list[str]], ends: str
) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator=ends).writerows([["id", "lower", "upper", "size"], *rows])
    path = tmp_path / "in.csv"
    path.write_bytes(out.getvalue().encode("utf-8", "replace"))

    def whole(text: str) -> int | None:
        try:
            return int(text) if text.isascii() and "_" not in text else None
        except ValueError:
            return None

    def is_buffer(row: list[Any]) -> bool:
        return len(row) == 4 and None not in row and -(2**63) <= row[1] <= row[2] < 2**63 and 0 <= row[3] < 2**64

    expected = [[row[0], *map(whole, row[1:])] for row in rows]
    valid = all(map(is_buffer, expected))
    try:
        found = read_instance(path)
    except gb.GgmlError as error:
        assert str(error).startswith(f"{path}: ")
        assert not valid or "NUL" in str(error) or "\0" in out.getvalue()
    else:
        assert valid
        assert [list(row) for row in zip(*(np.asarray(p).tolist() for p in found), strict=True)] == expected


@pytest.mark.parametrize("text", ["id,lower,upper,size\n" + "x" * 130000 + ",0,1,1\n", "\n" * 100000 + TABLE])
def test_long_lines_and_many_empty_lines_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    assert len(read_table(tmp_path / "in.csv")[""]) >= 1


# ------------------------------------------------------------------------------------------------------ plans of arrays


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([1, -10], r"size\[1\] is -10, out of range for uint64"), ([2**64], r"size\[0\] is 18446744073709551616, out of"),
     ([1, 10**5000], r"size\[1\] is a number of 500[01] digits"), ([1.5], "must be integers, is float64"),
     ([1, 2.5, 2**63], "must be integers"), (["1"], "must be integers"), ([True, 10**30], "must be integers"),
     (np.array([1, 2**63], np.float64), "must be integers, is float64")],
)  # fmt: skip
def test_the_error_of_a_large_number_names_its_position(sizes: Any, message: str) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.planning.plan_memory([0] * len(sizes), [1] * len(sizes), sizes)


def test_sizes_in_lists_with_large_numbers_are_integers() -> None:
    """NumPy would make floats of such a list."""
    assert gb.planning.plan_memory([0, 2], [1, 3], [5, 2**63 + 1]).peak == 2**63 + 1
    for arguments in ({"alignment": 10**5000}, {"capacity": -(10**5000)}, {"n_threads": 10**5000}):
        with pytest.raises(gb.errors.InvalidArgumentError, match="digits"):
            gb.planning.plan_memory([0], [1], [5], **arguments)
