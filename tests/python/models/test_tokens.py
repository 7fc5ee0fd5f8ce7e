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

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NORMAL_FORM_C = ("qwen2", "deepseek-r1-qwen", "modern-bert", "olmo", "mpt")
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

        expected = unicodedata.normalize("NFC", text) if pre in NORMAL_FORM_C else text
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == expected


def test_single_digits_are_cut_apart():
    tokenizer = tokenizer_of(byte_level("smollm")[1])
    assert [tokenizer.piece(t) for t in tokenizer.encode("x123")] == [b"x", b"1", b"2", b"3"]


def test_special_tokens_are_found_unless_disabled():
    tokenizer = tokenizer_of(byte_level()[1])
    start, end, tool = len(tokenizer) - 3, len(tokenizer) - 2, len(tokenizer) - 1
    found = tokenizer.encode("<|im_start|>a<tool><|im_end|>")
    assert (found[0], found[-2:], len(found)) == (start, [tool, end], 4)
    assert not {start, end, tool} & set(tokenizer.encode("<|im_start|>a<tool><|im_end|>", special=False))
    assert tokenizer.piece(start) == b"" and tokenizer.piece(tool) == b"<tool>"
    assert tokenizer.stops == {end}
    assert tokenizer.piece(len(tokenizer)) == tokenizer.piece(-1) == b"", "rows that no token uses"
    assert tokenizer_of(byte_level(**{"tokenizer.ggml.add_bos_token": True})[1]).encode("a")[0] == start


CUTS = {  # spaces show where a pattern cuts, "_" is a space of the text
    "gpt-2": "CamelCase 's _it ' S _12345 // \n / \n_ _x ./",
    "llama-bpe": "CamelCase 's _it 'S _ 123 45 //\n /\n _ _x ./",
    "qwen2": "CamelCase 's _it 'S _ 1 2 3 4 5 //\n /\n _ _x ./",
    "gpt-4o": "Camel Case's _it'S _ 123 45 //\n/\n _ _x ./",
    "tekken": "Camel Case 's _it 'S _ 1 2 3 4 5 //\n/\n _ _x ./",
}


@pytest.mark.parametrize("pre", CUTS)
def test_patterns_cut_words_numbers_and_signs(pre):
    text = "CamelCase's it'S 12345//\n/\n  x./"
    engine = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERNS[pre]), behavior="isolated")
    assert [cut.replace(" ", "_") for cut, _ in engine.pre_tokenize_str(text)] == CUTS[pre].split(" ")


@pytest.mark.parametrize(
    ("pre", "whole"), [("tekken", True), ("pixtral", True), ("llama-bpe", True), ("gpt-4o", False)]
)
def test_a_word_that_is_a_piece_needs_no_merges_if_the_model_says_so(pre, whole):
    metadata = byte_level(pre)[1]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "qzqz"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], np.int32(NORMAL))
    tokenizer = tokenizer_of(metadata)
    assert (tokenizer.encode("qzqz") == [len(tokenizer) - 1]) is whole


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


def test_the_name_of_a_control_token_in_a_text_is_text():
    tokenizer = tokenizer_of(sentence_piece([*WORDS, "<", "s", ">", "</", "s>", "<0", "x41>"]))
    for text in ("</s>", "<0x41>"):
        assert tokenizer.decode(tokenizer.encode(text, special=False, ends=False)) == f" {text}"
    assert 2 not in tokenizer.encode("</s>", special=False) and 2 in tokenizer.encode("</s>")


def unigram(words, **more):
    """A SentencePiece unigram vocabulary. words: pieces with their scores."""
    pieces = ["<pad>", "</s>", "<unk>", *words, "unused"]
    return {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.array([0.0, 0.0, 0.0, *words.values(), 0.0], np.float32),
        "tokenizer.ggml.token_type": np.array([CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(words) + [UNUSED], np.int32),
        "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 2, **more,
    }  # fmt: skip


UNIGRAM = {"\u2581": -3.0, "\u2581a": -2.5, "a": -4.0, "b": -4.0, "ab": -5.0, "abc": -9.5, "c": -4.5, "\u2581abb": -9.0}


def best_split(text):
    """The split with the largest sum, by trying all."""
    best = (0.0, []) if not text else (-1e9, [])
    for piece, score in UNIGRAM.items():
        if text.startswith(piece):
            rest, parts = best_split(text[len(piece) :])
            best = max(best, (rest + score, [piece, *parts]))
    return best


def test_unigram_finds_the_best_split():
    tokenizer = tokenizer_of(unigram(UNIGRAM))
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices("aabbc ", k=rng.randint(0, 9)))
        shown = "".join("\u2581" + word for word in text.split())
        tokens = tokenizer.encode(text)
        found = [tokenizer.pieces[t] for t in tokens[:-1]]
        assert "".join(found) == shown and tokens[-1] == 1
        assert sum(map(UNIGRAM.__getitem__, found)) == pytest.approx(best_split(shown)[0])


def test_unigram_keeps_spaces_if_the_file_says_so():
    keep = {"tokenizer.ggml.remove_extra_whitespaces": False, "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.ggml.precompiled_charsmap": np.zeros(0, np.uint8)}  # fmt: skip
    assert tokenizer_of(unigram(UNIGRAM)).decode(tokenizer_of(unigram(UNIGRAM)).encode("  a  b \u2581")) == " a b"
    tokenizer = tokenizer_of(unigram(UNIGRAM, **keep))
    assert tokenizer.decode(tokenizer.encode("  a  b ")) == "  a  b "


def test_unigram_gives_one_unknown_token_a_run_and_no_control_tokens():
    tokenizer = tokenizer_of(unigram({**UNIGRAM, "</s": -1.0, ">": -1.0}))
    encoded = tokenizer.encode("a\U0001f642\u00e9b", ends=False)
    assert [tokenizer.pieces[t] for t in encoded] == ["\u2581a", "<unk>", "b"]
    encoded = tokenizer.encode("a</s>unused", special=False, ends=False)
    assert [tokenizer.pieces[t] for t in encoded][:3] == ["\u2581a", "</s", ">"] and len(tokenizer) - 1 not in encoded


def character_map(replacements):
    """The table of SentencePiece for keys of one byte: a root, its children, and a leaf for each."""
    units, texts = [0] * 1024, b""
    units[0] = 256 << 10  # the children of the root begin at 256
    for i, (key, value) in enumerate(replacements.items()):
        at, leaf = 256 ^ ord(key), 512 + i
        units[at] = ((at ^ leaf) << 10) | 0x100 | ord(key)
        units[leaf] = 0x80000000 | len(texts)
        texts += value.encode() + b"\0"
    return np.frombuffer(np.array([4096, *units], "<u4").tobytes() + texts, np.uint8)


def test_unigram_maps_characters_by_the_table_of_the_file():
    table = character_map({"A": "a", "\t": " ", "!": "", "z": "ab", "w": "\u00e9"})
    tokenizer = tokenizer_of(unigram({**UNIGRAM, "\u00e9": -4.0}, **{"tokenizer.ggml.precompiled_charsmap": table}))
    assert tokenizer.decode(tokenizer.encode("A!\tb!\t\tz\u00e9w")) == " a b ab\u00e9\u00e9"
    assert tokenizer.encode("!\t!", ends=False) == []


@pytest.mark.parametrize("seed", range(40))
def test_damaged_tables_of_characters_give_errors_or_text(seed):
    rng = np.random.default_rng(seed)
    table = character_map({chr(c): chr(c) * 3 for c in range(97, 110)}).copy()
    table[rng.integers(4 if seed % 2 else 0, table.size, 200)] = rng.integers(0, 256, 200)
    table = table[: rng.integers(0, table.size)] if seed % 4 == 3 else table
    try:
        tokenizer = tokenizer_of(unigram(UNIGRAM, **{"tokenizer.ggml.precompiled_charsmap": table}))
    except gb.errors.FileError as error:
        assert "precompiled_charsmap" in str(error)
        return
    for text in TEXTS:
        assert all(0 <= t < len(tokenizer) for t in tokenizer.encode(text))


@pytest.mark.parametrize("table", [np.zeros(3, np.uint8), np.zeros(9, np.float32), "abc", [1, 2],
                                   np.frombuffer(b"\4\0\0\0" + bytes(4) + b"x" * 5000 + b"\0", np.uint8)])  # fmt: skip
def test_tables_of_characters_of_the_wrong_form_are_errors(table):
    with pytest.raises(gb.errors.FileError, match="precompiled_charsmap"):
        tokenizer_of(unigram(UNIGRAM, **{"tokenizer.ggml.precompiled_charsmap": table}))


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
        ({"tokenizer.ggml.tokens": ["\udcff"] * 600, "tokenizer.ggml.token_type": None}, "is not UTF-8|does not join"),
        ({"tokenizer.ggml.merges": []}, "must be a list of texts"),
        ({"tokenizer.ggml.tokens": "abc"}, "must be a list of texts"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "must be a whole number"),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.add_eos_token": True}, "add_eos_token is true without"),
        ({"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, "it must be a list of"),
    ],
)
def test_errors_of_damaged_vocabularies_name_the_key(changes, words):
    metadata = {k: v for k, v in {**byte_level()[1], **changes}.items() if v is not None}
    with pytest.raises((gb.errors.FileError, gb.errors.UnsupportedError), match=words):
        tokenizer_of(metadata)
