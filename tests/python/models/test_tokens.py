"""Tokenizers from the metadata of a file."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.models import tokenizer_of
from ggml_backend.models.tokens import PATTERNS, TextStream

tokenizers = pytest.importorskip("tokenizers")

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
TEXTS = [
    "", " ", "a", "Hello, world!", "  two  spaces ", "tabs\tand\nlines\r\n\n", "it's I'LL we've",
    "naïve façade e\u0301", "日本語テキスト", "русский עברית العربية हिन्दी ไทย", "🙂 👩‍👩‍👧‍👦", "123 4567 3.14",
    "def f(x):\n    return x_1 + 0xFF\n",
    "\u00a0\u3000\u2028\x00\x07", "a" * 300, "<|im_start|>user", "</s>", "[CLS]",
]  # fmt: skip


def byte_level(pre="gpt-2", n_merges=400, **more):
    """A vocabulary of bytes and merges learnt from the texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + n_merges, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(TEXTS * 3 + ["Hello world 123 it's naïve"] * 4, trainer)
    import json

    model = json.loads(engine.to_str())["model"]
    pieces = [p for p, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    types = [NORMAL] * len(pieces) + [CONTROL, CONTROL, USER]
    pieces += ["<|im_start|>", "<|im_end|>", "<tool>"]
    return engine, {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": len(pieces) - 3, "tokenizer.ggml.eos_token_id": len(pieces) - 2,
        "tokenizer.ggml.add_bos_token": False, **more,
    }  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_bpe_is_that_of_tokenizers(text):
    engine, metadata = byte_level()
    tokenizer = tokenizer_of(metadata)
    assert tokenizer.encode(text, special=False) == engine.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@pytest.mark.parametrize("pre", PATTERNS)
def test_every_pattern_keeps_every_character(pre):
    tokenizer = tokenizer_of(byte_level(pre)[1])
    for text in TEXTS:
        import unicodedata

        expected = unicodedata.normalize("NFC", text) if pre in ("qwen2", "deepseek-r1-qwen", "modern-bert") else text
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == expected


def test_single_digits_are_cut_apart():
    tokenizer = tokenizer_of(byte_level("smollm")[1])
    assert [tokenizer.piece(t) for t in tokenizer.encode("x123")] == [b"x", b"1", b"2", b"3"]


def test_special_tokens_are_found_unless_they_are_turned_off():
    tokenizer = tokenizer_of(byte_level()[1])
    start, end, tool = len(tokenizer) - 3, len(tokenizer) - 2, len(tokenizer) - 1
    found = tokenizer.encode("<|im_start|>a<tool><|im_end|>")
    assert (found[0], found[-2:], len(found)) == (start, [tool, end], 4)
    assert not {start, end, tool} & set(tokenizer.encode("<|im_start|>a<tool><|im_end|>", special=False))
    assert tokenizer.piece(start) == b"" and tokenizer.piece(tool) == b"<tool>"
    assert tokenizer.stops == {end}
    assert tokenizer.piece(len(tokenizer)) == tokenizer.piece(-1) == b"", "rows that no token uses"
    assert tokenizer_of(byte_level(**{"tokenizer.ggml.add_bos_token": True})[1]).encode("a")[0] == start


def sentence_piece(words, **more):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [-float(i) for i in range(len(words))], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32), "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, **more,
    }  # fmt: skip


WORDS = ["\u2581a", "ab", "\u2581ab", "abc", "bc", "\u2581", "a", "b", "c", "\u2581\u2581", "cab", "d"]


def merged(text):
    """The rule of SentencePiece, pair by pair: the best score first, ties from the left."""
    parts = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        pairs = [(WORDS.index(a + b), i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in WORDS]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def test_sentence_piece_merges_the_best_pair_first():
    tokenizer = tokenizer_of(sentence_piece(WORDS))
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choices("abcd  ", k=rng.randint(0, 12)))
        assert [tokenizer.pieces[t] for t in tokenizer.encode(text)[1:]] == merged(text)
        assert tokenizer.encode(text)[0] == 1


def test_unknown_characters_become_bytes():
    tokenizer = tokenizer_of(sentence_piece(WORDS))
    tokens = tokenizer.encode("aé🙂")
    assert [tokenizer.pieces[t] for t in tokens[2:]] == ["<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]
    assert tokenizer.decode(tokens) == " aé🙂"
    stream = TextStream(tokenizer)
    assert [stream.push(t) for t in tokens] == ["", " a", "", "é", "", "", "", "🙂"]


def test_word_piece_is_that_of_tokenizers():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##want", "##ed", "runn", "##ing", "want", "the", ",", "a",
             "##a", "日", "hello"]  # fmt: skip
    engine = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces = [w if w[0] == "[" else w[2:] if w[:2] == "##" else "\u2581" + w for w in words]
    tokenizer = tokenizer_of(
        {
            "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": np.array([CONTROL] * 4 + [NORMAL] * 12, np.int32),
            "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.cls_token_id": 2,
            "tokenizer.ggml.seperator_token_id": 3,
        }
    )  # fmt: skip
    for text in ("unwanted running", "UNWANTÉD, running", "the 日 a aa aaa zzz", "", "hello[SEP]"):
        assert tokenizer.encode(text, special=False) == [2, *engine.encode(text).ids, 3]
    assert tokenizer.encode("hello[SEP]") == [2, 15, 3, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.pre": "nobody"}, "'nobody'; known are"),
        ({"tokenizer.ggml.merges": ["x yz9"]}, "does not join two tokens"),
        ({"tokenizer.ggml.merges": []}, "must be a list of texts"),
        ({"tokenizer.ggml.tokens": "abc"}, "must be a list of texts"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "must be a whole number"),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.add_eos_token": True}, "add_eos_token is true without"),
        ({"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, "it must be a list of"),
    ],
)
def test_damaged_vocabularies_are_told_by_their_key(changes, words):
    metadata = {k: v for k, v in {**byte_level()[1], **changes}.items() if v is not None}
    with pytest.raises((gb.errors.FileError, gb.errors.UnsupportedError), match=words):
        tokenizer_of(metadata)
