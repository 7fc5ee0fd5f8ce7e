"""Says when somebody speaks: the network of Silero VAD, written with NumPy's operators.

    pip install --no-deps silero-vad==6.2.3
    pip install torch
    python -m examples.voice_activity vad.gguf speech.wav --convert FOLDER/silero_vad/data/silero_vad.jit

The last line writes vad.gguf first. Later runs need no ``--convert`` and no PyTorch.

The network reads 32 ms at a time. It has a convolution that computes the spectrum, four more convolutions, and an LSTM
cell, whose state is an input of the next step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend.models.audio import read_wav, resample

from .command import run

RATE, CHUNK, CONTEXT, MIRRORED, STATE = 16000, 512, 64, 64, 128

Floats = npt.NDArray[np.float32]


def convert(source: str | Path, target: str | Path) -> None:
    """Writes the weights of Silero's program for PyTorch, which are those of its ONNX file, as a GGUF file. (The
    safetensors file of the package has other weights.)"""
    import torch

    weights = torch.jit.load(str(source)).state_dict()
    names = {"stft.forward_basis_buffer": "stft_conv.weight", "decoder.rnn": "lstm_cell"}
    names |= {"decoder.decoder.2": "final_conv"}
    names |= {f"encoder.{i}.reparam_conv": f"conv{i + 1}" for i in range(4)}
    with gb.gguf.Writer(target) as writer:
        writer.add("general.architecture", "silero-vad")
        for old, new in names.items():
            for name, x in weights.items():
                if name == f"_model.{old}":
                    writer.add_tensor(new, x.numpy())
                elif name.startswith(f"_model.{old}."):
                    writer.add_tensor(new + name.removeprefix(f"_model.{old}"), x.numpy())


class VoiceActivity:
    """The network with its state. ``device`` is the name of a backend."""

    def __init__(self, path: str | Path, device: str = "CPU") -> None:
        self.backend = gb.Backend(device)
        with gb.gguf.open(path) as file:
            self.weights = file.load(self.backend)
        self.context = ctx = gb.Context()
        self.x = ctx.tensor((1, CONTEXT + CHUNK + MIRRORED), gb.float32, name="x")
        self.state = [ctx.tensor((1, STATE), gb.float32, name=name) for name in ("h", "c")]
        self.outputs = self._network()
        self.graph = ctx.graph(*self.outputs)
        self.scheduler = gb.Scheduler([self.backend] if device.upper() == "CPU" else [self.backend, gb.Backend("CPU")])
        self.scheduler.allocate(self.graph)

    def _network(self) -> list[gb.Tensor]:
        """Builds the network. Returns the probability (1, 1) and the new state."""
        w = self.weights

        def conv(name: str, x: gb.Tensor, stride: int) -> gb.Tensor:
            bias = w[f"{name}.bias"]
            return ops.relu(ops.conv_1d(w[f"{name}.weight"], x, stride, 1) + bias.reshape(bias.shape[0], 1))

        def linear(name: str, x: gb.Tensor) -> gb.Tensor:
            return ops.mul_mat(w[f"lstm_cell.weight_{name}"], x) + w[f"lstm_cell.bias_{name}"]

        spectrum = ops.conv_1d(w["stft_conv.weight"], self.x, 128, 0)
        half = spectrum.shape[0] // 2
        y = ops.sqrt(ops.sqr(spectrum[:half]) + ops.sqr(spectrum[half:]))
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)):
            y = conv(name, y, stride)
        h, c = self.state
        gates = linear("ih", y.reshape(1, STATE)) + linear("hh", h)
        i, f, g, o = (gates[:, k * STATE : (k + 1) * STATE] for k in range(4))
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        last = ops.mul_mat(w["final_conv.weight"].reshape(1, STATE), ops.relu(h)) + w["final_conv.bias"]
        return [ops.sigmoid(last), h, c]

    def probabilities(self, samples: Floats) -> Iterator[float]:
        """The probability of speech in each 32 ms of audio of 16,000 samples a second."""
        padded = np.pad(samples.astype(np.float32), (CONTEXT, -len(samples) % CHUNK))
        state = [np.zeros((1, STATE), np.float32)] * 2
        for begin in range(0, len(padded) - CONTEXT, CHUNK):
            part: Any = np.pad(padded[begin : begin + CONTEXT + CHUNK], (0, MIRRORED), mode="reflect")
            self.x.set(part[None])
            for tensor, values in zip(self.state, state, strict=True):
                tensor.set(values)
            self.scheduler.compute(self.graph)
            probability, *state = (np.array(t.numpy()) for t in self.outputs)
            yield float(probability[0, 0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.voice_activity", description="Say when somebody speaks.")
    parser.add_argument("model", help="the file vad.gguf (the head of examples/voice_activity.py says how to make it)")
    parser.add_argument("audio", help="a WAV file")
    parser.add_argument("--device", default="CPU", help="(default: %(default)s)")
    parser.add_argument("--convert", metavar="JIT", help="write the model from Silero's silero_vad.jit first")
    args = parser.parse_args()
    if args.convert:
        convert(args.convert, args.model)
    samples, rate = read_wav(args.audio)
    speaks, step = False, CHUNK / RATE
    found = [*VoiceActivity(args.model, args.device).probabilities(resample(samples, rate)), 0.0]
    for k, p in enumerate(found):
        if (p >= 0.5) != speaks:
            speaks = not speaks
            print(f"{k * step:.2f} s" if speaks else f" to {k * step:.2f} s", end="" if speaks else "\n", flush=True)


if __name__ == "__main__":
    run(main, "python -m examples.voice_activity")
