"""The package is imported again after its removal from ``sys.modules``, or its modules are
reloaded. Each test has its own process, because the change is permanent.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

BEGIN = """
import gc, importlib, sys
import numpy as np
import ggml_backend as gb

def forget(prefix="ggml_backend"):
    for name in list(sys.modules):
        if name == prefix or name.startswith(prefix + "."):
            del sys.modules[name]

class Mine(gb.devices.Device):
    operations = {}
    def __init__(self, **options):
        super().__init__(**options)

def work(gb):
    cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM")
    with gb.Context() as ctx:
        x = ctx.tensor((3, 4)).set_input()
        y = gb.ops.map_custom(lambda out, a: a + 1, gb.ops.custom(lambda out, a: a * 2, gb.ops.relu(x)))
        graph = ctx.graph(y)
        sched = gb.Scheduler([sim, cpu])
        sched.allocate(graph)
        x.set(np.ones((3, 4), np.float32))
        sched.compute(graph)
        assert y.numpy(copy=True).tolist() == [[3.0] * 4] * 3
        assert sched.compute_async(graph, y).results()[0].tolist() == [[3.0] * 4] * 3
        array = gb.Backend("ARRAY", library="numpy")
        with gb.Context() as other:
            a = other.constant(np.arange(4, dtype=np.float32))
            z = gb.ops.sqr(a)
            both = gb.Scheduler([array, cpu])
            both.compute(other.graph(z))
            assert z.numpy(copy=True).tolist() == [0, 1, 4, 9]
        try:
            x @ x
        except gb.errors.InvalidArgumentError:
            pass
        else:
            raise AssertionError("no error")
"""

PROGRAMS = {
    "removed and imported again": "work(gb); forget(); import ggml_backend as again; work(again); work(gb)",
    "many times": """
for _ in range(5):
    forget()
    import ggml_backend as again
    work(again)
assert again is gb
""",
    "objects of the first import are used with the second": """
ctx = gb.Context(); x = ctx.tensor((4,)).set_input(); graph = ctx.graph(gb.ops.custom(lambda out, a: a + 1, x))
sched = gb.Scheduler([gb.Backend("CPU", n_threads=1)]); sched.allocate(graph); x.set(1.0)
forget()
import ggml_backend as again
sched.compute(graph)
assert graph.nodes[0].numpy().tolist() == [2.0] * 4
y = again.relu(x)
assert isinstance(y, gb.Tensor) and isinstance(graph, again.Graph)
work(again)
""",
    "the first import is collected": """
del gb
forget()
gc.collect()
import ggml_backend as again
gc.collect()
work(again)
""",
    "only the top is removed": """
del sys.modules["ggml_backend"]
import ggml_backend as again
assert again is gb
work(again)
""",
    "modules that were imported late": """
from ggml_backend.cli import main
import ggml_backend.cli.plan, ggml_backend.cli.examples.models
plan = sys.modules["ggml_backend.cli.plan"]
forget()
import ggml_backend.cli.plan
assert sys.modules["ggml_backend.cli.plan"] is plan
assert ggml_backend.cli.main(["info", "--json"]) == 0
""",
    "a submodule is asked for first": """
sched = sys.modules["ggml_backend.sched"]
forget()
from ggml_backend.sched import Scheduler
assert Scheduler is gb.Scheduler and sys.modules["ggml_backend.sched"] is sched
""",
    "devices of a program": """
gb.devices.register_device("SECOND_MINE", Mine)
forget()
import ggml_backend as again
assert "SECOND_MINE" in again.backends()
again.register_device("SECOND_MINE", Mine)
""",
    "the package is reloaded": "work(gb); importlib.reload(gb); work(gb); importlib.reload(gb.gguf); work(gb)",
    "devices are reloaded": """
work(gb)
importlib.reload(sys.modules["ggml_backend.devices._array.device"])
importlib.reload(gb.devices)
work(gb)
""",
    "an import that fails is tried again": """
forget()
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name == "ggml_backend._base.again":
            raise ImportError("not now")
sys.meta_path.insert(0, Refuses())
try:
    import ggml_backend
except ImportError as error:
    assert "not now" in str(error)
else:
    raise AssertionError("imported")
del sys.meta_path[0]
import ggml_backend as again
work(again)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_package_works_when_it_is_imported_again(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + PROGRAMS[name]], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["reload", "forget"])
def test_every_module_can_be_reloaded_or_imported_again(first: str) -> None:
    """Reloads all modules except those with C callbacks, which can exist only once."""
    program = f"""
again = {first!r}
names = [n for n in sys.modules if n.startswith("ggml_backend.") and sys.modules[n] is not None]
kept = ("_ffi", "_base", "backend._", "devices._hooks", "devices._nodes", "devices._program", "tensor._callbacks")
for name in names:
    if name.partition(".")[2].startswith(kept) or name not in sys.modules:  # loaded when it is used
        continue
    if again == "reload":
        importlib.reload(sys.modules[name])
    else:
        del sys.modules[name]
        importlib.import_module(name)
    forget()
    gb = importlib.import_module("ggml_backend")
"""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
