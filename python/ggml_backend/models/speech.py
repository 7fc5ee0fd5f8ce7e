"""Models that transcribe speech: Whisper."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import gguf
from .._base.errors import (
    FileError,
    InvalidArgumentError,
    expect_choice,
    expect_function,
    expect_int,
    expect_path,
)
from .._base.errors.messages import kind_of
from ..backend._priority import holders_of, with_cpu
from ..backend.backend import Backend
from ..dtypes import float16, float32, int32
from ..sched.scheduler import Scheduler
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._keys import Keys
from ._model import Model
from ._whisper import LANGUAGES, WINDOW, Layer, Sizes, Special, decode, encode
from .architectures import SPEECH, architecture_of
from .audio import HOP, LEAST_RATE, MOST_RATE, RATE, log_mel, read_wav, resample
from .tokens import _byte_characters

__all__ = ["Segment", "SpeechModel", "Transcript"]

FloatArray = npt.NDArray[np.float32]

_STEP = 0.02  # seconds between two tokens of time
_FRAMES = 2 * WINDOW  # of a window of 30 seconds
_FIRST_TIME = 1.0  # seconds: a window begins with a time up to here
_MOST_BEAMS = 16


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
class _Beam:
    """A text that may be the best. ``cells``: the cells of the cache that its prompt and tokens have; ``score``: the
    logarithm of its probability."""

    tokens: tuple[int, ...]
    cells: tuple[int, ...]
    score: float

    @property
    def mean(self) -> float:
        """The mean score of a token. The token that ends the text counts too."""
        return self.score / (len(self.tokens) + 1)


@dataclass(frozen=True)
class _Layers:
    """Keys and values (n_cells, width) of each layer of the decoder."""

    context: Context
    tensors: list[Layer]
    nbytes: int
    n_cells: int


@dataclass(frozen=True)
class _Step:
    context: Context
    graph: Graph
    inputs: dict[str, Tensor]
    logits: Tensor


class SpeechModel(Model):
    """Whisper with its vocabulary.

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
        self._holders = holders = holders_of(devices, n_threads)
        self.backends: list[Backend] = with_cpu(holders, n_threads)
        self._lock = threading.RLock()
        with gguf.open(path) as file:
            self.metadata: dict[str, Any] = dict(file.metadata)
            self.architecture: str = architecture_of(self.metadata, SPEECH)
            self._s = s = Sizes.of(self.metadata, file.tensors)
            self._pieces = _pieces(self.metadata, s.vocab)
            where = {
                f"{half}.blocks.{i}.*": holders[i * len(holders) // layers]
                for half, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers))
                for i in range(layers)
            }
            self.weights: gguf.Weights = file.load({**where, "*": holders[-1]})
        self.name: str = str(self.metadata.get("general.name", "whisper"))
        self._special = Special.of(s.vocab)
        self.multilingual: bool = self._special.multilingual
        self._silent = self._suppressed()
        self._scheduler: Scheduler | None = Scheduler(self.backends)
        self._crossed = self._layers("window", s.audio_context)
        self._cache = self._layers("cache", s.text_context)
        self._steps: dict[tuple[int, int], _Step] = {}
        self._encoder: _Step | None = None

    def _layers(self, name: str, n: int) -> _Layers:
        """Keys and values of ``n`` cells in memory of their own."""
        context, shape = Context(), (n, self._s.embd)
        layers = [
            (
                context.tensor(shape, float16, name=f"{name}.{i}.k"),
                context.tensor(shape, float16, name=f"{name}.{i}.v"),
            )
            for i in range(self._s.decoder_layers)
        ]
        buffer = context.allocate(self._holders[-1])
        buffer.clear(0)
        return _Layers(context, layers, buffer.nbytes, n)

    def _make_room(self, beams: int) -> None:
        """Makes the cache large enough for this many texts."""
        wanted = self._s.text_context + (beams - 1) * (self._s.text_context // 2)
        if self._cache.n_cells < wanted:
            for step in self._steps.values():
                step.context.close()
            self._steps.clear()
            self._cache.context.close()
            self._cache = self._layers("cache", wanted)

    def _suppressed(self) -> npt.NDArray[np.int64]:
        """Tokens that are never written: sounds without words, and special tokens."""
        given = self.metadata.get("whisper.suppress_tokens")
        if given is not None and not (isinstance(given, np.ndarray) and given.dtype.kind in "iu"):
            raise FileError("whisper.suppress_tokens must be a list of whole numbers")
        listed = _sounds(self._pieces) if given is None else given.tolist()
        s = self._special
        special = [*range(s.start, s.no_timestamps + 1)]
        found = np.unique(np.array([*listed, *special], np.int64))
        if len(found) and (found[0] < 0 or found[-1] >= self._s.vocab):
            raise FileError(f"whisper.suppress_tokens has tokens outside of the vocabulary of {self._s.vocab}")
        return found

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _encode(self, mel: FloatArray) -> None:
        """Computes the keys and values of a window (mels, 2 * audio_context)."""
        scheduler = self._open()
        if self._encoder is None:
            context = Context()
            x = context.tensor(mel.shape, float32, name="mel")
            x.set_input()
            crossed = [(context.view(k), context.view(v)) for k, v in self._crossed.tensors]
            writes = encode(self.weights, self._s, x, crossed)
            self._encoder = _Step(context, context.graph(*writes), {"mel": x}, writes[-1])
        scheduler.allocate(self._encoder.graph)
        self._encoder.inputs["mel"].set(np.ascontiguousarray(mel))
        scheduler.compute(self._encoder.graph)

    def _decode(
        self, tokens: Sequence[int], positions: Sequence[int], cells: Sequence[int], seen: Sequence[Sequence[int]]
    ) -> FloatArray:
        """Logits (tokens, vocabulary) after each token.

        cells: where the tokens are written to; seen: the cells that each token sees, with its own
        """
        scheduler, last = self._open(), max(max(c) for c in seen)
        n_cells = min(-(-(last + 1) // 64) * 64, self._cache.n_cells)
        step = self._step_of(len(tokens), n_cells)
        mask = np.full((len(tokens), n_cells), -np.inf, np.float16)
        for row, visible in zip(mask, seen, strict=True):
            row[list(visible)] = 0
        scheduler.allocate(step.graph)
        step.inputs["ids"].set(np.array(tokens, np.int32))
        step.inputs["positions"].set(np.array(positions, np.int32))
        step.inputs["rows"].set(np.array(cells, np.int32))
        step.inputs["mask"].set(mask)
        scheduler.compute(step.graph)
        logits: FloatArray = np.array(step.logits.numpy())
        return logits

    def _decode_prompt(self, prompt: Sequence[int]) -> FloatArray:
        """Logits (vocabulary,) after a prompt, which gets the first cells."""
        cells = range(len(prompt))
        logits: FloatArray = self._decode(prompt, cells, cells, [cells[: i + 1] for i in cells])[-1]
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
                [(context.view(k), context.view(v)) for k, v in layers.tensors]
                for layers in (self._cache, self._crossed)
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
        beams: int = 1,
        progress: Callable[[int, int], object] | None = None,
    ) -> Transcript:
        """Writes down what is said.

        audio: a WAV file, or samples between -1 and 1 with ``rate`` samples a second
        language: a code such as "en". Default: the language that the model hears in the first 30 seconds.
        task: "translate" writes English.
        beams: texts that are followed at once. More may find a likelier text, and take longer.
        progress: called with the frames of 10 ms that are done, and all frames

        FileError: the file is no WAV file, or incomplete. InvalidArgumentError: the audio has no samples, or the model
        does not know the language, or cannot translate.
        """
        if progress is not None:
            expect_function(progress, "progress")
        expect_choice(task, "task", ("transcribe", "translate"))
        samples = resample(*_samples_of(audio, rate))
        if not len(samples):
            raise InvalidArgumentError("the audio has no samples")
        if task == "translate" and not self.multilingual:
            raise InvalidArgumentError("the model cannot translate: it knows only English")
        if not 1 <= expect_int(beams, "beams") <= _MOST_BEAMS:
            raise InvalidArgumentError(f"beams is {beams}: it must be from 1 to {_MOST_BEAMS}")
        with self._lock:
            self._open()
            self._make_room(beams)
            return self._transcribe(samples, language, task, beams, progress)

    def _transcribe(
        self,
        samples: FloatArray,
        language: str | None,
        task: str,
        beams: int,
        progress: Callable[[int, int], object] | None,
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
            found, used = self._window(self._prompt(code, task), at / 100, length, beams)
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
            if not isinstance(language, str):
                raise TypeError(f"language must be a code such as 'en', not {kind_of(language)}")
            if language not in known:
                raise InvalidArgumentError(f"language {language!r:.20} is not known; known are {', '.join(known)}")
            return language
        if not s.multilingual:
            return "en"
        window = np.zeros((self._s.mels, 2 * self._s.audio_context), np.float32)
        window[:, : min(_FRAMES, mel.shape[1])] = mel[:, :_FRAMES]
        self._encode(window)
        logits = self._decode_prompt([s.start])
        return known[int(logits[s.languages : s.languages + s.n_languages].argmax())]

    def _window(self, prompt: list[int], begin: float, length: float, beams: int) -> tuple[list[Segment], float]:
        """The segments of one window, and the seconds of it that they use."""
        logits = self._decode_prompt(prompt)
        silence = _log_softmax(logits)[self._special.no_speech]
        best = self._search(len(prompt), logits, beams)
        if np.exp(silence) > 0.6 and best.mean < -1.0:
            return [], length
        return self._segments(best.tokens, begin, length)

    def _search(self, n_prompt: int, logits: FloatArray, beams: int) -> _Beam:
        """The best text of a beam search. One beam takes the likeliest token each time.

        logits: after the prompt, which has the first ``n_prompt`` cells
        """
        done: list[_Beam] = []
        live, rows, most = [_Beam((), tuple(range(n_prompt)), 0.0)], logits[None], self._s.text_context // 2
        while live and len(live[0].tokens) < most:
            chosen: list[tuple[_Beam, int, float]] = []
            for beam, token, score in self._offers(live, rows, beams):
                if token == self._special.end:
                    done.append(_Beam(beam.tokens, beam.cells, score))
                else:
                    chosen.append((beam, token, score))
                if len(chosen) == beams:
                    break
            if len(done) >= beams or not chosen:
                live = [] if done else live
                break
            used = {cell for beam, _, _ in chosen for cell in beam.cells}
            free = (cell for cell in range(self._cache.n_cells) if cell not in used)
            live = [_Beam((*beam.tokens, token), (*beam.cells, next(free)), score) for beam, token, score in chosen]
            cells = [beam.cells for beam in live]
            rows = self._decode(
                [beam.tokens[-1] for beam in live], [len(c) - 1 for c in cells], [c[-1] for c in cells], cells
            )
        return max([*done, *live], key=lambda beam: beam.mean)

    def _offers(self, live: Sequence[_Beam], rows: FloatArray, beams: int) -> list[tuple[_Beam, int, float]]:
        """The best next tokens of each beam with the new score, the likeliest first."""
        offers: list[tuple[_Beam, int, float]] = []
        for beam, row in zip(live, rows, strict=True):
            shares = _log_softmax(self._rules(row, beam.tokens))
            for token in _largest(shares, 1 if beams == 1 else beams + 1):
                offers.append((beam, token, beam.score + float(shares[token])))
        return sorted(offers, key=lambda offer: -offer[2])

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
        return self.weights.nbytes + self._cache.nbytes + self._crossed.nbytes

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
            self._cache.context.close()
            self._crossed.context.close()
            self.weights.close()

    def __repr__(self) -> str:
        if self._scheduler is None:
            return "<SpeechModel: closed>"
        kind = f"{self._special.n_languages} languages" if self.multilingual else "English"
        return f"<SpeechModel {self.name!r}: whisper, {self._s.encoder_layers} layers, {kind}>"


def _samples_of(audio: str | os.PathLike[str] | npt.NDArray[Any], rate: int) -> tuple[FloatArray, int]:
    """The samples of a WAV file or of an array, and their rate."""
    if not isinstance(audio, np.ndarray):
        expect_path(audio, "audio")
        return read_wav(audio)
    if audio.dtype.kind != "f" or audio.ndim != 1:
        raise InvalidArgumentError(
            f"audio must be an array of floats between -1 and 1 with one axis, not {audio.dtype} of shape {audio.shape}"
        )
    with np.errstate(over="ignore"):
        samples = audio.astype(np.float32)
    if not np.isfinite(samples).all():
        raise InvalidArgumentError("audio has samples that are no numbers, or too large for float32")
    if not LEAST_RATE <= expect_int(rate, "rate") <= MOST_RATE:
        raise InvalidArgumentError(f"rate is {rate}: it must be from {LEAST_RATE} to {MOST_RATE} samples a second")
    return samples, rate


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


def _largest(x: FloatArray, n: int) -> list[int]:
    """Indices of the ``n`` largest finite values, the largest first. Equal values keep their order."""
    if n == 1:
        best = int(x.argmax())
        return [best] if np.isfinite(x[best]) else []
    least = np.partition(x, -n)[-n] if n < len(x) else -np.inf
    found = np.flatnonzero(np.isfinite(x) & (x >= least))
    indices: list[int] = found[np.argsort(-x[found], kind="stable")][:n].tolist()
    return indices


def _log_softmax(x: FloatArray) -> FloatArray:
    found: FloatArray = x - np.float32(_log_sum(x))
    return found
