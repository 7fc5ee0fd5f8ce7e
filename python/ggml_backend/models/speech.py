"""Models that write down speech: Whisper."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import gguf
from .._base.errors import FileError, InvalidArgumentError, expect_int
from ..backend.backend import Backend
from ..dtypes import float16, float32, int32
from ..sched.scheduler import Scheduler
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._keys import Keys
from ._model import Model
from ._whisper import LANGUAGES, Layer, Sizes, Special, decode, encode
from .audio import HOP, RATE, log_mel, read_wav, resample
from .text import backends_of
from .tokens import _byte_characters

__all__ = ["Segment", "SpeechModel", "Transcript"]

FloatArray = npt.NDArray[np.float32]

_STEP = 0.02  # seconds between two tokens of time
_FRAMES = 3000  # of a window of 30 seconds
_FIRST_TIME = 1.0  # seconds: a window begins with a time up to here


@dataclass(frozen=True)
class Segment:
    """A part of the text with its times in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The result: ``text``, its ``segments``, and the ``language`` as a code such as "en"."""

    text: str
    segments: tuple[Segment, ...]
    language: str

    def srt(self) -> str:
        """The segments as subtitles."""

        def clock(seconds: float) -> str:
            ms = round(seconds * 1000)
            return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02},{ms % 1000:03}"

        return "\n".join(
            f"{i}\n{clock(s.start)} --> {clock(s.end)}\n{s.text.strip()}\n" for i, s in enumerate(self.segments, 1)
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "language": self.language,
            "segments": [{"start": s.start, "end": s.end, "text": s.text} for s in self.segments],
        }


@dataclass(frozen=True)
class _Step:
    context: Context
    graph: Graph
    inputs: dict[str, Tensor]
    logits: Tensor


class SpeechModel(Model):
    """Whisper with its tokens, ready to listen.

    Use :func:`ggml_backend.models.load`. The object may be shared between threads, which wait for each other.

    ``name``, ``architecture``, ``multilingual``, ``metadata``
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        devices: Sequence[str | Backend] = ("CPU",),
        *,
        n_threads: int | None = None,
    ) -> None:
        self.backends: list[Backend] = backends_of(devices, n_threads)
        self._lock = threading.RLock()
        with gguf.open(path) as file:
            self.metadata: dict[str, Any] = dict(file.metadata)
            self.architecture: str = "whisper"
            self._s = s = Sizes.of(self.metadata, file.tensors)
            self._pieces = _pieces(self.metadata, s.vocab)
            last = len(self.backends)
            where = {
                f"{half}.blocks.{i}.*": self.backends[i * last // layers]
                for half, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers))
                for i in range(layers)
            }
            self.weights: gguf.Weights = file.load({**where, "*": self.backends[-1]})
        self.name: str = str(self.metadata.get("general.name", "whisper"))
        self._special = Special.of(s.vocab)
        self.multilingual: bool = self._special.multilingual
        self._silent = self._suppressed()
        self._scheduler: Scheduler | None = Scheduler(self.backends)
        self._store = Context()
        self._cache = self._layers("cache", s.text_context)
        self._crossed = self._layers("window", s.audio_context)
        self._buffer = self._store.allocate(self.backends[-1])
        self._buffer.clear(0)
        self._steps: dict[tuple[int, int], _Step] = {}
        self._encoder: _Step | None = None

    def _layers(self, name: str, n: int) -> list[Layer]:
        shape = (n, self._s.embd)
        return [
            (
                self._store.tensor(shape, float16, name=f"{name}.{i}.k"),
                self._store.tensor(shape, float16, name=f"{name}.{i}.v"),
            )
            for i in range(self._s.decoder_layers)
        ]

    def _suppressed(self) -> npt.NDArray[np.int64]:
        """Tokens that are never written: sounds without words, and special tokens."""
        given = self.metadata.get("whisper.suppress_tokens")
        listed = _sounds(self._pieces) if given is None else np.asarray(given).reshape(-1).tolist()
        s = self._special
        special = [*range(s.start, s.no_timestamps + 1)]
        found = np.unique(np.array([*listed, *special], np.int64))
        if len(found) and (found[0] < 0 or found[-1] >= self._s.vocab):
            raise FileError(f"whisper.suppress_tokens has tokens outside of the vocabulary of {self._s.vocab}")
        return found

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _encode(self, mel: FloatArray) -> None:
        """Computes the keys and values of a window (mels, 3000)."""
        scheduler = self._open()
        if self._encoder is None:
            context = Context()
            x = context.tensor(mel.shape, float32, name="mel")
            x.set_input()
            crossed = [(context.view(k), context.view(v)) for k, v in self._crossed]
            writes = encode(self.weights, self._s, x, crossed)
            self._encoder = _Step(context, context.graph(*writes), {"mel": x}, writes[-1])
        scheduler.allocate(self._encoder.graph)
        self._encoder.inputs["mel"].set(np.ascontiguousarray(mel))
        scheduler.compute(self._encoder.graph)

    def _decode(self, tokens: Sequence[int], past: int) -> FloatArray:
        """Logits (vocabulary,) after these tokens, which follow ``past`` others."""
        scheduler, total = self._open(), past + len(tokens)
        n_cells = min(-(-total // 64) * 64, self._s.text_context)
        step = self._step_of(len(tokens), n_cells)
        places = np.arange(past, total, dtype=np.int32)
        scheduler.allocate(step.graph)
        step.inputs["ids"].set(np.array(tokens, np.int32))
        step.inputs["positions"].set(places)
        step.inputs["rows"].set(places)
        seen = np.arange(n_cells) <= places[:, None]
        step.inputs["mask"].set(np.where(seen, np.float16(0), np.float16(-np.inf)))
        scheduler.compute(step.graph)
        logits: FloatArray = np.array(step.logits.numpy()[-1])
        return logits

    def _step_of(self, n_tokens: int, n_cells: int) -> _Step:
        found = self._steps.get((n_tokens, n_cells))
        if found is None:
            context = Context()
            inputs = {name: context.tensor((n_tokens,), int32, name=name) for name in ("ids", "positions", "rows")}
            inputs["mask"] = context.tensor((n_tokens, n_cells), float16, name="mask")
            for x in inputs.values():
                x.set_input()
            cache, crossed = (
                [(context.view(k), context.view(v)) for k, v in layers] for layers in (self._cache, self._crossed)
            )
            logits = decode(
                self.weights,
                self._s,
                inputs["ids"],
                inputs["positions"],
                inputs["rows"],
                inputs["mask"],
                cache,
                crossed,
            )
            found = self._steps[n_tokens, n_cells] = _Step(context, context.graph(logits), inputs, logits)
        return found

    # ---- the text ----------------------------------------------------------------------------------------------------

    def transcribe(
        self,
        audio: str | os.PathLike[str] | npt.NDArray[Any],
        *,
        rate: int = RATE,
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        progress: Callable[[int, int], object] | None = None,
    ) -> Transcript:
        """Writes down what is said.

        audio: a WAV file, or samples between -1 and 1 with ``rate`` samples a second
        language: a code such as "en". Default: the language of the first 30 seconds.
        task: "translate" writes English.
        progress: called with the frames of 10 ms that are done, and all frames

        FileError: the file is no WAV file. InvalidArgumentError: the audio has no samples, or the model does not know
        the language.
        """
        if isinstance(audio, np.ndarray):
            samples = np.asarray(audio, np.float32)
            if samples.ndim != 1 or not np.isfinite(samples).all():
                raise InvalidArgumentError("audio must be finite samples of one channel: an array of one axis")
        else:
            samples, rate = read_wav(audio)
        samples = resample(samples, expect_int(rate, "rate"))
        if not len(samples):
            raise InvalidArgumentError("the audio has no samples")
        if task not in ("transcribe", "translate"):
            raise InvalidArgumentError(f"task is {task!r}: it must be 'transcribe' or 'translate'")
        with self._lock:
            return self._transcribe(samples, language, task, progress)

    def _transcribe(
        self, samples: FloatArray, language: str | None, task: str, progress: Callable[[int, int], object] | None
    ) -> Transcript:
        mel = log_mel(samples, self._s.mels, padding=30 * RATE)
        frames = max(1, len(samples) // HOP)
        code = self._language(language, mel)
        segments: list[Segment] = []
        at = 0
        while at < frames:
            if progress is not None:
                progress(at, frames)
            window = np.zeros((self._s.mels, 2 * self._s.audio_context), np.float32)
            part = mel[:, at : at + _FRAMES]
            window[:, : part.shape[1]] = part
            self._encode(window)
            length = min(_FRAMES, frames - at) / 100
            found, used = self._window(self._prompt(code, task), at / 100, length)
            segments += found
            at += max(2, round(used * 100))
        if progress is not None:
            progress(frames, frames)
        return Transcript("".join(s.text for s in segments).strip(), tuple(segments), code)

    def _prompt(self, code: str, task: str) -> list[int]:
        s = self._special
        if not s.multilingual:
            return [s.start]
        return [s.start, s.languages + LANGUAGES.index(code), s.transcribe if task == "transcribe" else s.translate]

    def _language(self, language: str | None, mel: FloatArray) -> str:
        s = self._special
        known = LANGUAGES[: s.n_languages] if s.multilingual else ["en"]
        if language is not None:
            if language not in known:
                raise InvalidArgumentError(f"language {language!r} is not known; known are {', '.join(known)}")
            return language
        if not s.multilingual:
            return "en"
        window = np.zeros((self._s.mels, 2 * self._s.audio_context), np.float32)
        window[:, : min(_FRAMES, mel.shape[1])] = mel[:, :_FRAMES]
        self._encode(window)
        logits = self._decode([s.start], 0)
        return known[int(logits[s.languages : s.languages + s.n_languages].argmax())]

    def _window(self, prompt: list[int], begin: float, length: float) -> tuple[list[Segment], float]:
        """The segments of one window, and the seconds of it that they use."""
        s, tokens = self._special, list[int]()
        logits = self._decode(prompt, 0)
        silence = _log_softmax(logits)[s.no_speech]
        chances: list[float] = []
        most = self._s.text_context // 2
        while len(tokens) < most:
            allowed = self._rules(logits, tokens)
            shares = _log_softmax(allowed)
            token = int(shares.argmax())
            chances.append(float(shares[token]))
            if token == s.end:
                break
            tokens.append(token)
            logits = self._decode([token], len(prompt) + len(tokens) - 1)
        if np.exp(silence) > 0.6 and np.mean(chances) < -1.0:
            return [], length
        return self._segments(tokens, begin, length)

    def _rules(self, logits: FloatArray, tokens: Sequence[int]) -> FloatArray:
        """The logits, with -inf for tokens that may not follow. Times come in pairs and never go back.
        A window begins with a time."""
        s, allowed = self._special, logits.copy()
        allowed[self._silent] = -np.inf
        if not tokens:
            allowed[: s.first_time] = -np.inf
            allowed[s.first_time + round(_FIRST_TIME / _STEP) + 1 :] = -np.inf
            return allowed
        timed = [t >= s.first_time for t in tokens[-2:]]
        if timed[-1] and (len(timed) < 2 or timed[0]):
            allowed[s.first_time :] = -np.inf  # a time that begins a segment: text follows
        elif timed[-1]:
            allowed[: s.end] = -np.inf  # one that ends a segment: another time, or the end
        times = [t for t in tokens if t >= s.first_time]
        if times:
            again = timed[-1] and not (len(timed) < 2 or timed[0])
            allowed[s.first_time : times[-1] + (0 if again else 1)] = -np.inf
        shares = _log_softmax(allowed)
        if _log_sum(shares[s.first_time :]) > shares[: s.first_time].max():
            allowed[: s.first_time] = -np.inf
        return allowed

    def _segments(self, tokens: Sequence[int], begin: float, length: float) -> tuple[list[Segment], float]:
        s, found, words = self._special, list[Segment](), list[int]()
        start, last = 0.0, 0.0
        for token in tokens:
            if token < s.first_time:
                words.append(token)
                continue
            last = (token - s.first_time) * _STEP
            if words:
                found.append(self._segment(words, begin + start, begin + min(last, length)))
                words = []
            start = min(last, length)
        if words:  # no time ended it: it lasts to the end of the window
            found.append(self._segment(words, begin + start, begin + length))
            return found, length
        single = len(tokens) > 1 and tokens[-1] >= s.first_time > tokens[-2]
        return found, length if single or not last else last

    def _segment(self, tokens: Sequence[int], start: float, end: float) -> Segment:
        text = b"".join(self._pieces[t] for t in tokens if t < self._special.end)
        return Segment(round(start, 2), round(max(start, end), 2), text.decode("utf-8", "replace"))

    @property
    def nbytes(self) -> int:
        """Bytes of weights, cache and the keys and values of a window."""
        return self.weights.nbytes + self._buffer.nbytes

    def close(self) -> None:
        """Frees the memory."""
        with self._lock:
            if self._scheduler is None:
                return
            self._scheduler.close()
            self._scheduler = None
            for step in [*self._steps.values(), *([self._encoder] if self._encoder else [])]:
                step.context.close()
            self._steps.clear()
            self._encoder = None
            self._store.close()
            self.weights.close()

    def __repr__(self) -> str:
        if self._scheduler is None:
            return "<SpeechModel: closed>"
        kind = f"{self._special.n_languages} languages" if self.multilingual else "English"
        return f"<SpeechModel {self.name!r}: whisper, {self._s.encoder_layers} layers, {kind}>"


def _pieces(metadata: Any, n: int) -> list[bytes]:
    """The bytes of each token."""
    texts = Keys(metadata).words("tokenizer.ggml.tokens")
    if len(texts) > n:
        raise FileError(f"tokenizer.ggml.tokens has {len(texts)} pieces, the network {n} tokens")
    of = {c: b for b, c in enumerate(_byte_characters())}
    return [bytes(of[c] for c in text if c in of) for text in texts] + [b""] * (n - len(texts))


def _sounds(pieces: Sequence[bytes]) -> list[int]:
    """Tokens that stand for sounds and music in subtitles, not for words."""
    marks = [*'"#()*+/:;<=>@[\\]^_`{|}~\u300c\u300d\u300e\u300f\u2669\u266a\u266b\u266c\u266d\u266e\u266f']
    marks += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{",
              "}}", "\u266a\u266a", "\u266a\u266a\u266a"]  # fmt: skip
    wanted = {form.encode() for mark in marks for form in (mark, f" {mark}")} | {b" -", b" '"}
    return [i for i, piece in enumerate(pieces) if piece in wanted]


def _log_sum(x: FloatArray) -> float:
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum())) if np.isfinite(top) else -np.inf


def _log_softmax(x: FloatArray) -> FloatArray:
    found: FloatArray = x - np.float32(_log_sum(x))
    return found
