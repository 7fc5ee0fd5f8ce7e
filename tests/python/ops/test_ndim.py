"""A tensor keeps its number of dimensions in custom functions, inner nodes and copies."""

import numpy as np
import pytest

import ggml_backend as gb

SHAPES = [(1, 8), (8,), (1, 1, 1, 1), (), (0, 512, 512), (512, 0), (0,), (1, 0, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("simulated", [False, True])
def test_functions_see_the_shape_of_the_user(shape: tuple[int, ...], simulated: bool) -> None:
    seen: list[tuple[tuple[int, ...], ...]] = []

    def double(dst: np.ndarray, a: np.ndarray) -> None:
        seen.append((dst.shape, a.shape))
        dst[...] = a * 2

    cpu = gb.Backend("CPU", n_threads=1)
    with gb.Context() as ctx, gb.Scheduler([gb.Backend("SIM"), cpu] if simulated else [cpu]) as sched:
        x = ctx.tensor(shape)
        y = gb.ops.map_custom(double, gb.ops.relu(x))
        graph = ctx.graph(y)
        sched.allocate(graph)
        x.set(np.full(shape, 3, np.float32))
        sched.compute(graph)
        assert seen == [(shape, shape)]
        assert y.numpy().shape == shape and (y.numpy() == 6).all()


def sizes(graph: gb.Graph) -> list[tuple[tuple[int, ...], int]]:
    return [(node.shape, node.nbytes) for node in graph.nodes]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_hidden_nodes_and_copies_keep_their_shape(batch: int) -> None:
    cpu = gb.Backend("CPU", n_threads=1)
    with gb.Context() as ctx, gb.Scheduler([cpu]) as sched:
        kernel, images = ctx.tensor((4, 3, 3, 3), gb.float16), ctx.tensor((batch, 3, 20, 20))
        graph = ctx.graph(gb.ops.conv_2d(kernel, images))
        for shape, nbytes in sizes(graph):
            assert int(np.prod(shape)) * 2 <= nbytes or int(np.prod(shape)) == nbytes == 0
        sched.allocate(graph)
        assert (batch == 0) == any(nbytes == 0 for _, nbytes in sizes(graph))
        for node in graph.nodes:
            if node.nbytes == 0:
                assert node.numpy().nbytes == 0
        assert sizes(graph.copy(cpu)) == sizes(graph)
