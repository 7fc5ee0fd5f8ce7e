"""Programs in files: what PyTorch wrote is run without PyTorch, and files with any damage are refused or run."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

import ggml_backend as gb
from damaged_json import damaged
from ggml_backend._ffi import ffi, lib
from ggml_backend.errors import FileError, InvalidArgumentError, StateError, UnsupportedError
from ggml_backend.program import Program
from ggml_backend.program.network import Network, Node, Ref, Value
from ggml_backend.program.program import Engine
from ggml_backend.program.runs import Variant
from ggml_backend.program.saved import Declared, Input
from ggml_backend.program.sizes import name_of
from source_tree import in_tree

FOLDER = in_tree("tests/data/programs")
FILES = sorted(FOLDER.glob("*.gguf"))


def recorded(path):
    """Inputs and results of PyTorch by size."""
    found = {}
    with np.load(path.with_suffix(".npz")) as file:
        for key in file.files:
            size, kind, name = key.split("/")
            found.setdefault(size, {"input": {}, "output": {}})[kind][name] = file[key]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_give_the_results_of_pytorch_for_every_size(path):
    program = gb.load_program(path, n_threads=1)
    for size, kinds in recorded(path).items():
        found = program(**kinds["input"])
        assert {*found} == {*kinds["output"]}
        for name, theirs in kinds["output"].items():
            assert found[name].shape == theirs.shape, size
            real = kinds["input"].get("attention_mask", np.ones(theirs.shape[:2])) == 1  # not rows of padding
            mine, theirs = (found[name][real], theirs[real]) if theirs.ndim == 3 else (found[name], theirs)
            assert np.abs(mine - theirs).max() < 1e-4 * np.abs(theirs).max(), (size, name)
    assert not program.missing


def test_weights_of_a_file_are_not_copied():
    found = gb.load_program(FOLDER / "BertModel.gguf").explain()
    assert found.shared > 50_000 and found.copied < 1000


def test_tied_weights_are_in_the_file_once():
    with gb.gguf.open(FOLDER / "GPT2LMHeadModel.gguf") as file:
        sizes = [t.shape for t in file.tensors.values()]
    assert sizes.count((99, 32)) == 1


def test_a_program_shows_what_it_takes():
    program = gb.load_program(FOLDER / "BertModel.gguf")
    assert program.inputs == dict.fromkeys(("input_ids", "attention_mask"), (("batch", "tokens"), "int64"))
    assert repr(program).startswith("<Program input_ids int64 (batch, tokens), attention_mask int64 (batch, tokens)")
    assert program.plan.memory and program.graph.nodes and program.backends[-1].name == "CPU"


def test_a_program_can_be_saved_again(tmp_path):
    program = gb.load_program(FOLDER / "BertModel.gguf")
    program.save(tmp_path / "again.gguf")
    again = gb.load_program(tmp_path / "again.gguf")
    ids = np.arange(6).reshape(2, 3)
    for name, array in program(ids, np.ones_like(ids)).items():
        np.testing.assert_array_equal(again(ids, np.ones_like(ids))[name], array)


IDS = np.ones((2, 3), np.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p(), TypeError, "the input input_ids is missing"),
        (lambda p: p(IDS), TypeError, "the input attention_mask is missing"),
        (lambda p: p(IDS, IDS, IDS), TypeError, "takes 2 inputs (input_ids, attention_mask), not 3"),
        (lambda p: p(IDS, input_ids=IDS), TypeError, "input_ids was given twice"),
        (lambda p: p(IDS, attention_masc=IDS), TypeError, "there is no input 'attention_masc'; did you mean"),
        (lambda p: p(IDS, IDS[0]), InvalidArgumentError, "attention_mask must have 2 axes, not 1"),
        (lambda p: p(IDS, IDS[:, :2]), InvalidArgumentError, "tokens is 3 in input_ids, and 2 in attention_mask"),
        (lambda p: p(IDS, IDS.astype(float)), InvalidArgumentError, "attention_mask must be int64, not float64"),
        (lambda p: p(IDS, [[1], [1, 2]]), TypeError, "attention_mask"),
        (lambda p: p(*[np.ones((2, 65), int)] * 2), InvalidArgumentError, "tokens must be 2 to 64, not 65"),
        (lambda p: p(*[np.ones((0, 5), int)] * 2), InvalidArgumentError, "batch must be at least 2, not 0"),
        (lambda p: p(IDS * 2**40, IDS), InvalidArgumentError, "integers of a program are at most"),
    ],
)
def test_wrong_inputs_are_named(call, error, message):
    program = gb.load_program(FOLDER / "BertModel.gguf")
    with pytest.raises(error) as raised:
        call(program)
    assert message in str(raised.value)
    assert program(IDS, IDS)["last_hidden_state"].shape == (2, 3, 32)


def test_other_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        gb.load_program(tmp_path / "none.gguf")
    with gb.gguf.Writer(tmp_path / "weights.gguf") as writer:
        writer.add("general.architecture", "bert")
    with pytest.raises(FileError, match=r"weights\.gguf holds no program; program\.save\(path\) writes such files"):
        gb.load_program(tmp_path / "weights.gguf")
    with gb.gguf.Writer(tmp_path / "new.gguf") as writer:
        writer.add("program.version", 7).add("program.model", "{}")
    with pytest.raises(FileError, match="has version 7 of programs; this package reads version 1"):
        gb.load_program(tmp_path / "new.gguf")
    with pytest.raises(TypeError, match="path must be a path, not int"):
        gb.load_program(3)


# ------------------------------------------------------------------------------------------------ networks made by hand


def program_of(network, result=0, example=None):
    inputs = [Input(name, network.values[name]) for name in network.inputs]
    example = example or [(2,) * len(one.value.shape) for one in inputs]
    variant = Variant(network, [*network.inputs], [(name, None) for name in network.outputs])
    return Program(Engine([gb.Backend("CPU", n_threads=1)], {}), Declared(inputs, {}, result, example), [variant], "x")


def of_many_dtypes():
    """A network whose arrays have every dtype that an array may have, and five axes."""
    n = name_of("n")
    values = {"x": Value((n, 2), "float32"), "y": Value((n, 2), "float32"), "z": Value((n, 2), "float32")}
    arrays = {
        "truth": np.array([True, False]), "integers": np.array([3, -4], np.int64),
        "bytes": np.array([7, 200], np.uint8), "narrow": np.array([1, -2], np.int16),
        "number": np.array(2.5, np.float32),
        "deep": np.arange(2, dtype=np.float32).reshape(1, 1, 1, 1, 2), "none": np.zeros((0, 2), np.float32),
    }  # fmt: skip
    values |= {name: Value(array.shape, str(array.dtype)) for name, array in arrays.items()}
    nodes = [
        Node("where.self", {"condition": Ref("truth"), "self": Ref("x"), "other": Ref("number")}, ("y",), "a"),
        Node("mul.Tensor", {"self": Ref("y"), "other": Ref("integers")}, ("z",), "b"),
    ]
    return Network(["x"], ["z", *arrays], nodes, values, arrays, set(), {"n": (1, 9)})


def test_arrays_of_all_dtypes_are_kept(tmp_path):
    network = of_many_dtypes()
    structure = {"dict": [[name, i] for i, name in enumerate(network.outputs)]}
    program = program_of(network, structure)
    program.save(tmp_path / "p.gguf")
    again = gb.load_program(tmp_path / "p.gguf")
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    found = again(x)
    np.testing.assert_array_equal(found["z"], np.where([True, False], x, 2.5) * [3, -4])
    for name, array in network.arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(InvalidArgumentError, match="n must be 1 to 9, not 10"):
        again(np.ones((10, 2), np.float32))


def test_results_keep_their_structure(tmp_path):
    network = of_many_dtypes()
    structure = {"tuple": [{"list": [0, {"dict": [["a", 1], [2, {"tuple": []}]]}]}, 5]}
    network.outputs = network.outputs[:6]
    program_of(network, structure).save(tmp_path / "p.gguf")
    (first, second), number = gb.load_program(tmp_path / "p.gguf")(np.ones((1, 2), np.float32))
    assert first.shape == (1, 2) and second["a"].dtype == bool and second[2] == () and number.dtype == np.float32


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "float16", "bfloat16", "q4_k"])
@pytest.mark.parametrize("turned", [False, True])
def test_matrices_are_stored_in_their_format(tmp_path, format, turned):
    r = np.random.default_rng(0)
    weight = r.standard_normal((256, 8) if turned else (8, 256), np.float32)
    values = {"x": Value((name_of("n"), 256), "float32"), "w": Value(weight.shape, "float32")}
    values["y"] = Value((name_of("n"), 8), "float32")
    node = (
        Node("mm", {"self": Ref("x"), "mat2": Ref("w")}, ("y",))
        if turned
        else Node("linear", {"input": Ref("x"), "weight": Ref("w")}, ("y",))
    )
    network = Network(["x"], ["y"], [node], values, {"w": weight}, {"w"}, {"n": (1, 99)})
    program = program_of(network, example=[(2, 256)])
    program._engine.weights.formats["w"], program._engine.weights.precision = format, "f32"
    program.save(tmp_path / "p.gguf")
    with gb.gguf.open(tmp_path / "p.gguf") as file:
        stored = [t.dtype.name for t in file.tensors.values() if not t.name.startswith("program.graph.")]
        assert stored == [format]
    rows = gb.quantize(np.ascontiguousarray(weight.T if turned else weight), format)
    kept = gb.dequantize(rows) if format not in ("float16",) else rows.astype(np.float32)
    x = r.standard_normal((3, 256), np.float32)
    np.testing.assert_allclose(gb.load_program(tmp_path / "p.gguf")(x), x @ kept.T, atol=2e-4)


def test_sizes_with_conditions_are_refused(tmp_path):
    n = name_of("n")
    values = {"x": Value((n,), "float32"), "y": Value((n // 2, 2), "float32")}
    node = Node("view", {"self": Ref("x"), "size": [n // 2, 2]}, ("y",))
    network = Network(["x"], ["y"], [node], values, sizes={"n": (2, 100)}, conditions=[(n % 2, "==", 0)])
    program_of(network).save(tmp_path / "p.gguf")
    program = gb.load_program(tmp_path / "p.gguf")
    assert program(np.ones(6, np.float32)).shape == (3, 2)
    with pytest.raises(InvalidArgumentError, match=r"the model is for sizes with \(\(n\) % \(2\)\) == 0, not for"):
        program(np.ones(5, np.float32))


def test_nodes_that_depend_on_sizes_alone_become_arrays():
    n = name_of("n")
    values = {name: Value((n,), "int64") for name in ("x", "places", "twice", "y")}
    nodes = [
        Node("arange.start_step", {"start": 1, "end": 3 * n + 1, "step": 3}, ("places",)),
        Node("add.Tensor", {"self": Ref("places"), "other": Ref("places")}, ("twice",)),
        Node("add.Tensor", {"self": Ref("x"), "other": Ref("twice")}, ("y",)),
    ]
    network = Network(["x"], ["y"], nodes, values, sizes={"n": (1, 2**20)})
    program = program_of(network)
    x = np.array([5, 6, 7, 8])
    np.testing.assert_array_equal(program(x), x + 2 * np.arange(1, 13, 3))
    assert [node.op for node in program.network.nodes] == ["add.Tensor"]


# --------------------------------------------------------------------------------------------------------------- damage


def rewritten(path, text, out):
    with gb.gguf.open(path) as file, gb.gguf.Writer(out) as writer:
        writer.copy_from(file, keys=["program.version"])
        writer.add("program.model", text)


def tried(path):
    """True if the file is refused; otherwise its program runs or raises what a program may raise."""
    try:
        program = gb.load_program(path, n_threads=1)
        arrays = {
            name: np.ones([n if isinstance(n, int) else 3 for n in shape], dtype)
            for name, (shape, dtype) in program.inputs.items()
            if all(isinstance(n, str) or n < 100 for n in shape) and dtype != "bfloat16"
        }
        program(**arrays)
    except (gb.GgmlError, TypeError):
        return True
    return False


def damage_models(tmp_path, name, seeds):
    path, out = FOLDER / f"{name}.gguf", tmp_path / "damaged.gguf"
    with gb.gguf.open(path) as file:
        data = json.loads(file.metadata["program.model"])
    refused = 0
    for seed in seeds:
        rewritten(path, json.dumps(damaged(data, random.Random(seed))), out)
        refused += tried(out)
    return refused


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel"])
def test_damaged_models_are_refused_or_run(tmp_path, name):
    assert damage_models(tmp_path, name, range(25)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel"])
def test_many_damaged_models_are_refused_or_run(tmp_path, name):
    n = int(os.environ.get("GGML_TEST_DAMAGE", "200"))  # make check-long: thousands
    assert damage_models(tmp_path, name, range(1000, 1000 + n)) > n / 2


def test_damaged_bytes_are_refused_or_run(tmp_path):
    whole = (FOLDER / "BertModel.gguf").read_bytes()
    out = tmp_path / "damaged.gguf"
    r = random.Random(0)
    refused = 0
    for _ in range(25):
        data = bytearray(whole[: r.randrange(len(whole))] if r.random() < 0.2 else whole)
        for _ in range(r.randint(1, 4)):
            data[r.randrange(min(len(data), 60_000))] = r.randrange(256)
        out.write_bytes(data)
        refused += tried(out)
    assert refused > 5


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", "[" * 100_000, '{"inputs":[]}', '{"inputs":' + "[" * 5000 + "]" * 5000 + "}"],
    ids=["empty", "open", "list", "number", "table", "deep", "partial", "deep-inputs"],
)
def test_texts_that_are_no_model_are_refused(tmp_path, text):
    rewritten(FOLDER / "BertModel.gguf", text, tmp_path / "p.gguf")
    with pytest.raises(FileError, match=r"p\.gguf.*(the program is damaged|holds no program)"):
        gb.load_program(tmp_path / "p.gguf")


def test_an_operator_that_this_version_does_not_have_is_listed(tmp_path):
    path = FOLDER / "BertModel.gguf"
    with gb.gguf.open(path) as file, gb.gguf.Writer(tmp_path / "p.gguf") as writer:
        writer.copy_from(file, keys=["program.version"])
        writer.add("program.model", file.metadata["program.model"].replace('"op":"gelu"', '"op":"gelu9"'))
    with pytest.raises(UnsupportedError, match=r"operators without a rule: gelu9 \(2 times, first in encoder"):
        gb.load_program(tmp_path / "p.gguf")


def on_sim(graph, inputs, expected):
    """Runs a copy of an imported graph on the device SIM, as a C program does."""
    device = lib.ggml_backend_reg_init_backend_from_str(b"SIM")
    made = lib.ggml_backend_graph_copy(device, graph)
    assert made.graph
    for key, array in inputs.items():
        floats = np.ascontiguousarray(array, np.float32)
        tensor = lib.ggml_graph_get_tensor(made.graph, key.encode())
        lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(floats), 0, floats.nbytes)
    assert lib.ggml_backend_graph_compute(device, made.graph)
    for key, array in expected.items():
        mine = np.empty_like(array)
        tensor = lib.ggml_graph_get_tensor(made.graph, key.encode())
        lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(mine), 0, mine.nbytes)
        assert np.abs(mine - array).max() <= 1e-6 * np.abs(array).max()
    lib.ggml_backend_graph_copy_free(made)
    lib.ggml_backend_free(device)


@pytest.mark.parametrize("name", ["BertModel", "recurrent", "small"])
def test_an_exported_graph_computes_the_same_in_c(name, tmp_path):
    (path,) = [p for p in FILES if p.stem.endswith(name)]
    program, file = gb.load_program(path, n_threads=1), tmp_path / "graph"
    for kinds in recorded(path).values():
        expected = program(**kinds["input"])
        names = program.export_graph(file)
        assert names == [*expected]
        data, nodes = ffi.new("struct ggml_context **"), ffi.new("struct ggml_context **")
        graph = lib.ggml_graph_import(bytes(file), data, nodes)
        assert graph
        for key, array in kinds["input"].items():
            tensor = lib.ggml_graph_get_tensor(graph, key.encode())
            floats = np.ascontiguousarray(array, np.float32)
            ffi.memmove(tensor.data, ffi.from_buffer(floats), floats.nbytes)
        assert lib.ggml_graph_compute_with_ctx(nodes[0], graph, 1) == lib.GGML_STATUS_SUCCESS
        for key, array in expected.items():
            tensor = lib.ggml_graph_get_tensor(graph, key.encode())
            mine = np.frombuffer(ffi.buffer(tensor.data, array.nbytes), np.float32).reshape(array.shape)
            assert np.abs(mine - array).max() <= 1e-6 * np.abs(array).max()
        on_sim(graph, kinds["input"], expected)
        lib.ggml_free(data[0])
        lib.ggml_free(nodes[0])


class InC:
    """A program file in C: graphs run by a scheduler."""

    def __init__(self, path, device=None):
        self.cpu = lib.ggml_backend_cpu_init()
        self.device = lib.ggml_backend_reg_init_backend_from_str(device.encode()) if device else ffi.NULL
        self.program = lib.ggml_program_load(bytes(path), self.device)
        backends = [self.device, self.cpu] if device else [self.cpu]
        self.sched = lib.ggml_backend_sched_new(backends, ffi.NULL, len(backends), 2048)

    def names(self, graph):
        inputs = [lib.ggml_program_input_name(self.program, graph, i)
                  for i in range(lib.ggml_program_n_inputs(self.program, graph))]  # fmt: skip
        outputs = [lib.ggml_program_output_name(self.program, graph, i)
                   for i in range(lib.ggml_program_n_outputs(self.program, graph))]  # fmt: skip
        return [ffi.string(n).decode() for n in inputs], [ffi.string(n).decode() for n in outputs]

    def find(self, **sizes):
        axes = [ffi.new("char[]", name.encode()) for name in sizes]
        return lib.ggml_program_find(self.program, axes, [*sizes.values()], len(sizes))

    def run(self, graph, inputs):
        nodes = lib.ggml_program_graph(self.program, graph)
        assert lib.ggml_backend_sched_alloc_graph(self.sched, nodes) == lib.GGML_STATUS_SUCCESS
        needed, results = self.names(graph)
        for name in needed:
            floats = np.ascontiguousarray(inputs[name], np.float32)
            tensor = lib.ggml_program_input(self.program, graph, name.encode())
            assert lib.ggml_nbytes(tensor) == floats.nbytes
            lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(floats), 0, floats.nbytes)
        assert lib.ggml_backend_sched_graph_compute(self.sched, nodes) == lib.GGML_STATUS_SUCCESS
        found = {}
        for name in results:
            tensor = lib.ggml_program_output(self.program, graph, name.encode())
            found[name] = np.empty(lib.ggml_nelements(tensor), np.float32)
            lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(found[name]), 0, found[name].nbytes)
        return found

    def close(self):
        lib.ggml_backend_sched_free(self.sched)
        lib.ggml_program_free(self.program)
        lib.ggml_backend_free(self.device)
        lib.ggml_backend_free(self.cpu)


@pytest.mark.parametrize("device", [None, "SIM"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_in_c_computes_the_same(path, device, tmp_path):
    program = gb.load_program(path, n_threads=1)
    calls = [(kinds["input"], program(**kinds["input"])) for kinds in recorded(path).values()]
    program.save(tmp_path / "p.gguf")
    in_c = InC(tmp_path / "p.gguf", device)
    assert lib.ggml_program_n_graphs(in_c.program) >= len(calls)
    for inputs, expected in calls:
        axes = {axis: n for name, (shape, _) in program.inputs.items()
                for axis, n in zip(shape, inputs[name].shape, strict=True) if isinstance(axis, str)}  # fmt: skip
        graph = in_c.find(**axes)
        assert graph >= 0 and {*in_c.names(graph)[0]} <= {*inputs}
        found = in_c.run(graph, inputs)
        assert {*found} == {*expected}
        for name, array in expected.items():
            assert np.abs(found[name] - array.reshape(-1)).max() <= 1e-6 * np.abs(array).max()
    assert in_c.find(tokens=61) == -1
    in_c.close()


def test_weights_of_graphs_in_a_file_are_those_of_its_network(tmp_path):
    path = FOLDER / "BertModel.gguf"
    program = gb.load_program(path, n_threads=1)
    for n in (3, 4, 5):
        program(*[np.ones((2, n), int)] * 2)
    program.save(tmp_path / "p.gguf")
    with gb.gguf.open(path) as before, gb.gguf.open(tmp_path / "p.gguf") as after:
        added = [t for name, t in after.tensors.items() if name not in before.tensors]
        kept = sum(t.nbytes for t in after.tensors.values() if t not in added)
        constants = sum(t.nbytes for t in added if "constant" in t.name)
    assert {t.name.rpartition(".")[0] for t in added} == {"program.graph", "program.graph.constant"}
    assert constants < kept / 20


def test_a_file_without_graphs_says_so(tmp_path):
    rewritten(FOLDER / "BertModel.gguf", "{}", tmp_path / "p.gguf")
    assert lib.ggml_program_load(bytes(tmp_path / "p.gguf"), ffi.NULL) == ffi.NULL
    assert lib.ggml_last_status() == lib.GGML_STATUS_UNSUPPORTED
    assert b"p.gguf' has no graphs; load it in Python, call the program, and save it again" in ffi.string(
        lib.ggml_last_error()
    )


def test_programs_without_a_graph_say_so(tmp_path):
    program = gb.load_program(FOLDER / "BertModel.gguf")
    with pytest.raises(TypeError, match="export_graph: path must be a path, not int"):
        program.export_graph(3)
    with pytest.raises(FileError, match=r"cannot write '.*none/graph'"):
        program.export_graph(tmp_path / "none" / "graph")


def test_a_graph_without_memory_is_not_exported(ctx, tmp_path):
    with pytest.raises(StateError, match="memory"):
        ctx.graph(gb.ops.relu(ctx.tensor((3,)))).export(tmp_path / "graph")
