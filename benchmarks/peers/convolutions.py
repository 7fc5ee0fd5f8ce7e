"""Convolutions, transposed convolutions and pooling of well-known networks, one layer a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import ggml_backend as gb

from .sides import Run, Scope, Sides, Work

# Network, input channels, output channels, groups, input (height, width), kernel, stride, padding.
LAYERS = [
    ("ResNet-18 stem", 3, 64, 1, (224, 224), (7, 7), 2, 3),
    ("ResNet-18 1", 64, 64, 1, (56, 56), (3, 3), 1, 1),
    ("ResNet-18 2", 64, 128, 1, (56, 56), (3, 3), 2, 1),
    ("ResNet-18 shortcut", 64, 128, 1, (56, 56), (1, 1), 2, 0),
    ("ResNet-18 2b", 128, 128, 1, (28, 28), (3, 3), 1, 1),
    ("ResNet-18 3b", 256, 256, 1, (14, 14), (3, 3), 1, 1),
    ("ResNet-18 4b", 512, 512, 1, (7, 7), (3, 3), 1, 1),
    ("MobileNetV2 stem", 3, 32, 1, (224, 224), (3, 3), 2, 1),
    ("MobileNetV2 dw1", 32, 32, 32, (112, 112), (3, 3), 1, 1),
    ("MobileNetV2 project", 32, 16, 1, (112, 112), (1, 1), 1, 0),
    ("MobileNetV2 dw2", 96, 96, 96, (112, 112), (3, 3), 2, 1),
    ("MobileNetV2 96 to 24", 96, 24, 1, (56, 56), (1, 1), 1, 0),
    ("MobileNetV2 expand", 24, 144, 1, (56, 56), (1, 1), 1, 0),
    ("MobileNetV2 dw 112", 96, 96, 96, (112, 112), (3, 3), 1, 1),
    ("MobileNetV2 dw 14", 576, 576, 576, (14, 14), (3, 3), 1, 1),
    ("MobileNetV2 96 to 576", 96, 576, 1, (14, 14), (1, 1), 1, 0),
    ("MobileNetV2 last", 320, 1280, 1, (7, 7), (1, 1), 1, 0),
    ("MobileNetV3 dw5 s2", 72, 72, 72, (56, 56), (5, 5), 2, 2),
    ("MobileNetV3 dw5", 120, 120, 120, (28, 28), (5, 5), 1, 2),
    ("MobileNetV3 dw5 7", 960, 960, 960, (7, 7), (5, 5), 1, 2),
    ("EfficientNet-Lite0 dw5 s2", 144, 144, 144, (56, 56), (5, 5), 2, 2),
    ("EfficientNet-Lite0 dw5 14", 672, 672, 672, (14, 14), (5, 5), 1, 2),
    ("EfficientNet-Lite0 672 to 192", 672, 192, 1, (7, 7), (1, 1), 1, 0),
    ("PP-OCRv5 det stem", 3, 16, 1, (640, 640), (3, 3), 2, 1),
    ("PP-OCRv5 det dw", 64, 64, 64, (160, 160), (3, 3), 1, 1),
    ("PP-OCRv5 det neck", 96, 24, 1, (160, 160), (3, 3), 1, 1),
    ("PP-OCRv5 det dw 5", 192, 192, 192, (40, 40), (5, 5), 1, 2),
    ("Silero VAD stft", 1, 258, 1, (1, 640), (1, 256), (1, 64), 0),
    ("Silero VAD encoder", 129, 128, 1, (1, 4), (1, 3), 1, (0, 1)),
    ("Piper pre", 192, 256, 1, (1, 200), (1, 7), 1, (0, 3)),
    ("Piper residual", 128, 128, 1, (1, 1600), (1, 3), 1, (0, 1)),
    ("Piper post", 32, 32, 1, (1, 25600), (1, 7), 1, (0, 3)),
    ("Whisper tiny 1", 80, 384, 1, (1, 3000), (1, 3), 1, (0, 1)),
    ("Whisper tiny 2", 384, 384, 1, (1, 3000), (1, 3), (1, 2), (0, 1)),
]

# Network, input channels, output channels, input (height, width), kernel, stride. A height of 1: CONV_TRANSPOSE_1D.
TRANSPOSED = [
    ("HiFi-GAN up 1", 512, 256, (1, 100), 16, 8),
    ("HiFi-GAN up 3", 128, 64, (1, 6400), 4, 2),
    ("Demucs decoder", 96, 48, (1, 4000), 8, 4),
    ("DBNet head", 64, 64, (80, 80), 2, 2),
    ("UNet up", 256, 128, (32, 32), 2, 2),
    ("UNet up 3x3", 64, 32, (64, 64), 3, 2),
]  # fmt: skip

# Network, maximum or mean, channels, input (height, width), kernel, stride, padding.
POOLS = [
    ("ResNet-18 pool", "max", 64, (112, 112), 3, 2, 1),
    ("VGG pool", "max", 128, (112, 112), 2, 2, 0),
    ("YOLO SPPF", "max", 256, (20, 20), 5, 1, 2),
    ("EfficientNet mean", "avg", 1280, (7, 7), 7, 7, 0),
    ("Gemma 3 projector", "avg", 1152, (64, 64), 4, 4, 0),
    ("DenseNet transition", "avg", 256, (28, 28), 2, 2, 0),
]


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _torch(s: Sides, kernel: np.ndarray, x: np.ndarray, stride: Any, padding: Any, groups: int) -> Run:
    torch = s.modules["torch"]
    a, b = torch.from_numpy(kernel), torch.from_numpy(x)

    def run() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.conv2d(b, a, None, stride, padding, 1, groups)

    return run


def convolutions(s: Sides, scope: Scope) -> Iterator[Work]:
    yield from _convolutions(s, scope)
    yield from _transposed(s, scope)
    yield from _pools(s, scope)


def _convolutions(s: Sides, scope: Scope) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for name, ic, oc, groups, size, k, step, pad in LAYERS[9:11] if scope.quick else LAYERS:
        stride, padding = _pair(step), _pair(pad)
        x = rng.standard_normal((1, ic, *size), dtype=np.float32)
        kernel = rng.standard_normal((oc, ic // groups, *k), dtype=np.float32)
        out = [(size[i] + 2 * padding[i] - k[i]) // stride[i] + 1 for i in range(2)]

        def ours(a: gb.Tensor, b: gb.Tensor, st: Any = stride, pa: Any = padding, g: int = groups) -> gb.Tensor:
            return gb.ops.conv_2d(a, b, st, pa, groups=g)

        def onnx(
            x: np.ndarray = x, w: np.ndarray = kernel, st: Any = stride, pa: Any = padding, g: int = groups
        ) -> Run:
            node = s.node("Conv", ["x", "w"], strides=list(st), pads=[*pa, *pa], group=g)
            return s.onnx([node], {"x": x}, {"w": w})

        yield Work(
            f"{name}: {ic} to {oc}, {size[0]}x{size[1]}, {k[0]}x{k[1]}/{stride[1]}", "GFLOP/s",
            2.0 * kernel.size * out[0] * out[1],
            s.graph(ours, (kernel.shape, gb.float32, kernel), (x.shape, gb.float32, x)),
            {
                "torch": lambda x=x, w=kernel, st=stride, pa=padding, g=groups: _torch(s, w, x, st, pa, g),
                "onnxruntime": onnx,
            },
            1e-4,
        )  # fmt: skip


def _transposed(s: Sides, scope: Scope) -> Iterator[Work]:
    rng = np.random.default_rng(1)
    for name, ic, oc, (height, width), k, stride in TRANSPOSED[3:4] if scope.quick else TRANSPOSED:
        line = height == 1
        size, taps = ((width,), (k,)) if line else ((height, width), (k, k))
        x = rng.standard_normal((1, ic, *size), dtype=np.float32)
        kernel = rng.standard_normal((ic, oc, *taps), dtype=np.float32)
        data = x[0] if line else x

        def ours(a: gb.Tensor, b: gb.Tensor, st: int = stride, line: bool = line) -> gb.Tensor:
            return gb.ops.conv_transpose_1d(a, b, st) if line else gb.ops.conv_transpose_2d(a, b, st)

        def torch_side(x: np.ndarray = x, w: np.ndarray = kernel, st: int = stride, line: bool = line) -> Run:
            torch = s.modules["torch"]
            a, b = torch.from_numpy(w), torch.from_numpy(x)
            function = torch.nn.functional.conv_transpose1d if line else torch.nn.functional.conv_transpose2d

            def run() -> Any:
                with torch.inference_mode():
                    return function(b, a, None, st)

            return run

        def onnx(x: np.ndarray = x, w: np.ndarray = kernel, st: int = stride) -> Run:
            node = s.node("ConvTranspose", ["x", "w"], strides=[st] * (x.ndim - 2))
            return s.onnx([node], {"x": x}, {"w": w})

        yield Work(
            f"{name}: transposed {ic} to {oc}, {height}x{width}, {k}/{stride}", "GFLOP/s",
            2.0 * kernel.size * height * width,
            s.graph(ours, (kernel.shape, gb.float32, kernel), (data.shape, gb.float32, data)),
            {"torch": torch_side, "onnxruntime": onnx}, 1e-4,
        )  # fmt: skip


def _pools(s: Sides, scope: Scope) -> Iterator[Work]:
    rng = np.random.default_rng(2)
    for name, kind, channels, size, k, stride, pad in POOLS[-1:] if scope.quick else POOLS:
        x = rng.standard_normal((1, channels, *size), dtype=np.float32)
        out = [(n + 2 * pad - k) // stride + 1 for n in size]

        def ours(a: gb.Tensor, op: Any = kind, k: int = k, st: int = stride, p: int = pad) -> gb.Tensor:
            return gb.ops.pool_2d(a, op, k, st, p)

        def torch_side(x: np.ndarray = x, op: str = kind, k: int = k, st: int = stride, p: int = pad) -> Run:
            torch = s.modules["torch"]
            b = torch.from_numpy(x)
            function = torch.nn.functional.max_pool2d if op == "max" else torch.nn.functional.avg_pool2d

            def run() -> Any:
                with torch.inference_mode():
                    return function(b, k, st, p)

            return run

        def onnx(x: np.ndarray = x, op: str = kind, k: int = k, st: int = stride, p: int = pad) -> Run:
            node = s.node(
                "MaxPool" if op == "max" else "AveragePool", ["x"], kernel_shape=[k, k], strides=[st, st], pads=[p] * 4
            )
            return s.onnx([node], {"x": x}, {})

        yield Work(
            f"{name}: {kind} {channels}, {size[0]}x{size[1]}, {k}/{stride}", "GB/s",
            4.0 * channels * (size[0] * size[1] + out[0] * out[1]),
            s.graph(ours, (x.shape, gb.float32, x)), {"torch": torch_side, "onnxruntime": onnx}, 1e-5,
        )  # fmt: skip
