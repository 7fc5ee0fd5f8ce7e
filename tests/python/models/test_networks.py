"""Networks that PyTorch exported, run without PyTorch. ``tools/record_networks.py`` writes them."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import ggml_backend as gb
from damaged_json import damaged
from ggml_backend.errors import FileError, InvalidArgumentError, UnsupportedError
from ggml_backend.program.network import Network, Node, Ref, Value
from ggml_backend.program.program import Engine, draft
from ggml_backend.program.rules import RULES
from source_tree import in_tree

FILES = sorted(in_tree("tests/data/networks").glob("*.npz"))


def stored(path):
    """The network as JSON, and arrays by kind and name."""
    kinds = {"array": {}, "input": {}, "output": {}}
    with np.load(path) as file:
        for key in file.files:
            kind, _, name = key.partition("/")
            if kind in kinds:
                kinds[kind][name] = file[key]
        return json.loads(file["network"].tobytes()), kinds


def run(network, inputs, devices=None):
    engine = Engine(devices or [gb.Backend("CPU", n_threads=1)], {})
    return engine.run(engine.step(network, "test"), inputs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_networks_give_the_results_of_pytorch(path):
    data, kinds = stored(path)
    network = Network.from_json(data, kinds["array"])
    found = run(network, kinds["input"])
    assert len(network.outputs) == len(kinds["output"])
    for i, name in enumerate(network.outputs):
        theirs = kinds["output"][str(i)]
        assert found[name].shape == theirs.shape
        if "attention_mask" in kinds["input"] and theirs.ndim == 3:  # rows of padding have no meaning
            real = kinds["input"]["attention_mask"] == 1
            assert np.abs((found[name] - theirs)[real]).max() < 1e-4 * np.abs(theirs).max()
        else:
            assert np.abs(found[name] - theirs).max() < 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_json_keeps_a_network(path):
    data, kinds = stored(path)
    again = Network.from_json(json.loads(json.dumps(data)), kinds["array"])
    assert again.to_json() == data


def test_stored_networks_use_many_rules():
    used = {node["op"] for path in FILES for node in stored(path)[0]["nodes"]}
    assert used <= {*RULES}
    assert len(used) >= 25


def test_a_stored_network_runs_on_two_devices():
    data, kinds = stored(FILES[0])
    network = Network.from_json(data, kinds["array"])
    sim = gb.Backend("SIM", mem="64M", ops=["mul_mat", "add", "norm"])
    mine = run(network, kinds["input"])
    other = run(Network.from_json(data, kinds["array"]), kinds["input"], [sim, gb.Backend("CPU")])
    for name in network.outputs:
        np.testing.assert_allclose(mine[name], other[name], atol=1e-5)


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "ResNetModel"])
def test_damaged_networks_are_refused_or_run(name):
    data, kinds = stored(in_tree(f"tests/data/networks/{name}.npz"))
    refused = 0
    for seed in range(60):
        try:
            network = Network.from_json(damaged(data, random.Random(seed)), kinds["array"])
            run(network, kinds["input"])
        except gb.GgmlError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("data", [None, [], {}, {"inputs": []}, 3])
def test_data_that_is_no_network_is_refused(data):
    with pytest.raises(FileError, match="the network is damaged"):
        Network.from_json(data, {})


def test_inputs_of_another_shape_are_refused():
    values = {"x": Value((2, 3), "float32"), "y": Value((2, 3), "float32")}
    for inputs, message in [({}, "and is missing"), ({"x": np.ones((3, 2), np.float32)}, r"not \(3, 2\)")]:
        with pytest.raises(InvalidArgumentError, match=message):
            run(network_of("relu", {"self": Ref("x")}, values), inputs)


def network_of(op, arguments, values):
    network = Network(inputs=["x"], outputs=["y"], values=values, nodes=[Node(op, arguments, ("y",), "part")])
    network.check()
    return network


def test_an_operator_without_a_rule_is_listed():
    values = {"x": Value((2, 3), "float32"), "y": Value((2, 3), "float32")}
    network = network_of("unheard_of", {"self": Ref("x")}, values)
    with pytest.raises(UnsupportedError, match=r"unheard_of \(1 times, first in part\): there is no rule"):
        run(network, {"x": np.ones((2, 3), np.float32)})
    assert [m.operator for m in draft(network, {}).missing] == ["unheard_of"]


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        ("relu", {"self": Ref("x"), "other": 1}, "does not know the argument other"),
        ("pow.Tensor_Scalar", {"self": Ref("x"), "exponent": 0.3}, "the exponent 0.3"),
        ("linear", {"input": Ref("x")}, "missing"),
        ("permute", {"self": Ref("x"), "dims": [0, 7]}, "axis 7"),
    ],
)
def test_cases_that_a_rule_does_not_cover_have_a_reason(op, arguments, reason):
    values = {"x": Value((2, 3), "float32"), "y": Value((2, 3), "float32")}
    with pytest.raises(UnsupportedError, match=reason):
        run(network_of(op, arguments, values), {"x": np.ones((2, 3), np.float32)})


def test_a_shape_that_an_operator_cannot_have_is_an_error():
    values = {"x": Value((2, 3), "float32"), "y": Value((5,), "float32")}
    with pytest.raises(gb.GgmlError, match="relu"):
        run(network_of("relu", {"self": Ref("x")}, values), {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_have_no_rule(dtype):
    values = {"x": Value((2, 3), dtype), "y": Value((2, 3), dtype)}
    with pytest.raises(UnsupportedError, match=f"it has no rule for {dtype}"):
        run(network_of("relu", {"self": Ref("x")}, values), {"x": np.ones((2, 3), dtype)})
