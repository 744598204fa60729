"""Encoders: the same ids as the library on every text, whatever the backend; bounded memory."""

# ruff: noqa: RUF001
from __future__ import annotations

import gzip
import importlib.util
import json
import random
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from rungwise.core.errors import ConfigError, UserError
from rungwise.core.storage import Folder
from rungwise.tokenizer import (
    ByteBpeConfig,
    CharacterConfig,
    Encoded,
    TokenizerFileConfig,
    UnigramConfig,
    WordConfig,
    WordPieceConfig,
    cached_encoder,
    encoder_of,
    read,
    special_ids,
    train,
)
from rungwise.tokenizer.config import TrainedConfig
from rungwise.tokenizer.cutting import rules_of
from rungwise.tokenizer.encoder import Backend
from rungwise.tokenizer.memo import MemoEncoder, MemoLimits
from rungwise.tokenizer.rust import RustEncoder

SENTENCES = (
    "He was playing while they play; players played, and the player plays (1,234 of them).",
    "It's what they'd said: 'We'll see', didn't we? A\u0301nd nai\u0308ve café prices: $3.50!",
    "私は Tokyo に住む。中文 也 一样，没有空格。 Ünïcödé ∑ Straße İstanbul",
    "Strawberries and blueberries are berries -- mid-sized, (very) ripe... [see note 12]",
)
TRAINED: dict[str, TrainedConfig] = {
    "wordpiece": WordPieceConfig(vocab_size=240, min_frequency=1),
    "wordpiece cased": WordPieceConfig(vocab_size=240, min_frequency=1, lowercase=False),
    "byte_bpe": ByteBpeConfig(vocab_size=400, min_frequency=1, lowercase=True),
    "byte_bpe cased": ByteBpeConfig(vocab_size=400, min_frequency=1),
    "unigram": UnigramConfig(vocab_size=180, character_coverage=0.98),
    "unigram cased": UnigramConfig(vocab_size=180, lowercase=False),
    "character": CharacterConfig(vocab_size=80),
    "word": WordConfig(vocab_size=60, min_frequency=1),
    "word by blanks": WordConfig(
        vocab_size=60, min_frequency=1, split_punctuation=False, lowercase=False
    ),
}
IMPORTED = ("bert-base-uncased", "bert-base-cased", "bert-base-chinese", "gpt2")
SEEDS = range(4)
TEXTS_A_SEED = 2_500

# What tokenizers stumble over: each is likely to stand beside each other and beside words.
NASTY = (
    [" "] * 12
    + ["  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t ", "\x0b", "\x0c", "\x1c", "\x1f"]
    + ["\u00a0", "\u2003", "\u2000", "\u3000", "\u1680", "\u2028", "\u2029", "\u0085", "\u202f"]
    + ["\x00", "\x07", "\x1b", "\x7f", "\x9d", "\ufffd", "\u00ad", "\u200b", "\u200d", "\ufeff"]
    + ["\u0301", "\u0308", "\u0338", "\u0323", "\u20dd", "\ufe0f", "\u0307", " \u0301", "=\u0338"]
    + [
        "a\u0338",
        ">\u0338",
        "e\u0301",
        "E\u0301",
        "I\u0307",
        "中\u0338",
        "中\u0301",
        "\u1100\u1161",
    ]
    + ["´", "`", "¨", "^", "ª", "²", "½", "ﬁ", "Å", "\u212b", "\u212a", "\u037e", "\u1fef"]
    + ["ΟΔΟΣ", "Σ", "ς", "İ", "ı", "ß", "ẞ", "ǅ", "Straße", "naïve", "CAFÉ", "Ω"]
    + [
        "🎉",
        "👩‍👩‍👧",
        "🇩🇪",
        "1️⃣",
        "💩",
        "\U0001d400",
        "\U000e0001",
        "\ue000",
        "\uf8ff",
        "\U0010ffff",
    ]
    + [
        "私",
        "中文",
        "一",
        "鿿",
        "\u3400",
        "\U00020000",
        "豈",
        "、",
        "。",
        "，",
        "《",
        "한국어",
        "ひら",
        "が",
    ]
    + ["שלום", "العربية", "हिन्दी", "ไทย", "Привет", "\u0e33", "\u0600"]
    + ["[MASK]", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[mask]", "<|endoftext|>", "<unk>", "<s>"]
    + ["##ing", "##", "\u2581", "\u2581a", " \u2581", "Ġ", "Ġthe", "Ċ", "</w>", "[MASK", "MASK]"]
    + ["'s", "'S", "'t", "'re", "'", "''", "'ll", "don't", "DON'T", "'1", "\u2019s", "'\u0301s"]
    + list('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')
    + ["...", "--", "1,234.5", "3rd", "a1b2", "x_y", "e.g.", "http://a.b/c?d=e", "(word)", "$3"]
    + [
        "the",
        "The",
        "THE",
        "playing",
        "play",
        "berries",
        "unwanted",
        "a",
        "I",
        "ab" * 40,
        "z" * 130,
    ]
    + ["\u4dc0\u4dff", "a\u4dc0b", "word " * 3, "x" * 300, "，" * 90, "中" * 60]
)


def nasty_texts(seed: int, number: int) -> pa.StringArray:
    """Texts of fragments that stand beside each other in every order; some are empty."""
    rng = random.Random(seed)
    texts = [
        "".join(rng.choices(NASTY, k=rng.choice((0, 1, 2, 3, 5, 8, 13)))) for _ in range(number)
    ]
    return pa.array(texts, pa.string())


@cache
def trained(name: str) -> Tokenizer:
    return train(TRAINED[name], SENTENCES * 3)


def imported(folder: Path, name: str) -> Tokenizer:
    lowercase = name != "bert-base-cased"
    return read(TokenizerFileConfig(path=str(folder / "vocab" / name), lowercase=lowercase))


def assert_same(found: Encoded, expected: Encoded, texts: pa.StringArray) -> None:
    if len(found.ids) != len(expected.ids) or (found.ids != expected.ids).any():
        first = (
            int(np.flatnonzero(found.lengths != expected.lengths)[0])
            if (found.lengths != expected.lengths).any()
            else "?"
        )
        shown = texts[first].as_py() if isinstance(first, int) else ""
        raise AssertionError(f"other ids, first in text {first}: {shown!r}")
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert found.ids.dtype == expected.ids.dtype
    if expected.word_starts is None:
        assert found.word_starts is None
    else:
        assert found.word_starts is not None
        np.testing.assert_array_equal(found.word_starts, expected.word_starts)


def check_on_nasty_texts(tokenizer: Tokenizer) -> None:
    rust, memo = encoder_of(tokenizer, "rust"), encoder_of(tokenizer)
    assert isinstance(memo, MemoEncoder)
    for seed in SEEDS:
        texts = nasty_texts(seed, TEXTS_A_SEED)
        assert_same(memo.encode(texts, words=True), rust.encode(texts, words=True), texts)
        # The second time every piece was seen before.
        assert_same(memo.encode(texts), rust.encode(texts), texts)


@pytest.mark.parametrize("name", TRAINED)
def test_memo_gives_the_ids_of_the_library_on_nasty_texts(name: str) -> None:
    check_on_nasty_texts(trained(name))


@pytest.mark.parametrize("name", IMPORTED)
def test_memo_gives_the_ids_of_the_library_with_published_vocabularies(
    name: str, real_data: Path
) -> None:
    check_on_nasty_texts(imported(real_data, name))


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20),
    name=st.sampled_from(list(TRAINED)),
)
def test_memo_gives_the_ids_of_the_library_on_any_text(texts: list[str], name: str) -> None:
    tokenizer = trained(name)
    array = pa.array(texts, pa.string())
    found = encoder_of(tokenizer).encode(array, words=True)
    assert_same(found, encoder_of(tokenizer, "rust").encode(array, words=True), array)


@pytest.mark.parametrize("name", IMPORTED)
def test_every_encoder_gives_the_golden_ids(name: str, real_data: Path) -> None:
    """Ids of wikitext, CoLA, THUCNews and tricky lines, made by another version of the library."""
    path = real_data / "oracles" / "tokenization" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    assert len(lines) == 290
    tokenizer = imported(real_data, name)
    texts = pa.array([line["text"] for line in lines], pa.string())
    backends: list[Backend] = ["rust", "memo"]
    if name == "gpt2" and importlib.util.find_spec("gigatoken"):
        backends.append("gigatoken")
    for backend in backends:
        found = encoder_of(tokenizer, backend).encode(texts)
        assert found.lengths.tolist() == [len(line["ids"]) for line in lines]
        assert found.ids.tolist() == [index for line in lines for index in line["ids"]]


def test_the_examples_of_the_bert_authors_hold(real_data: Path, tmp_path: Path) -> None:
    facts = json.loads(
        (real_data / "oracles" / "tokenization" / "google_bert_facts.json").read_text()
    )
    full = facts["full_tokenizer"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(full["vocab"]) + "\n", encoding="utf-8")
    for backend in ("memo", "rust"):
        tokenizer = read(TokenizerFileConfig(path=str(path)))
        encoder = encoder_of(tokenizer, backend)
        assert encoder.encode(pa.array([full["text"]])).ids.tolist() == full["ids"]
        for case in facts["wordpiece"]["cases"]:
            found = encoder.encode(pa.array([case["text"]])).ids.tolist()
            assert [tokenizer.id_to_token(index) for index in found] == case["tokens"]
        # How the text falls into words shows with a vocabulary that has just these words.
        for case in facts["basic"]:
            words = ["[UNK]", *dict.fromkeys(case["tokens"])]
            path.write_text("\n".join(words) + "\n", encoding="utf-8")
            basic = read(TokenizerFileConfig(path=str(path), lowercase=case["lower"]))
            found = encoder_of(basic, backend).encode(pa.array([case["text"]]), words=True)
            assert [basic.id_to_token(index) for index in found.ids.tolist()] == case["tokens"]
            assert found.word_starts is not None
            assert found.word_starts.all()
        path.write_text("\n".join(full["vocab"]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["bert-base-chinese", "character"])
def test_a_chinese_line_gives_a_token_for_each_han_character(name: str, real_data: Path) -> None:
    line = "预训练语言模型在大规模语料上学习"
    if name == "character":
        tokenizer = train(CharacterConfig(vocab_size=100), [line])
    else:
        tokenizer = imported(real_data, name)
    found = encoder_of(tokenizer).encode(pa.array([line]), words=True)
    assert [tokenizer.id_to_token(index) for index in found.ids.tolist()] == list(line)
    assert found.word_starts is not None
    assert found.word_starts.all()


@pytest.mark.parametrize("name", TRAINED)
def test_words_as_long_as_a_book_are_right_and_not_remembered(name: str) -> None:
    tokenizer = trained(name)
    long = "".join(random.Random(0).choices("abcdefghij", k=1_000_000))
    texts = pa.array(["before it", f"a {long} b", "after it"], pa.string())
    encoder = encoder_of(tokenizer)
    found = encoder.encode(texts)
    assert_same(found, encoder_of(tokenizer, "rust").encode(texts), texts)
    assert isinstance(encoder, MemoEncoder)
    assert encoder.tokens < 100


@pytest.mark.parametrize(
    "limits", [MemoLimits(entries=50), MemoLimits(characters=200), MemoLimits(tokens=100)]
)
def test_a_full_memo_is_emptied_and_the_ids_stay(limits: MemoLimits) -> None:
    tokenizer = trained("byte_bpe")
    rules = rules_of(tokenizer)
    assert rules is not None
    bounded, free = MemoEncoder(tokenizer, rules, limits), MemoEncoder(tokenizer, rules)
    emptied = 0
    for seed in range(20):
        texts = nasty_texts(seed, 20)
        before = bounded.entries
        assert_same(bounded.encode(texts, True), free.encode(texts, True), texts)
        emptied += bounded.entries < before or bounded.entries == 0
        assert bounded.entries <= limits.entries
        assert bounded.characters <= limits.characters
        assert bounded.tokens <= limits.tokens
    assert emptied > 1
    assert free.entries > 50
    assert free.characters > 200
    assert free.tokens > 100


def test_a_batch_larger_than_is_encoded_at_once_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rungwise.tokenizer.memo._TEXT_BYTES_AT_ONCE", 100)
    for name in ("wordpiece", "byte_bpe"):
        texts = nasty_texts(0, 200)
        tokenizer = trained(name)
        expected = encoder_of(tokenizer, "rust").encode(texts, words=True)
        assert_same(encoder_of(tokenizer).encode(texts, words=True), expected, texts)


@pytest.mark.parametrize("backend", ["memo", "rust"])
def test_a_slice_of_an_array_and_no_text_at_all(backend: Backend) -> None:
    tokenizer = trained("wordpiece")
    encoder = encoder_of(tokenizer, backend)
    texts = pa.array([*SENTENCES, "", SENTENCES[0]], pa.string())
    middle = encoder.encode(texts.slice(1, 4))
    alone = encoder.encode(pa.array([*SENTENCES[1:], ""], pa.string()))
    assert_same(middle, alone, texts)
    assert middle.lengths[-1] == 0
    for none in (pa.array([], pa.string()), pa.array(["", ""], pa.string())):
        found = encoder.encode(none, words=True)
        assert len(found.ids) == 0
        assert found.lengths.tolist() == [0] * len(none)
        assert found.word_starts is not None


@pytest.mark.parametrize("name", TRAINED)
def test_no_text_becomes_a_special_token(name: str) -> None:
    tokenizer = trained(name)
    specials = set(special_ids(tokenizer).ids) - {special_ids(tokenizer).unk}
    texts = pa.array(["a [MASK] b", "[SEP]", " [CLS][PAD]", "x[MASK]x [UNK]"], pa.string())
    for backend in ("memo", "rust"):
        found = encoder_of(tokenizer, backend).encode(texts)
        assert not specials & set(found.ids.tolist())


def test_tokenizers_that_nobody_thought_through_are_not_cut() -> None:
    unknown = Tokenizer(models.WordLevel({"[UNK]": 0, "a b": 1}, unk_token="[UNK]"))
    assert rules_of(unknown) is None
    assert isinstance(encoder_of(unknown), RustEncoder)
    sampled = Tokenizer.from_str(trained("byte_bpe").to_str())
    sampled.model.dropout = 0.5  # type: ignore[attr-defined]
    assert rules_of(sampled) is None
    with_names = train(TRAINED["word"], SENTENCES)
    with_names.add_tokens([AddedToken("players played")])
    texts = pa.array([SENTENCES[0].lower()], pa.string())
    encoder = encoder_of(with_names)
    assert with_names.token_to_id("players played") in encoder.encode(texts).ids
    for change in ("normalizer", "prefix"):
        changed = train(TRAINED["byte_bpe"], SENTENCES)
        if change == "normalizer":
            # U+00B4 becomes a blank and an accent under NFKC: another blank may stand before it.
            changed.normalizer = normalizers.NFKC()
        else:
            changed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        assert rules_of(changed) is None
        texts = nasty_texts(0, 300)
        assert_same(
            encoder_of(changed).encode(texts), encoder_of(changed, "rust").encode(texts), texts
        )


def test_truncation_and_padding_of_a_file_do_not_touch_the_ids() -> None:
    tokenizer = Tokenizer.from_str(trained("wordpiece").to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    texts = pa.array(SENTENCES, pa.string())
    plain = encoder_of(trained("wordpiece")).encode(texts)
    for backend in ("memo", "rust"):
        assert_same(encoder_of(tokenizer, backend).encode(texts), plain, texts)
    assert tokenizer.truncation is not None


def test_ids_are_as_small_as_the_vocabulary_allows() -> None:
    small = encoder_of(trained("wordpiece")).encode(pa.array(["play"]))
    assert small.ids.dtype == np.uint16
    pieces = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 65_537)}}
    wide = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    wide.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for backend in ("memo", "rust"):
        found = encoder_of(wide, backend).encode(pa.array(["w65536 w1"]))
        assert found.ids.dtype == np.uint32
        assert found.ids.tolist() == [65_536, 1]


def test_a_process_keeps_its_encoders_by_what_the_file_says(tmp_path: Path) -> None:
    folders = [Folder.at(tmp_path / name) for name in ("a", "copy of a", "b")]
    for folder, name in zip(folders, ("wordpiece", "wordpiece", "byte_bpe"), strict=True):
        folder.write_bytes("tokenizer.json", trained(name).to_str().encode())
    a, copy, b = (cached_encoder(folder) for folder in folders)
    assert a is copy
    assert a is not b
    assert cached_encoder(folders[0], "rust") is not a
    for number in range(8):
        other = Tokenizer.from_str(trained("wordpiece").to_str())
        other.add_special_tokens([f"[{number}]"])
        folders[2].write_bytes("tokenizer.json", other.to_str().encode())
        cached_encoder(folders[2])
    assert cached_encoder(folders[0]) is not a, "old encoders are dropped"


def test_gigatoken_gives_the_same_ids(real_data: Path) -> None:
    pytest.importorskip("gigatoken")
    for tokenizer in (imported(real_data, "gpt2"), trained("byte_bpe cased")):
        giga, rust = encoder_of(tokenizer, "gigatoken"), encoder_of(tokenizer, "rust")
        texts = nasty_texts(0, 20)
        assert_same(giga.encode(texts, True), rust.encode(texts, True), texts)
        some = texts.slice(3, 5)
        assert_same(giga.encode(some), rust.encode(some), some)
        for seed in SEEDS:
            texts = nasty_texts(seed, TEXTS_A_SEED)
            assert_same(giga.encode(texts), rust.encode(texts), texts)


def test_gigatoken_is_refused_where_it_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("gigatoken"):
        for name in ("wordpiece", "byte_bpe", "unigram"):
            with pytest.raises(ConfigError, match="choose 'memo'"):
                encoder_of(trained(name), "gigatoken")
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    with pytest.raises(UserError, match=r"pip install 'rungwise\[fast\]'"):
        encoder_of(trained("byte_bpe cased"), "gigatoken")
