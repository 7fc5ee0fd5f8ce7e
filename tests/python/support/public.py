"""The public interface of the package: its submodules and their names."""

from __future__ import annotations

import ggml_backend as gb

MODULES = {
    "gb": gb, "gb.backend": gb.backend, "gb.cluster": gb.cluster, "gb.devices": gb.devices, "gb.dtypes": gb.dtypes,
    "gb.errors": gb.errors, "gb.gguf": gb.gguf, "gb.models": gb.models, "gb.ops": gb.ops, "gb.optim": gb.optim,
    "gb.planning": gb.planning, "gb.profile": gb.profile, "gb.sched": gb.sched, "gb.tensor": gb.tensor,
    "gb.testing": gb.testing,
}  # fmt: skip

PATHS: dict[str, str] = {}
"""Each public name once, with the shortest path that gives it: "Tensor" has "gb.Tensor", "relu" has "gb.ops.relu"."""

for _path, _module in MODULES.items():
    for _name in _module.__all__:
        PATHS.setdefault(_name, f"{_path}.{_name}")

THINGS: dict[str, object] = {name: getattr(MODULES[path.rpartition(".")[0]], name) for name, path in PATHS.items()}
"""What the names stand for."""

LIBRARY = {name: thing for name, thing in THINGS.items() if not PATHS[name].startswith(("gb.cluster.", "gb.testing."))}
"""The same without functions that start ranks, check devices, or need another package."""
del LIBRARY["load_onnx"]
LIBRARY["Cluster"] = gb.cluster.Cluster
