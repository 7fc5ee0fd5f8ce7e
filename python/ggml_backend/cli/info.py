"""``python -m ggml_backend info``, and :func:`show_config`: describes this build and this
machine."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .. import ops
from .._base.errors import InvalidArgumentError, check
from .._base.terminal import print_json, say
from .._ffi import ffi, lib
from ..backend.backend import Backend, backends, cpu_levels
from ..backend.buffer import BufferType, text
from ..dtypes import bfloat16, dtypes, float32, q8_0
from ..tensor.context import Context
from .bench._products import algorithm_of

if TYPE_CHECKING:
    import argparse


def _config() -> dict[str, Any]:
    features = sorted(name.removeprefix("ggml_cpu_has_") for name in dir(lib) if name.startswith("ggml_cpu_has_"))
    found = {name: bool(getattr(lib, f"ggml_cpu_has_{name}")()) for name in features}
    devices = []
    for i, name in enumerate(backends()):
        buft = lib.ggml_backend_reg_get_default_buffer_type(i)
        kind = BufferType(buft, None) if buft else None
        memory = None if kind is None else {"name": kind.name, "alignment": kind.alignment, "host": kind.is_host}
        devices.append({"name": name, "memory": memory})
    return {
        "ggml_backend": text(lib.gbpy_version()),
        "compiler": text(lib.gbpy_build()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": {
            "processor": _processor(),
            "levels": cpu_levels(),
            "level cap (GGML_CPU_LEVEL)": os.environ.get("GGML_CPU_LEVEL"),
            "default threads": int(lib.ggml_cpu_default_n_threads()),
            "instruction sets": [name for name, has in found.items() if has],
            "NUMA": bool(lib.ggml_is_numa()),
        },
        "backends": devices,
        "backends that are not there": backends().missing,
        "dtypes": list(dtypes),
        "tensor bytes": ffi.sizeof("struct ggml_tensor"),
    }


def _processor() -> str:
    return text(lib.ggml_cpu_processor_name()) or platform.processor() or platform.machine()


def _traits(level: str) -> dict[str, dict[str, Any]]:
    """Traits that distinguish this processor from others with the same instructions. Measures
    unknown ones."""
    found = {}
    for i in range(lib.ggml_cpu_trait_count()):
        trait = ffi.new("struct ggml_cpu_trait *")
        check(lib.ggml_cpu_get_trait(i, level.encode(), trait), "traits of the processor")
        value: float = trait.value
        found[text(trait.name)] = {
            "value": int(value) if value.is_integer() else value,
            "source": text(trait.source),
            "meaning": text(trait.meaning),
        }
    return found


def _chosen(level: str) -> dict[str, str]:
    """Algorithms of the products for which traits decide, at this level or another."""
    chosen = {}
    with Context() as ctx:
        for dtype, rows in (bfloat16, (16, 17, 65, 512)), (q8_0, (16, 64, 512)):
            for n in rows:
                product = ops.mul_mat(ctx.tensor((4096, 4096), dtype), ctx.tensor((n, 4096), float32))
                algorithm = algorithm_of(product, level)
                by_pairs = ("blocked_bf16", "unpacked_bf16")
                why = [f"; not {name}: {reason}" for name, reason in algorithm.declined if name in by_pairs]
                chosen[f"{dtype.name} weights, {n} rows"] = algorithm.name + "".join(why)
    return chosen


def _cpu_config() -> dict[str, Any]:
    with Backend("CPU") as backend:
        level = backend.level
    return {
        "processor": _processor(),
        "level": level,
        "traits": _traits(level),
        "reproducible (GGML_CPU_REPRODUCIBLE)": bool(lib.ggml_cpu_is_reproducible()),
        "chosen by traits": _chosen(level),
    }


def _lines(value: Any, indent: int = 0) -> list[str]:
    pad = "  " * indent
    if isinstance(value, dict):
        lines = []
        for k, v in value.items():
            if isinstance(v, dict) or (isinstance(v, list) and v and isinstance(v[0], dict)):
                lines += [f"{pad}{k}:", *_lines(v, indent + 1)]
            else:
                lines.append(f"{pad}{k}: {', '.join(map(str, v)) if isinstance(v, list) else v}")
        return lines
    if isinstance(value, list):
        return [f"{pad}- {', '.join(f'{k}: {v}' for k, v in item.items())}" for item in value]
    return [f"{pad}{value}"]


@overload
def show_config(mode: Literal["print"] = "print") -> None: ...
@overload
def show_config(mode: Literal["dict"]) -> dict[str, Any]: ...
def show_config(mode: str = "print") -> dict[str, Any] | None:
    """Prints the version, compiler, processor, kernels, threads and backends. With mode="dict" it
    returns them."""
    if not isinstance(mode, str) or mode not in ("print", "dict"):
        raise InvalidArgumentError(f"show_config: mode must be 'print' or 'dict', not {mode!r:.60}")
    config = _config()
    if mode == "dict":
        return config
    say("\n".join(_lines(config)))
    return None


EXAMPLE = "--json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="show only the processor: its measured traits, and the algorithms that they select",
    )


def run(options: argparse.Namespace) -> int:
    if options.cpu:
        config = _cpu_config()
        if options.json:
            print_json(config)
        else:
            traits = {name: f"{t['value']}, {t['source']}: {t['meaning']}" for name, t in config["traits"].items()}
            say("\n".join(_lines({**config, "traits": traits})))
    elif options.json:
        print_json(show_config("dict"))
    else:
        show_config()
    return 0
