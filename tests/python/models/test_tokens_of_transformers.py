"""Tokens of 2,000 lines beside the tokenizers of ``transformers``, with vocabularies that the test trains."""

from __future__ import annotations

import inspect
import io
import json
import random

import numpy as np
import pytest

from ggml_backend.models import tokenizer_of
from ggml_backend.models.tokens import PATTERNS

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_models.sh (make check-long) does")
transformers = pytest.importorskip("transformers", reason="transformers is not installed; make check-long does")
tokenizers = pytest.importorskip("tokenizers")
Regex, Tokenizer = tokenizers.Regex, tokenizers.Tokenizer
models, pre_tokenizers, trainers = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.trainers

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
N_LINES = 2000
N_MADE = 2500  # some are left out where transformers differs from SentencePiece

WORDS = [
    "the", "of", "and", "in", "to", "Hello", "World", "it's", "I'LL", "we've", "don't", "naïve", "façade", "Straße",
    "ĳsland", "İstanbul", "ﬁn", "e\u0301le\u0300ve", "Ωμέγα", "привет", "мир", "שלום", "مرحبا", "नमस्ते", "สวัสดี",
    "日本語", "テキスト", "中文字符", "한국어", "カタカナ", "１２３", "ⅷ", "²", "½",
    "123", "4567", "3.14", "0xFF", "1e-9",
]  # fmt: skip
CODE = [
    "def f(x):", "    return x_1 + y[0]", "\tif (a != b && c) {", "}", "for i in range(10):", "<div class='x'>",
    "#include <x.h>", "x->y **= ~z;", "SELECT * FROM t;", "https://a.b/c?d=e&f", "C:\\path\\to",
    'print(f"{x!r:>10}")', "/* ... */", "//\n//",
]  # fmt: skip
SIGNS = [
    "🙂", "👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "🇫🇷", "☃", "\u2014", "\u2026", "«»", "€", "™", "\u3001",
    "\u3002", "\uff01", "(", ")", "...", "!!", "--", "==", "'", '"',
]  # fmt: skip
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\t\t",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\r",
    "\n",
    "\r\n",
    "\n\n",
    " \n ",
    "    ",
]
CONTROLS = ["\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\ufeff", "\ufffd", "\ue000", "\U000e0001", "\u202e", "\u2581"]


def lines(seed):
    rng = random.Random(seed)
    made = []
    for i in range(N_MADE):
        kinds = (WORDS, CODE, SIGNS, SPACES, CONTROLS) if i % 4 else (WORDS,)
        parts = []
        for _ in range(rng.randint(1, 14)):
            parts.append(rng.choice(rng.choice(kinds)))
            if rng.random() < 0.7:
                parts.append(" ")
        made.append("".join(parts))
    return made


LINES, TRAINING = lines(1), lines(2)


def trained(engine, trainer):
    engine.train_from_iterator(TRAINING, trainer)
    return json.loads(engine.to_str())["model"]


@pytest.fixture(scope="module")
def byte_level():
    """A vocabulary of bytes with its merges."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = trained(engine, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    return model["vocab"], [tuple(m) for m in model["merges"]]


@pytest.fixture(scope="module")
def scored():
    """Pieces of characters, with U+2581 for a space, bytes, and merges in the order of their scores."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    model = trained(engine, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    learnt = [p for p, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *learnt]
    ids = {p: i for i, p in enumerate(pieces)}
    merges = [(-ids[p], p[:i], p[i:]) for p in learnt for i in range(1, len(p)) if p[:i] in ids and p[i:] in ids]
    merges.sort(key=lambda m: (-m[0], ids[m[1]], ids[m[2]]))
    return pieces, ids, [m[1:] for m in merges]


def metadata(kind, pieces, types, **keys):
    return {
        "tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
    }  # fmt: skip


def compare(ours, theirs, texts=LINES):
    wrong = [text for text in texts if ours.encode(text, special=False, ends=False) != theirs(text)]
    assert len(texts) >= N_LINES and not wrong, (len(wrong), wrong[:5])


def of_bytes(byte_level, pre):
    vocab, merges = byte_level
    pieces = sorted(vocab, key=vocab.__getitem__)
    merged = [" ".join(m) for m in merges]
    return tokenizer_of(metadata("gpt2", pieces, [NORMAL] * len(pieces), pre=pre, merges=merged))


@pytest.mark.parametrize(("pre", "name"), [("gpt-2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")])
def test_byte_level_bpe(byte_level, pre, name):
    vocab, merges = byte_level
    theirs = getattr(transformers, name)(vocab=dict(vocab), merges=list(merges))
    compare(of_bytes(byte_level, pre), lambda text: theirs.encode(text, add_special_tokens=False))


def test_byte_level_bpe_of_llama_3(byte_level):
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocab, merges = byte_level
    pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    engine = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=True))
    engine.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    compare(of_bytes(byte_level, "llama-bpe"), lambda text: engine.encode(text).ids)


def splits():
    """The patterns that transformers uses for the names of ``tokenizer.ggml.pre`` that we have, too."""
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    return {pre: pattern for pre, pattern in mapping.GGUF_PRE_TOKENIZER_SPLITS.items() if pre in PATTERNS}


def test_patterns_of_the_names_of_a_file():
    theirs = splits()
    assert {"llama-bpe", "pixtral", "dbrx", "tekken", "qwen2", "gpt-4o"} <= set(theirs)
    for pre, pattern in theirs.items():
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated").pre_tokenize_str
        ours = pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated").pre_tokenize_str
        assert all(ours(text) == cut(text) for text in LINES), pre


@pytest.mark.parametrize(("pre", "whole"), [("gpt-4o", False), ("tekken", True), ("pixtral", True), ("dbrx", False)])
def test_byte_level_bpe_trained_with_the_pattern(pre, whole):
    engine = Tokenizer(models.BPE(ignore_merges=whole))
    engine.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(splits()[pre]), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = trained(engine, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    learnt = model["vocab"], [tuple(m) for m in model["merges"]]
    compare(of_bytes(learnt, pre), lambda text: engine.encode(text).ids)


def test_byte_level_bpe_of_olmo(byte_level):
    vocab, merges = byte_level
    theirs = transformers.GPTNeoXTokenizer(vocab=dict(vocab), merges=list(merges))
    compare(of_bytes(byte_level, "olmo"), lambda text: theirs.encode(text, add_special_tokens=False))


def test_byte_level_bpe_of_smollm(byte_level):
    vocab, merges = byte_level
    engine = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    engine.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    compare(of_bytes(byte_level, "smollm"), lambda text: engine.encode(text).ids)


def unigram(**options):
    """A unigram model that SentencePiece trains, and the keys of its file."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING), model_writer=file, model_type="unigram", vocab_size=700, minloglevel=2,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, **options,
    )  # fmt: skip
    model = sentencepiece_model_pb2.ModelProto.FromString(file.getvalue())
    normal = model.normalizer_spec
    pieces = model.pieces
    keys = metadata("t5", [p.piece for p in pieces], [p.type for p in pieces],
                    scores=np.array([p.score for p in pieces], np.float32), unknown_token_id=2, eos_token_id=1,
                    add_space_prefix=normal.add_dummy_prefix,
                    remove_extra_whitespaces=normal.remove_extra_whitespaces)  # fmt: skip
    if normal.precompiled_charsmap:
        table = np.frombuffer(normal.precompiled_charsmap, np.uint8)
        keys["tokenizer.ggml.precompiled_charsmap"] = table
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue()), keys


@pytest.mark.parametrize("bytes_of_unknown", [False, True])
@pytest.mark.parametrize("spaces", [True, False])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "identity"])
def test_unigram_of_sentence_piece(rule, spaces, bytes_of_unknown):
    theirs, keys = unigram(normalization_rule_name=rule, add_dummy_prefix=spaces, remove_extra_whitespaces=spaces,
                           byte_fallback=bytes_of_unknown)  # fmt: skip
    compare(tokenizer_of(keys), theirs.encode)


def test_unigram_of_transformers():
    theirs, keys = unigram(normalization_rule_name="nmt_nfkc")
    pieces, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"].tolist()
    table = keys["tokenizer.ggml.precompiled_charsmap"].tobytes()
    t5 = transformers.T5Tokenizer(
        vocab=list(zip(pieces, scores, strict=True)), extra_ids=0, _spm_precompiled_charsmap=table
    )
    # transformers maps clusters of characters, where SentencePiece maps the longest key.
    texts = [text for text in LINES if t5.encode(text, add_special_tokens=False) == theirs.encode(text)]
    compare(tokenizer_of(keys), lambda text: t5.encode(text, add_special_tokens=False), texts)


@pytest.mark.parametrize("prefix", [True, False])
def test_scored_pieces_with_bytes(scored, prefix):
    pieces, ids, merges = scored
    if prefix:
        theirs = transformers.LlamaTokenizer(vocab=dict(ids), merges=list(merges), legacy=True)
    else:
        theirs = transformers.GemmaTokenizer(vocab=dict(ids), merges=list(merges), pad_token="<unk>", bos_token="<s>",
                                             eos_token="</s>", mask_token="<unk>")  # fmt: skip
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(pieces) - 259)]
    scores = np.array([-float(i) for i in range(len(pieces))], np.float32)
    ours = tokenizer_of(
        metadata(
            "llama", pieces, types, scores=scores, unknown_token_id=0, add_space_prefix=prefix, add_bos_token=False
        )
    )
    # SentencePiece puts a space before every text. LlamaTokenizer leaves it out before a space or U+2581.
    texts = [text for text in LINES if not (prefix and text.startswith((" ", "\u2581")))]
    compare(ours, lambda text: theirs.encode(text, add_special_tokens=False), texts)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces(lowercase):
    from tokenizers.normalizers import BertNormalizer

    engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = BertNormalizer(lowercase=lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = trained(engine, trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False))
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    theirs = transformers.BertTokenizer(vocab=dict(model["vocab"]), do_lower_case=lowercase)
    pieces = [w if w in special else w[2:] if w.startswith("##") else f"\u2581{w}" for w in words]
    ours = tokenizer_of(
        metadata("bert", pieces, [CONTROL if w in special else NORMAL for w in words], unknown_token_id=1,
                 cls_token_id=2, seperator_token_id=3)
    )  # fmt: skip
    # A file writes the piece "##\u2581" of a word like the beginning of one.
    texts = [text for text in LINES if "\u2581" not in text]
    compare(ours, lambda text: theirs.encode(text, add_special_tokens=False), texts)
