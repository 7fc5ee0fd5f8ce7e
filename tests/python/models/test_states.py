"""States of programs: values that a network keeps from call to call, in memory that its graphs write."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import FileError
from ggml_backend.program import Program
from ggml_backend.program.network import Network, Node, Ref, Value
from ggml_backend.program.program import Engine
from ggml_backend.program.runs import Input, Variant
from ggml_backend.program.saved import Declared
from ggml_backend.program.sizes import name_of

INITIAL = {"cache": np.arange(16, dtype=np.float32).reshape(2, 4, 2), "first": np.float32([1, 2]),
           "second": np.float32([10, 20]), "count": np.array(0, np.int64)}  # fmt: skip


def network():
    """A cache with rows at the places of an input, two states that change places, and a counter.

    It returns the new cache, the old counter and the sum of the old ``first`` and the new ``second``.
    """
    n = name_of("n")
    values = {"x": Value((2, n, 2), "float32"), "at": Value((n,), "int64")}
    values |= {k: Value(v.shape, str(v.dtype)) for k, v in INITIAL.items()}
    values |= {"written": values["cache"], "twice": values["first"], "more": values["count"], "old": values["count"],
               "third": values["first"], "total": values["first"]}  # fmt: skip
    nodes = [
        Node("index_copy", {"self": Ref("cache"), "dim": 1, "index": Ref("at"), "source": Ref("x")}, ("written",)),
        Node("mul.Tensor", {"self": Ref("first"), "other": 2.0}, ("twice",)),
        Node("add.Tensor", {"self": Ref("second"), "other": 1.0}, ("third",)),
        Node("add.Tensor", {"self": Ref("count"), "other": 1}, ("more",)),
        Node("view", {"self": Ref("count"), "size": []}, ("old",)),
        Node("add.Tensor", {"self": Ref("first"), "other": Ref("twice")}, ("total",)),
    ]
    states = {"cache": "written", "first": "third", "second": "twice", "count": "more"}
    outputs = ["written", "third", "twice", "more", "written", "old", "total"]
    return Network(["x", "at", *states], outputs, nodes, values, {}, set(), {"n": (1, 4)}, [], states)


def made(devices=("CPU",)):
    net = network()
    inputs = [Input(name, net.values[name]) for name in ("x", "at")]
    results = {"dict": [["cache", 0], ["count", 1], ["total", 2]]}
    engine = Engine([gb.Backend(name) for name in devices], {})
    engine.add_states(INITIAL)
    variant = Variant(net, ["x", "at"], [(name, None) for name in net.results])
    return Program(engine, Declared(inputs, {}, results, [(2, 1, 2), (1,)]), [variant], "test")


class Expected:
    """The same in NumPy."""

    def __init__(self):
        self.cache, self.first, self.second, self.count = (v.copy() for v in INITIAL.values())

    def __call__(self, x, at):
        self.cache[:, at] = x
        old, count = self.first, self.count
        self.first, self.second, self.count = self.second + 1, 2 * self.first, self.count + 1
        return {"cache": self.cache, "count": count, "total": 3 * old}


def calls(seed=0):
    r = np.random.default_rng(seed)
    for n in (1, 2, 1, 4, 2):
        yield r.standard_normal((2, n, 2), np.float32), r.permutation(4)[:n]


def check(program):
    expected = Expected()
    for x, at in calls():
        found, theirs = program(x, at), expected(x, at)
        assert {*found} == {*theirs}
        for name, array in theirs.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
            assert found[name].dtype == array.dtype


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU")])
def test_states_are_kept_from_call_to_call_in_graphs_of_all_sizes(devices):
    program = made(devices)
    check(program)
    assert program.states["count"] == 5 and program.states["cache"].shape == (2, 4, 2)
    program.reset()
    for name, array in INITIAL.items():
        np.testing.assert_array_equal(program.states[name], array)
    check(program)


def test_rows_are_written_into_the_state_itself():
    program = made()
    copies = [t for t in program.graph.nodes if t.op in ("CPY", "CONT") and t.size == 16]
    writes = [t for t in program.graph.nodes if t.op == "SET_ROWS"]
    assert len(writes) == 1 and len(copies) == 1  # the copy is the result of the call
    assert "CPY" not in {t.op for t in copies}


def test_a_file_has_the_first_values_of_states(tmp_path):
    program = made()
    check(program)
    program.save(tmp_path / "p.gguf")
    again = gb.load_program(tmp_path / "p.gguf")
    check(again)
    again.save(tmp_path / "again.gguf")
    check(gb.load_program(tmp_path / "again.gguf"))


def test_graphs_in_c_share_states(tmp_path):
    from test_saved_programs import InC

    program = made()
    check(program)
    program.save(tmp_path / "p.gguf")
    for device in (None, "SIM"):
        in_c, expected = InC(tmp_path / "p.gguf", device), Expected()
        for x, at in calls():
            found = in_c.run(in_c.find(n=len(at)), {"x": x, "at": at})
            for name, array in expected(x, at).items():
                np.testing.assert_allclose(found[name], array.reshape(-1), rtol=1e-6)
        in_c.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["networks"][0]["states"].update(cache="third"), "'third' is no new value of the state 'cache'"),
        (lambda d: d["networks"][0]["states"].update(other="third"), "no new value of the state 'other'"),
        (lambda d: d["networks"][0]["states"].update(first="written"), "no new value of the state"),
        (lambda d: d["states"].pop("cache"), "the program is damaged: KeyError"),
        (lambda d: d["states"].update(cache="state.first"), "has 8 bytes instead of 64"),
        (lambda d: d["networks"][0].pop("states"), "the inputs of a network are not those of the program"),
        (lambda d: d.update(states=[]), "the program is damaged: TypeError"),
    ],
)
def test_damaged_states_are_named(tmp_path, change, message):
    made().save(tmp_path / "p.gguf")
    with gb.gguf.open(tmp_path / "p.gguf") as file, gb.gguf.Writer(tmp_path / "damaged.gguf") as writer:
        data = json.loads(file.metadata["program.model"])
        change(data)
        writer.copy_from(file, keys=["program.version"])
        writer.add("program.model", json.dumps(data))
    with pytest.raises(FileError, match=message):
        gb.load_program(tmp_path / "damaged.gguf")
