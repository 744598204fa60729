"""Encoders: the same ids as the library on every text, whatever the backend; bounded memory."""

# ruff: noqa: RUF001
import gzip
import itertools
import json
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from rungwise.tokenizer import Encoded, TokenizerFileConfig, choose_encoder, read_tokenizer
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TrainedConfig,
    WordConfig,
    WordPieceConfig,
)
from rungwise.tokenizer.encoder import (
    Backend,
    EncoderChoice,
    GigaEncoder,
    MemoEncoder,
    NanoEncoder,
    ReferenceEncoder,
    TextEncoder,
    find_rule,
    hard_texts,
    make_encoder,
    matching_package,
)
from tests import toy_tokenizers

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
    "character": CharacterConfig(vocab_size=80),
    "word": WordConfig(vocab_size=60, min_frequency=1),
    "word by blanks": WordConfig(
        vocab_size=60, min_frequency=1, split_punctuation=False, lowercase=False
    ),
}
IMPORTED = ("bert-base-uncased", "bert-base-cased", "bert-base-chinese", "gpt2")
KINDS = [*TRAINED, "unigram"]


@cache
def trained(name: str) -> Tokenizer:
    if name == "unigram":
        return toy_tokenizers.unigram(SENTENCES * 3, 180)
    return train(TRAINED[name], SENTENCES * 3)


@cache
def imported(folder: Path, name: str) -> Tokenizer:
    lowercase = name != "bert-base-cased"
    return read_tokenizer(
        TokenizerFileConfig(path=str(folder / "vocab" / name), lowercase=lowercase)
    )


def assert_same(encoded: Encoded, expected: Encoded) -> None:
    np.testing.assert_array_equal(encoded.lengths, expected.lengths)
    np.testing.assert_array_equal(encoded.ids, expected.ids, strict=True)
    np.testing.assert_array_equal(encoded.word_starts, expected.word_starts, strict=True)


def encoders_of(tokenizer: Tokenizer) -> list[TextEncoder]:
    """The library, the memo, and the package that serves `tokenizer`, if there is one."""
    package = matching_package(tokenizer)
    backends: list[Backend] = ["memo"] if package is None else ["memo", package]
    return [
        ReferenceEncoder(tokenizer),
        *(make_encoder(tokenizer, backend) for backend in backends),
    ]


@pytest.mark.parametrize("name", [*KINDS, *IMPORTED])
def test_encoders_agree_on_nasty_texts(name: str, request: pytest.FixtureRequest) -> None:
    if name in KINDS:
        tokenizer = trained(name)
    else:
        tokenizer = imported(request.getfixturevalue("real_data"), name)
    reference, *encoders = encoders_of(tokenizer)
    assert isinstance(encoders[0], MemoEncoder)
    texts = hard_texts(1, 700)
    expected = reference.encode(texts, words=True)
    for encoder in encoders:
        assert_same(encoder.encode(texts, words=True), expected)
        # The second time every piece was seen before.
        assert_same(encoder.encode(texts), replace(expected, word_starts=None))


@settings(max_examples=60)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20),
    name=st.sampled_from(KINDS),
)
def test_encoders_give_the_ids_of_the_library_on_any_text(texts: list[str], name: str) -> None:
    tokenizer = trained(name)
    array = pa.array(texts, pa.string())
    reference, *encoders = encoders_of(tokenizer)
    expected = reference.encode(array, words=True)
    for encoder in encoders:
        assert_same(encoder.encode(array, words=True), expected)
        assert_same(encoder.encode(array), replace(expected, word_starts=None))


@pytest.mark.parametrize("name", IMPORTED)
def test_every_encoder_gives_the_golden_ids(name: str, real_data: Path) -> None:
    """Ids of wikitext, CoLA, THUCNews and tricky lines, made by another version of the library."""
    path = real_data / "oracles" / "tokenization" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    assert len(lines) == 290
    tokenizer = imported(real_data, name)
    texts = pa.array([line["text"] for line in lines], pa.string())
    encoders = encoders_of(tokenizer)
    assert isinstance(encoders[2], GigaEncoder if name == "gpt2" else NanoEncoder)
    for encoder in encoders:
        encoded = encoder.encode(texts)
        assert encoded.lengths.tolist() == [len(line["ids"]) for line in lines]
        assert encoded.ids.tolist() == [index for line in lines for index in line["ids"]]


def test_the_examples_of_the_bert_authors_hold(real_data: Path, tmp_path: Path) -> None:
    facts = json.loads(
        (real_data / "oracles" / "tokenization" / "google_bert_facts.json").read_text()
    )
    full, path = facts["full_tokenizer"], tmp_path / "vocab.txt"

    def vocabulary(pieces: list[str], lowercase: bool = True) -> Tokenizer:
        path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
        return read_tokenizer(TokenizerFileConfig(path=str(path), lowercase=lowercase))

    tokenizer = vocabulary(full["vocab"])
    for encoder in encoders_of(tokenizer):
        assert encoder.encode(pa.array([full["text"]])).ids.tolist() == full["ids"]
        for case in facts["wordpiece"]["cases"]:
            ids = encoder.encode(pa.array([case["text"]])).ids.tolist()
            assert [tokenizer.id_to_token(index) for index in ids] == case["tokens"]
    # How the text falls into words shows with a vocabulary that has just these words.
    for case in facts["basic"]:
        basic = vocabulary(["[UNK]", *dict.fromkeys(case["tokens"])], case["lower"])
        for encoder in encoders_of(basic):
            encoded = encoder.encode(pa.array([case["text"]]), words=True)
            assert [basic.id_to_token(index) for index in encoded.ids.tolist()] == case["tokens"]
            assert encoded.word_starts is not None
            assert encoded.word_starts.all()


def test_a_full_memo_is_emptied_and_the_ids_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rungwise.tokenizer.encoder._MOST_CHARACTERS", 400)
    tokenizer = trained("byte_bpe")
    encoder, reference = make_encoder(tokenizer), ReferenceEncoder(tokenizer)
    assert isinstance(encoder, MemoEncoder)
    sizes = []
    for seed in range(20):
        texts = hard_texts(seed, 2)
        assert_same(encoder.encode(texts, True), reference.encode(texts, True))
        sizes.append(encoder.characters)
    assert any(after < before for before, after in itertools.pairwise(sizes))


@pytest.mark.parametrize("number", range(3))
def test_a_slice_of_an_array_and_no_text_at_all(number: int) -> None:
    encoder = encoders_of(trained("wordpiece"))[number]
    texts = pa.array([*SENTENCES, "", SENTENCES[0]], pa.string())
    middle = encoder.encode(texts.slice(1, 4))
    alone = encoder.encode(pa.array([*SENTENCES[1:], ""], pa.string()))
    assert_same(middle, alone)
    assert middle.lengths[-1] == 0
    for none in (pa.array([], pa.string()), pa.array(["", ""], pa.string())):
        encoded = encoder.encode(none, words=True)
        assert len(encoded.ids) == 0
        assert encoded.lengths.tolist() == [0] * len(none)
        assert encoded.word_starts is not None


def test_tokenizers_that_nobody_thought_through_are_not_cut() -> None:
    unknown = Tokenizer(models.WordLevel({"[UNK]": 0, "a b": 1}, unk_token="[UNK]"))
    assert find_rule(unknown) is None
    assert isinstance(make_encoder(unknown), ReferenceEncoder)
    sampled = Tokenizer.from_str(trained("byte_bpe").to_str())
    sampled.model.dropout = 0.5  # type: ignore[attr-defined]
    assert find_rule(sampled) is None
    with_names = train(TRAINED["word"], SENTENCES)
    with_names.add_tokens([AddedToken("players played")])
    texts = pa.array([SENTENCES[0].lower()], pa.string())
    encoder = make_encoder(with_names)
    assert with_names.token_to_id("players played") in encoder.encode(texts).ids
    for change in ("normalizer", "prefix"):
        changed = train(TRAINED["byte_bpe"], SENTENCES)
        if change == "normalizer":
            # U+00B4 becomes a blank and an accent under NFKC: another blank may stand before it.
            changed.normalizer = normalizers.NFKC()
        else:
            changed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        assert find_rule(changed) is None
        texts = hard_texts(0, 300)
        assert_same(make_encoder(changed).encode(texts), ReferenceEncoder(changed).encode(texts))


def test_ids_are_as_small_as_the_vocabulary_allows() -> None:
    small = make_encoder(trained("wordpiece")).encode(pa.array(["play"]))
    assert small.ids.dtype == np.uint16
    pieces = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 65_537)}}
    wide = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    wide.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for encoder in encoders_of(wide):
        encoded = encoder.encode(pa.array(["w65536 w1"]))
        assert encoded.ids.dtype == np.uint32
        assert encoded.ids.tolist() == [65_536, 1]


@pytest.mark.parametrize("name", TRAINED)
def test_auto_is_the_package_made_for_the_tokenizer_or_else_the_memo(name: str) -> None:
    tokenizer, texts = trained(name), hard_texts(1, 50)
    choice = choose_encoder(tokenizer, texts)
    packages = {
        "wordpiece": "nanotoken",
        "wordpiece cased": "nanotoken",
        "byte_bpe cased": "gigatoken",
    }
    assert choice.backend == packages.get(name, "memo")
    assert choice.notice is None


@pytest.mark.parametrize(
    ("name", "package"), [("wordpiece", "nanotoken"), ("byte_bpe cased", "gigatoken")]
)
def test_the_memo_encodes_instead(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert choose_encoder(trained(name), hard_texts(1, 9)) == EncoderChoice(
        notice=f"encoding with 'memo': {package}, which is several times faster, is not installed"
    )


class _Errs:
    """An encoder that is wrong about the text `bad`, in the way that is asked."""

    def __init__(self, tokenizer: Tokenizer, bad: str, way: str) -> None:
        self._reference = ReferenceEncoder(tokenizer)
        self._bad, self._way = bad, way

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        encoded = self._reference.encode(texts, words)
        if self._bad not in (known := texts.to_pylist()):
            return encoded
        text = known.index(self._bad)
        last = int(encoded.lengths[: text + 1].sum()) - 1
        if self._way == "id":
            encoded.ids[last] ^= 1
        elif self._way == "word" and encoded.word_starts is not None:
            encoded.word_starts[last] ^= True
        elif self._way == "length":
            encoded.lengths[text] -= 1
            return replace(encoded, ids=np.delete(encoded.ids, last))
        return encoded


@pytest.mark.parametrize("way", ["id", "word", "length"])
def test_an_encoder_that_errs_once_is_not_used(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained("wordpiece")
    sample = pa.array([*SENTENCES, "", "a strange berry", *SENTENCES], pa.string())
    monkeypatch.setattr(
        "rungwise.tokenizer.encoder.NanoEncoder",
        lambda tokenizer: _Errs(tokenizer, "a strange berry", way),
    )
    choice = choose_encoder(tokenizer, sample, with_hard_texts=False)
    assert choice == EncoderChoice(
        notice=f"encoding with 'memo': nanotoken {version('nanotoken')} and the tokenizers library "
        "disagree on the text 'a strange berry'"
    )
    # The sample is bounded: a text behind it is not tried.
    monkeypatch.setattr("rungwise.tokenizer.encoder.PROOF_BYTES", 100)
    assert choose_encoder(tokenizer, sample, with_hard_texts=False).backend == "nanotoken"
