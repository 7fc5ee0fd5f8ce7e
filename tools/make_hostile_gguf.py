#!/usr/bin/env python3
"""Writes a folder of invalid GGUF files, each with one fault.

    make_hostile_gguf.py FOLDER [--fuzz-seeds]

A reader must refuse every file, with a message that names the field and its offset. The program follows the description
of the format and does not use the library. With --fuzz-seeds it writes the small set from which the fuzzer starts:
valid files, and one invalid file of each kind.

`hostile()` yields (name, bytes, word): the message has to contain the word.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path

BITS = ((31, -1), (31, 0), (32, -1), (32, 0), (63, -1), (63, 0), (64, -1))
EXTREMES = {"0": 0, "1": 1} | {f"2to{bits}{d or ''}": 2**bits + d for bits, d in BITS}
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
T_F32, T_Q4_0, T_Q4_K, T_FUTURE = 0, 2, 12, 1023


def u32(n: int) -> bytes:
    return struct.pack("<I", n & 0xFFFFFFFF)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n & 0xFFFFFFFFFFFFFFFF)


def string(text: bytes, length: int | None = None) -> bytes:
    return u64(len(text) if length is None else length) + text


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + u32(kind) + value


def array(kind: int, count: int, data: bytes) -> bytes:
    return u32(kind) + u64(count) + data


def info(name: bytes, ne: tuple[int, ...], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    return string(name) + u32(len(ne) if n_dims is None else n_dims) + b"".join(map(u64, ne)) + u32(kind) + u64(offset)


def header(n_tensors: int, n_kv: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + u32(version) + u64(n_tensors) + u64(n_kv)


def whole(
    pairs: list[bytes],
    infos: list[bytes],
    data: int = 256,
    alignment: int = 32,
    n_kv: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    meta = (
        header(len(infos) if n_tensors is None else n_tensors, len(pairs) if n_kv is None else n_kv)
        + b"".join(pairs)
        + b"".join(infos)
    )
    return meta + bytes(-len(meta) % alignment) + bytes(range(256)) * (data // 256) + bytes(data % 256)


BLOCKS = {
    10: (256, 84), 11: (256, 110), 12: (256, 144), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip
UNKNOWN = (4, 5, 33, 38, 255, T_FUTURE)  # retired and future types
PAIRS = [pair(b"a.u32", U32, u32(7)), pair(b"a.str", STR, string(b"text")),
 pair(b"a.arr", ARR, array(I16, 3, bytes(6))),
         pair(b"a.strs", ARR, array(STR, 2, string(b"x") + string(b"")))]  # fmt: skip
INFOS = [info(b"t0", (8, 4), T_F32, 0), info(b"t1", (32,), T_Q4_0, 128)]


def valid() -> Iterator[tuple[str, bytes]]:
    yield "empty", whole([], [], 0)
    yield "small", whole(PAIRS, INFOS)
    yield "version2", header(0, 0, 2)
    scalars = [
        (U8, 1),
        (I8, 1),
        (U16, 2),
        (I16, 2),
        (U32, 4),
        (I32, 4),
        (F32, 4),
        (BOOL, 1),
        (U64, 8),
        (I64, 8),
        (F64, 8),
    ]
    yield "scalars", whole([pair(b"k%d" % kind, kind, bytes(range(1, size + 1))) for kind, size in scalars], [], 0)
    yield "arrays", whole([pair(b"k%d" % kind, ARR, array(kind, 3, bytes(3 * size))) for kind, size in scalars], [], 0)
    nested = (
        array(ARR, 2, array(U8, 3, b"\1\2\3") + array(U16, 0, b""))
        + array(ARR, 1, array(STR, 1, string(b"x")))
        + array(F32, 0, b"")
    )
    yield "nested", whole([pair(b"k", ARR, array(ARR, 3, nested))], INFOS)
    yield "nested-64-deep", whole([pair(b"k", ARR, (u32(ARR) + u64(1)) * 64 + array(BOOL, 1, b"\7"))], INFOS)
    yield "nested-many", whole([pair(b"k", ARR, array(ARR, 500, array(I8, 1, b"\1") * 500))], INFOS)
    five = [info(b"five", (4, 1, 2, 1, 3), T_F32, 32), info(b"one", (8,), T_F32, 0)]
    yield "five-axes", whole([], five)
    yield "many-axes", whole([], [info(b"many", (1,) * 80 + (8,), T_F32, 0), info(b"six", (0,) * 6, T_F32, 0)])
    yield "no-axes", whole(PAIRS, [info(b"s", (), T_F32, 32), info(b"v", (8,), T_F32, 0), info(b"u", (), T_FUTURE, 64)])
    empty = [info(b"a", (0,), T_F32, 0), info(b"b", (0, 5), T_Q4_0, 32), info(b"c", (2**62, 0, 2**62), 8 + 33, 0)]
    yield "empty-tensors", whole([], [*empty, info(b"d", (8,), T_F32, 0), info(b"e", (3, 0), T_F32, 2**40)])
    yield "empty-tensors-alone", header(1, 0) + info(b"mark", (0,), T_F32, 0)
    yield "empty-beside-huge", whole([], [info(b"t", (0, 2**62, 2**62), T_F32, 0)])
    yield "unsorted", whole([], [info(b"a", (8,), T_F32, 32), info(b"b", (8,), T_F32, 0)])
    yield "unknown-unsorted", whole([], [info(b"a", (8,), T_FUTURE, 32), info(b"b", (8,), T_F32, 0)])
    yield "tied", whole([], [info(b"a", (8,), T_F32, 0), info(b"b", (4, 2), T_F32, 0), info(b"c", (8,), T_F32, 0)])
    yield "unknown-tied", whole([], [info(b"a", (8,), T_FUTURE, 0), info(b"b", (8,), T_FUTURE, 0)])
    yield "split-key", whole([pair(b"split.count", U16, b"\0\0"), pair(b"split.no", U16, b"\0\0")], INFOS)
    yield "alignment", whole([pair(b"general.alignment", U32, u32(64))], [info(b"t", (16,), T_F32, 64)], 128, 64)
    for kind in UNKNOWN:
        yield (
            f"unknown{kind}",
            whole([], [info(b"u", (3, 5), kind, 0), info(b"t", (8,), T_F32, 96), info(b"v", (7,), kind, 128)]),
        )
    for kind, (block, size) in BLOCKS.items():
        data = bytes((i * 151 + kind) & 255 for i in range(size))  # all bytes are valid, also indices beyond a table
        meta = header(1, 0) + info(b"q", (block,), kind, 0)
        yield f"type{kind}", meta + bytes(-len(meta) % 32) + data


def counts() -> Iterator[tuple[str, bytes, str]]:
    """Files with an extreme value in each count and length field."""
    for label, n in EXTREMES.items():
        if n > 1:
            yield f"n_tensors-{label}", whole(PAIRS, [], 64, n_tensors=n), "number of tensors"
            yield f"n_kv-{label}", whole([], INFOS, 64, n_kv=n), "number of pairs"
            yield f"n_tensors-alone-{label}", header(n, 0), "number of tensors"
            yield f"n_kv-alone-{label}", header(0, n), "number of pairs"
        else:
            yield f"n_kv-too-few-{label}", whole([*PAIRS, pair(b"b", U64, u64(2**64 - 1))], INFOS, n_kv=n), "tensor"
        if n != 1:
            for kind, word in ((b"", "key"), (b"k", "key")):
                if n != len(kind):
                    yield f"key-length-{len(kind)}-{label}", whole([string(kind, n) + u32(U8) + b"\1"], [], 0), word
            yield f"name-length-{label}", whole([], [string(b"t", n) + u32(1) + u64(8) + u32(T_F32) + u64(0)]), "tensor"
        if n > 1:
            yield f"string-length-{label}", header(0, 1) + string(b"k") + u32(STR) + string(b"t", n), "string value"
            yield (
                f"array-string-length-{label}",
                header(0, 1) + pair(b"k", ARR, array(STR, 1, string(b"t", n))),
                "string of an array",
            )
            for kind in range(13):
                if kind != ARR:
                    yield f"array-count-{kind}-{label}", header(0, 1) + pair(b"k", ARR, array(kind, n, b"\0")), "array"
            for data in (b"", array(U8, 1, b"\1")):
                yield (
                    f"nested-count-{len(data)}-{label}",
                    header(0, 1) + pair(b"k", ARR, array(ARR, n, data)),
                    "array",
                )
                yield (
                    f"nested-inner-count-{len(data)}-{label}",
                    header(0, 1) + pair(b"k", ARR, array(ARR, 1, array(ARR, n, data))),
                    "array",
                )
        if 1 < n < 2**32:
            yield f"n_dims-{label}", whole([], [info(b"t", (8,) * 4, T_F32, 0, n_dims=n)]), "dimensions"


def shapes() -> Iterator[tuple[str, bytes, str]]:
    """Files with dimensions out of range, products that overflow, or rows of partial blocks."""
    for label, n in EXTREMES.items():
        for dim in range(4):
            ne = [8, 1, 1, 1]
            ne[dim] = n
            if n > 1:
                yield f"ne{dim}-{label}", whole([], [info(b"t", tuple(ne), T_F32, 0)]), "'t'"
    for label, ne in {
        "wrap-2to32x2to32": (2**32, 2**32), "wrap-2to63x2": (2**62, 4), "wrap-to-1": (2**63 + 1, 2**63 + 1),
        "wrap-4": (2**16,) * 4,
        "wrap-to-8": ((2**64 - 8) % 2**63, 3, 5, 7), "bytes-wrap": (2**61, 1), "bytes-wrap-2": (2**62, 1),
        "huge-before-zero": (2**62, 2**62, 0), "negative-behind-zero": (0, 2**63), "five": (2**16,) * 5,
    }.items():  # fmt: skip
        for kind in (T_F32, T_Q4_0):
            yield f"shape-{label}-{kind}", whole([], [info(b"t", ne, kind, 0)]), "'t'"
    for n in (1, 16, 31, 33, 48):
        yield f"row-{n}-q4_0", whole([], [info(b"t", (n, 32), T_Q4_0, 0)]), "blocks"
        yield f"row-{n}-q4_k", whole([], [info(b"t", (n * 2, 256), T_Q4_K, 0)]), "blocks"


def types() -> Iterator[tuple[str, bytes, str]]:
    for kind in (13, 14, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1):
        yield f"value-type-{kind}", whole([pair(b"k", kind, bytes(8))], []), "value type"
        yield f"element-type-{kind}", whole([pair(b"k", ARR, array(kind, 1, bytes(8)))], []), "element type"
    for depth in (65, 66, 1000, 5000):
        deep = (u32(ARR) + u64(1)) * depth + array(U8, 1, b"\1")
        yield f"nested-{depth}-deep", whole([pair(b"k", ARR, deep)], []), "nested"
    wide = whole([pair(b"k", ARR, array(ARR, 2, array(U8, 1, b"\1")))], [])
    yield "nested-too-few", wide, "array"
    yield "nested-element-type", whole([pair(b"k", ARR, array(ARR, 1, array(13, 1, b"\1")))], []), "element type"
    for kind in (1024, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1):
        yield f"tensor-type-{kind}", whole([], [info(b"t", (256,), kind, 0)], 4096), "type"
    for version in (0, 1, 4, 0xFFFF, 2**31, 2**32 - 1):
        yield f"version-{version}", header(0, 0, version), "version"
    for version in (2, 3):
        yield f"big-endian-{version}", b"GGUF" + struct.pack(">I", version) + bytes(16), "byte order"
    for magic in (b"GGML", b"gguf", b"\0\0\0\0", b"FUGG", b"GGUf", b"PK\3\4", b"\x80\x04\x95\0", b"tjgg", b"lmgg"):
        yield f"magic-{magic.hex()}", header(0, 0, 3, magic), "not a GGUF"


def alignments() -> Iterator[tuple[str, bytes, str]]:
    for n in (0, 3, 5, 12, 31, 33, 48, 2**20 + 1, 2**21, 2**31, 2**32 - 1):
        yield f"alignment-{n}", whole([pair(b"general.alignment", U32, u32(n))], INFOS), "general.alignment"
    for kind, size in ((U8, 1), (U16, 2), (I32, 4), (F32, 4), (U64, 8), (BOOL, 1)):
        value = (32).to_bytes(8, "little")[:size]
        yield f"alignment-type-{kind}", whole([pair(b"general.alignment", kind, value)], INFOS), "general.alignment"
    yield "alignment-text", whole([pair(b"general.alignment", STR, string(b"32"))], INFOS), "general.alignment"
    yield "alignment-list", whole([pair(b"general.alignment", ARR, array(U32, 1, u32(32)))], INFOS), "general.alignment"
    large = pair(b"general.alignment", U32, u32(2**20))
    yield "alignment-beyond-the-end", header(1, 1) + large + info(b"t", (8,), T_F32, 0), "incomplete"


def names() -> Iterator[tuple[str, bytes, str]]:
    yield "key-twice", whole([pair(b"k", U8, b"\1"), pair(b"k", U8, b"\2")], []), "occurs twice"
    yield (
        "key-twice-other-type",
        whole([pair(b"k", U8, b"\1"), *PAIRS, pair(b"k", STR, string(b""))], []),
        "occurs twice",
    )
    yield "alignment-twice", whole([pair(b"general.alignment", U32, u32(32))] * 2, []), "occurs twice"
    yield "key-empty", whole([pair(b"", U8, b"\1")], []), "key"
    yield "key-huge", whole([pair(b"k" * 65536, U8, b"\1")], []), "key"
    yield "tensor-twice", whole([], [INFOS[0], info(b"t0", (8,), T_F32, 128)]), "occurs twice"
    yield "tensor-empty-name", whole([], [info(b"", (8,), T_F32, 0)]), "name"
    yield "tensor-huge-name", whole([], [info(b"t" * 65536, (8,), T_F32, 0)]), "name"
    for text in (b"\0", b"a\0", b"\0a", b"a\0b"):
        yield f"key-nul-{text.hex()}", whole([pair(text, U8, b"\1")], []), "NUL"
        yield f"tensor-nul-{text.hex()}", whole([], [info(text, (8,), T_F32, 0)]), "NUL"


def offsets() -> Iterator[tuple[str, bytes, str]]:
    for n in (1, 16, 31, 33, 2**63 + 1, 2**64 - 1):
        yield f"offset-unaligned-{n}", whole([], [info(b"t", (8,), T_F32, n)]), "offset of tensor"
    for n in (256, 2**31, 2**32, 2**62):
        yield f"offset-past-{n}", whole([], [info(b"t", (8,), T_F32, n)]), "incomplete"
    for n in (2**63, 2**64 - 32):
        yield f"offset-past-{n}", whole([], [info(b"t", (8,), T_F32, n)]), "offset of tensor"
    yield "offset-overlap", whole([], [info(b"a", (32,), T_F32, 0), info(b"b", (8,), T_F32, 96)]), "overlaps"
    yield "offset-overlap-unsorted", whole([], [info(b"b", (8,), T_F32, 96), info(b"a", (32,), T_F32, 0)]), "overlaps"
    yield "offset-same", whole([], [info(b"a", (8,), T_F32, 0), info(b"b", (16,), T_F32, 0)]), "overlaps"
    inside = [info(b"a", (32,), T_F32, 0), info(b"b", (8,), T_F32, 32), info(b"c", (32,), T_F32, 0)]
    yield "offset-inside-of-tied", whole([], inside), "overlaps"
    for kind in UNKNOWN:  # only offsets give their sizes
        yield f"unknown-{kind}-past", whole([], [info(b"a", (8,), kind, 256)]), "offset of tensor"
        yield f"unknown-{kind}-far", whole([], [info(b"a", (8,), kind, 2**64 - 32)]), "offset of tensor"
        yield f"unknown-{kind}-unaligned", whole([], [info(b"a", (8,), kind, 16)]), "offset of tensor"
        yield (
            f"unknown-{kind}-same",
            whole([], [info(b"a", (8,), kind, 0), info(b"b", (8,), T_F32, 0)]),
            "overlaps",
        )
        yield f"unknown-{kind}-overlap", whole([], [INFOS[0], info(b"a", (8,), kind, 96)]), "overlaps"
        yield (
            f"unknown-{kind}-next-past",
            whole([], [info(b"a", (8,), kind, 0), info(b"b", (8,), T_F32, 2**63)]),
            "offset of tensor 'b'",
        )
        for label, ne in {"2to63": (2**63,), "wrap": (2**32, 2**32), "five": (2**16,) * 5}.items():
            yield f"unknown-{kind}-shape-{label}", whole([], [info(b"a", ne, kind, 0)]), "dimension"
        yield f"unknown-{kind}-n_dims", whole([], [info(b"a", (8,) * 4, kind, 0, n_dims=100)]), "dimensions"
    yield "size-past", whole([], [info(b"a", (8, 9), T_F32, 0)]), "incomplete"
    yield "size-past-by-one-block", whole([], [info(b"a", (32, 15), T_Q4_0, 0)]), "incomplete"


def truncated() -> Iterator[tuple[str, bytes, str]]:
    data = whole(PAIRS, INFOS, 128 + 18)
    for n in range(len(data)):
        yield f"truncated-{n:04d}", data[:n], "incomplete" if n else "empty"


def hostile() -> Iterator[tuple[str, bytes, str]]:
    for kind in (counts, shapes, types, alignments, names, offsets, truncated):
        yield from kind()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fuzz-seeds", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.fuzz_seeds:
        files = [(f"valid-{name}", data) for name, data in valid()]
        for kind in (counts, shapes, types, alignments, names, offsets):
            files += [(name, data) for name, data, _ in list(kind())[::7] if len(data) < 1000]
    else:
        files = [(name, data) for name, data, _ in hostile()]
    for name, data in files:
        (options.folder / f"{name}.gguf").write_bytes(data)
    print(f"{len(files)} files in {options.folder}")


if __name__ == "__main__":
    main()
