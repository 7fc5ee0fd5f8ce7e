"""Models that write text."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import gguf
from .._base.errors import FileError, InvalidArgumentError, expect, expect_choice, expect_int, expect_list
from ..backend._priority import holders_of, with_cpu
from ..backend.backend import Backend
from ..dtypes import as_dtype
from ..sched._step import Step
from ..sched.scheduler import Scheduler
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._cache import Cache, Ints
from ._cache import Sequence as CachedSequence
from ._decoder import Inputs, Observed, Precision, decode
from ._model import Model
from ._sizes import Sizes
from .architectures import DECODERS, architecture_of
from .chat import ChatTemplate, Message
from .sampling import Sampling
from .tokens import TextStream, Tokenizer, tokenizer_of

__all__ = ["Generation", "Stats", "TextModel"]

FloatArray = npt.NDArray[np.float32]
Scores = tuple[FloatArray, Ints | None]
"""Logits of a token, and the tokens that they belong to, the likeliest first. None: all, in order."""

_LEAST_CELLS = 256
_KEPT_GRAPHS = 8
_RULES = tuple(field.name for field in fields(Sampling))


def _class_of(n: int, least: int = 1) -> int:
    """The size of the graph that computes ``n``: ``n`` rounded up to three significant bits."""
    n = max(n, least)
    step = 1 << max(0, n.bit_length() - 3)
    return -(-n // step) * step


@dataclass
class Stats:
    """Counts and times of all steps so far. A step with several tokens of a sequence reads a prompt."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0

    def _add(self, n: int, seconds: float, prompt: bool) -> None:
        """Adds a step of ``n`` tokens."""
        if prompt:
            self.prompt_tokens += n
            self.prompt_seconds += seconds
        else:
            self.new_tokens += n
            self.new_seconds += seconds


@dataclass(frozen=True)
class _Step:
    """A graph for ``inputs.ids.shape[0]`` tokens that see the first ``inputs.mask.shape[1]`` cells."""

    context: Context
    inputs: Inputs
    logits: Tensor
    observed: Sequence[Observed]
    step: Step


class TextModel(Model):
    """A decoder with its tokenizer, ready to write.

    Use :func:`ggml_backend.models.load`. The object may be shared between threads: steps wait for each other.

    ``name``, ``architecture``, ``n_ctx`` (tokens of all texts that are being written), ``tokenizer``, ``template``,
    ``metadata``, ``stats``

    precision: of the values that quantized weights multiply. "f16" keeps 15 bits, which is close to "f32" and faster.
        "default" rounds to 8 bits: prompts are faster, and a small model may choose other words.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        devices: Sequence[str | Backend] = ("CPU",),
        *,
        n_threads: int | None = None,
        n_ctx: int | None = None,
        n_batch: int = 512,
        cache: str = "float16",
        precision: Precision = "f16",
    ) -> None:
        expect_choice(precision, "precision", ("default", "f16", "f32"))
        self.precision: Precision = precision
        self.n_batch: int = expect_int(n_batch, "n_batch")
        if self.n_batch < 1:
            raise InvalidArgumentError(f"n_batch is {n_batch}: it must be at least 1")
        holders = holders_of(devices, n_threads)
        self.backends: list[Backend] = with_cpu(holders, n_threads)
        self._lock = threading.RLock()
        with gguf.open(path) as file:
            self.metadata: dict[str, Any] = dict(file.metadata)
            self.architecture: str = architecture_of(self.metadata, DECODERS)
            self._a = DECODERS[self.architecture]
            self._s = Sizes.of(self.architecture, self._a, self.metadata, file.tensors, n_ctx)
            self.n_ctx: int = self._context(n_ctx)
            self.tokenizer: Tokenizer = tokenizer_of(self.metadata, self._s.vocab)
            layers = {f"blk.{i}.*": holders[i * len(holders) // self._s.layers] for i in range(self._s.layers)}
            self.weights: gguf.Weights = file.load({**layers, "*": holders[-1]})
        self.name: str = str(self.metadata.get("general.name", self.architecture))
        self.template: ChatTemplate | None = self._template()
        self.cache: Cache = Cache(self._s, self.n_ctx, holders, as_dtype(cache, "cache"))
        self._scheduler: Scheduler | None = Scheduler(self.backends)
        self._steps: OrderedDict[tuple[int, int, int], _Step] = OrderedDict()
        self.stats: Stats = Stats()
        self._observer: Callable[[Sequence[Observed], int], object] | None = None

    def _context(self, n_ctx: int | None) -> int:
        if n_ctx is None:
            return min(self._s.context, 4096)
        if not 1 <= expect_int(n_ctx, "n_ctx") <= self._s.context:
            raise InvalidArgumentError(f"n_ctx is {n_ctx}: this model takes 1 to {self._s.context}")
        return n_ctx

    def _template(self) -> ChatTemplate | None:
        source = self.metadata.get("tokenizer.chat_template")
        if source is None:
            return None
        if not isinstance(source, str):
            raise FileError("tokenizer.chat_template must be a text")
        pieces, t = self.tokenizer.pieces, self.tokenizer
        return ChatTemplate(source, *("" if i is None else pieces[i] for i in (t.bos, t.eos)))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _step_of(self, n_tokens: int, n_cells: int, n_out: int) -> _Step:
        """The graph of this size, built on first use."""
        key = (n_tokens, n_cells, n_out)
        found = self._steps.get(key)
        if found is not None:
            self._steps.move_to_end(key)
            return found
        if len(self._steps) >= _KEPT_GRAPHS:
            self._steps.popitem(last=False)[1].context.close()
        context = Context()
        inputs = Inputs.make(context, self._a, self._s, n_tokens, n_cells, n_out)
        layers = [(context.view(k), context.view(v)) for k, v in self.cache.layers]
        observed: list[Observed] | None = [] if self._observer else None
        order: list[Tensor] = []
        logits = decode(self.weights, self._a, self._s, inputs, layers, self.precision, observed, order)
        kept = [t for one in observed or () for t in (one.rows, one.experts) if t is not None]
        graph = context.graph(logits, keep=kept, first=order)
        step = Step(self._open(), graph, inputs.tensors, logits)
        made = self._steps[key] = _Step(context, inputs, logits, observed or (), step)
        return made

    def _compute(self, work: Sequence[tuple[CachedSequence, Sequence[int]]], n_best: int) -> list[Scores]:
        """Adds tokens to sequences. Returns scores of each next token: of the ``n_best`` likeliest, or (0) of all."""
        self._open()
        placed: list[tuple[CachedSequence, int]] = []
        try:
            rows: list[Ints] = []
            for sequence, tokens in work:
                rows.append(self.cache.add(sequence, tokens))
                placed.append((sequence, len(tokens)))
            return self._run(work, np.concatenate(rows), n_best)
        except BaseException:
            for sequence, n in placed:
                self.cache.drop_last(sequence, n)
            raise

    def _run(self, work: Sequence[tuple[CachedSequence, Sequence[int]]], cells: Ints, n_best: int) -> list[Scores]:
        lengths = np.array([len(tokens) for _, tokens in work])
        n, ends = int(lengths.sum()), np.cumsum(lengths) - 1
        n_tokens, n_out = _class_of(n), _class_of(len(work))
        n_cells = min(_class_of(self.cache.n_seen(), _LEAST_CELLS), self.n_ctx)
        made = self._step_of(n_tokens, n_cells, n_out)
        ids, positions, rows, out, *masks = made.step.arrays

        def put(array: Ints, x: Ints | Sequence[int]) -> None:  # fills the rest with the last element
            array[: len(x)] = x
            array[len(x) :] = x[-1]

        # padding computes the last token again, with the same result in the same place
        put(ids, [t for _, tokens in work for t in tokens])
        put(positions, self.cache.position[cells])
        put(rows, cells)
        put(out, ends)
        numbers = np.empty(n_tokens, np.int32)
        put(numbers, np.repeat(np.array([s.number for s, _ in work], np.int32), lengths))
        for mask, window in zip(masks, made.inputs.windows(self._s.window), strict=True):
            mask[...] = self.cache.visible(numbers, positions, n_cells, window)
        best, values = made.step.run(n_best)
        if self._observer:
            self._observer(made.observed, n)
        if n_best:
            return [(values[i], best[i]) for i in range(len(work))]
        return [(row, None) for row in made.logits.numpy()[: len(work)].copy()]

    def _feed(self, sequence: CachedSequence, tokens: Sequence[int], n_best: int) -> Scores:
        """Scores of the token after these, which are computed in batches."""
        begin = time.perf_counter()
        scores: list[Scores] = []
        for i in range(0, len(tokens), self.n_batch):
            with self._lock:
                scores = self._compute([(sequence, tokens[i : i + self.n_batch])], n_best)
        self.stats._add(len(tokens), time.perf_counter() - begin, len(tokens) > 1)
        return scores[0]

    # ---- for users ---------------------------------------------------------------------------------------------------

    def _forget_graphs(self) -> None:
        """Drops all graphs. The next step builds its own."""
        for step in self._steps.values():
            step.context.close()
        self._steps.clear()

    def _tokens(self, text: str | Sequence[int], what: str = "prompt") -> list[int]:
        """The tokens of a text, at least one, all of the vocabulary. what: the argument, for messages"""
        if isinstance(text, str):
            tokens = self.tokenizer.encode(text)
        else:
            tokens = [expect_int(t, f"{what}: each token") for t in expect_list(text, what, "tokens, or a text")]
        if not tokens:
            raise InvalidArgumentError("the prompt is empty")
        wrong = [t for t in tokens if not 0 <= t < self._s.vocab]
        if wrong:
            raise InvalidArgumentError(f"token {wrong[0]} is not in the vocabulary of {self._s.vocab}")
        return tokens

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        tokens = self._tokens(prompt)
        if len(tokens) > self.n_ctx:
            hint = f"give a larger n_ctx (option --n-ctx), at most the model's {self._s.context}, or a shorter text"
            if self.n_ctx == self._s.context:
                hint = "give a shorter text; n_ctx (option --n-ctx) cannot exceed the context of the model"
            raise InvalidArgumentError(f"the prompt has {len(tokens)} tokens, the context {self.n_ctx}: {hint}")
        return tokens

    def logits(self, prompt: str | Sequence[int]) -> FloatArray:
        """Logits of the token after a text: float32 (vocabulary,)."""
        tokens = self._prompt(prompt)
        sequence = self._begin(tokens)
        try:
            return self._feed(sequence, tokens[len(sequence.tokens) :], 0)[0]
        finally:
            self._end(sequence)

    def _begin(self, tokens: Sequence[int]) -> CachedSequence:
        with self._lock:
            self._open()
            return self.cache.begin(tokens)

    def _end(self, sequence: CachedSequence) -> None:
        with self._lock:
            self.cache.end(sequence)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        **rules: Any,
    ) -> Generation:
        """Continues a text. Iterate over the result to get the new text piece by piece.

        prompt: a text, or tokens
        max_tokens: at most so many new ones. Default: to the end of the context.
        stop: texts that end the answer. They are not part of it.
        rules: fields of :class:`Sampling`, for example ``temperature=0.8, seed=1``. The default takes the likeliest
            token.
        """
        for rule in rules:
            if rule not in _RULES:
                raise TypeError(
                    f"generate: {rule!r} is not one of its options and rules: max_tokens, stop, sampling,"
                    f" {', '.join(_RULES)}"
                )
        if sampling is not None and rules:
            raise InvalidArgumentError("give either sampling= or its fields, not both")
        if sampling is not None:
            expect(sampling, Sampling, "sampling")
        if max_tokens is not None and expect_int(max_tokens, "max_tokens") < 1:
            raise InvalidArgumentError(f"max_tokens is {max_tokens}: it must be at least 1")
        stop = (stop,) if isinstance(stop, str) else expect_list(stop, "stop", "texts")
        if not all(isinstance(s, str) and s for s in stop):
            raise InvalidArgumentError("stop must be a list of texts that are not empty")
        return Generation(self, self._prompt(prompt), max_tokens, stop, sampling or Sampling(**rules))

    def chat(self, messages: Sequence[Message], **options: Any) -> Generation:
        """Answers a conversation: a list of ``{"role": "user", "content": "Hello"}``.

        Takes the options of :meth:`generate`. A conversation that continues an earlier one computes only what is new.
        InvalidArgumentError: the file has no chat template.
        """
        return self.generate(self.tokenizer.encode(self.chat_prompt(messages), ends=False), **options)

    def chat_prompt(self, messages: Sequence[Message], **variables: Any) -> str:
        """The text of a conversation as the model reads it. variables: more variables of the template."""
        if self.template is None:
            raise InvalidArgumentError(
                f"{self.name} has no chat template (tokenizer.chat_template): it continues texts, see generate"
            )
        return self.template.render(messages, **variables)

    def generate_all(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int = 128,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        **rules: Any,
    ) -> list[str]:
        """Continues several texts at once: one step computes a token of each. The options are those of
        :meth:`generate`."""
        prompts = [self._tokens(p, "prompts: each") for p in expect_list(prompts, "prompts", "texts")]
        running = [self.generate(p, max_tokens=max_tokens, stop=stop, sampling=sampling, **rules) for p in prompts]
        texts = [""] * len(running)
        try:
            waiting = [(i, g) for i, g in enumerate(running)]
            for _, g in waiting:
                g._read_prompt()
            while waiting:
                waiting = [(i, g) for i, g in waiting if not g._choose()]
                if waiting:
                    self._advance([g for _, g in waiting])
            texts = ["".join(g) for g in running]
        finally:
            for g in running:
                g.close()
        return texts

    def _advance(self, running: Sequence[Generation]) -> None:
        """Computes the chosen token of each."""
        begin = time.perf_counter()
        for i in range(0, len(running), self.n_batch):
            some = running[i : i + self.n_batch]
            needed = [g._n_best for g in some]
            with self._lock:
                n_best = max(needed) if min(needed) else 0
                scores = self._compute([(g._live(), [g.tokens[-1]]) for g in some], n_best)
            for g, found in zip(some, scores, strict=True):
                g._scores = found
        self.stats._add(len(running), time.perf_counter() - begin, False)

    @property
    def compute_nbytes(self) -> int:
        """Bytes of intermediate results on all devices, as the scheduler planned them."""
        scheduler = self._open()
        return sum(scheduler.memory(b).allocated for b in self.backends)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and cache."""
        return self.weights.nbytes + self.cache.nbytes

    def close(self) -> None:
        """Frees the memory. The model cannot write any more."""
        with self._lock:
            if self._scheduler is None:
                return
            self._scheduler.close()
            self._scheduler = None
            self._forget_graphs()
            self.cache.close()
            self.weights.close()

    def __repr__(self) -> str:
        if self._scheduler is None:
            return "<TextModel: closed>"
        where = ", ".join(b.name for b in self.backends)
        return (
            f"<TextModel {self.name!r}: {self.architecture}, {self._s.layers} layers, n_ctx {self.n_ctx}, on {where}>"
        )


class Generation:
    """A text that is being written. Iterate over it to get it piece by piece.

    ``text``: all of it so far; ``tokens``: its tokens; ``n_prompt``: tokens of the prompt; ``finish_reason``: None
    while it is being written, then "stop" (the model or a stop text ended it), "length" (``max_tokens`` or the end of
    the context) or "closed" (:meth:`close` or an exception ended it).

    An iteration that an exception or Ctrl-C ends keeps ``text``.
    """

    def __init__(
        self, model: TextModel, prompt: list[int], max_tokens: int | None, stop: tuple[str, ...], sampling: Sampling
    ) -> None:
        self._model, self._prompt, self._stop, self._sampling = model, prompt, stop, sampling
        left = model.n_ctx - len(prompt)
        self._most = left + 1 if max_tokens is None else min(max_tokens, left + 1)
        self._random = sampling.random()
        self._stream = TextStream(model.tokenizer)
        self._sequence: CachedSequence | None = None
        self._scores: Scores | None = None
        self._n_best = sampling._n_best(model._s.vocab)
        self._held = ""  # may be the beginning of a stop text
        self._ready: list[str] = []
        self.n_prompt: int = len(prompt)
        self.tokens: list[int] = []
        self.text: str = ""
        self.finish_reason: str | None = None

    def _live(self) -> CachedSequence:
        assert self._sequence is not None
        return self._sequence

    def _read_prompt(self) -> None:
        """Computes the prompt."""
        sequence = self._model._begin(self._prompt)
        self._sequence = sequence
        self._scores = self._model._feed(sequence, self._prompt[len(sequence.tokens) :], self._n_best)

    def _choose(self) -> bool:
        """Takes the next token. Returns True at the end of the text."""
        assert self._scores is not None
        n = self._sampling.repeat_last
        recent = self.tokens if len(self.tokens) >= n else [*self._prompt[-n:], *self.tokens]
        logits, best = self._scores
        if best is None:
            token = self._sampling.choose(logits, recent, self._random)
        else:
            token = self._sampling._choose_of(best, logits, recent, self._random)
        if token in self._model.tokenizer.stops:
            self._finish("stop")
            return True
        self.tokens.append(token)
        self._held += self._stream.push(token)
        if self._stopped():
            return True
        if len(self.tokens) >= self._most:
            self._finish("length")
            return True
        return False

    def _stopped(self) -> bool:
        """Emits the text that cannot be part of a stop text. Returns True if a stop text was found."""
        found = [i for i in (self._held.find(s) for s in self._stop) if i >= 0]
        if found:
            self._held = self._held[: min(found)]
            self._finish("stop", whole=False)
            return True
        kept = max((n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        self._emit(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _emit(self, piece: str) -> None:
        if piece:
            self.text += piece
            self._ready.append(piece)

    def _finish(self, reason: str, whole: bool = True) -> None:
        self._emit(self._held + (self._stream.end() if whole else ""))
        self._held = ""
        self.finish_reason = reason
        self.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            while not self._ready:
                if self.finish_reason is not None:
                    raise StopIteration
                if self._sequence is None:
                    self._read_prompt()
                elif self._scores is None:
                    self._scores = self._model._feed(self._live(), self.tokens[-1:], self._n_best)
                if not self._choose():
                    self._scores = None
        except BaseException:
            if self.finish_reason is None:
                self.close()
            raise
        return self._ready.pop(0)

    def close(self) -> None:
        """Ends the text here. What was written stays in ``text``."""
        if self.finish_reason is None:
            self.finish_reason = "closed"
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            self._model._end(sequence)

    def __del__(self) -> None:
        if getattr(self, "_sequence", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens after {self.n_prompt}, {self.finish_reason or 'being written'}>"
