"""Where units begin: cases by hand for each kind of tokenizer, and what must hold of any text."""

import itertools
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from rungwise.tokenizer.encoder import make_encoder
from rungwise.tokenizer.mask_units import MaskUnitsConfig, encode_units, jieba_words

PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "play", "##ing", "##ed", "straw", "##berries", "new", "york", "times", "in", "a"),
    *("pro", "##ba", "##bility", "cafe", "##s", ".", ",", "t", "ok", "1", "##2", "abc"),
    *"使用语言模型来预测下一个词的概率中国人民大会堂恤月我",
]
# The sentence of Cui et al. 2021 (arXiv:1906.08101), table 1, and its words.
SENTENCE = "使用语言模型来预测下一个词的probability。"
WORDS = ["使用", "语言", "模型", "来", "预测", "下", "一个", "词", "的", "probability", "。"]


def wordpiece() -> Tokenizer:
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(PIECES))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(PIECES[:5])
    return tokenizer


def byte_bpe(merged: list[str]) -> Tokenizer:
    """Bytes, and merges that build each of these texts from the left."""
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {letter: index for index, letter in enumerate(sorted(by_byte.alphabet()))}
    merges = []
    for text in merged:
        [(mapped, _)] = by_byte.pre_tokenize_str(text)
        for left, right in zip(itertools.accumulate(mapped), mapped[1:], strict=False):
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def unigram() -> Tokenizer:
    pieces = ["<unk>", "▁", "▁the", "▁play", "ing", "▁new", "▁york", "s", "中", "国", "人"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(n)) for n, piece in enumerate(pieces)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def units(text: str, tokenizer: Tokenizer, **config: Any) -> list[str]:
    """The tokens of `text`, joined by + inside units."""
    masks = MaskUnitsConfig(**config)
    found = encode_units(pa.array([text]), make_encoder(tokenizer), tokenizer, masks)
    assert found.word_starts is not None
    assert found.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    joined: list[str] = []
    for index, start in zip(found.ids.tolist(), found.word_starts.tolist(), strict=True):
        token = str(tokenizer.id_to_token(index))
        if start:
            joined.append(token)
        else:
            joined[-1] += f"+{token}"
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Playing the strawberries, played.",
            ["play+##ing", "the", "straw+##berries", ",", "play+##ed", "."],
        ),
        ("in New York Times playing", ["in", "new", "york", "times", "play+##ing"]),
        ("中国人", ["中", "国", "人"]),  # without a segmenter
    ],
)
def test_units_of_wordpiece(text: str, expected: list[str]) -> None:
    assert units(text, wordpiece()) == expected


def test_places_are_those_of_the_text_as_it_came_not_as_it_is_normalised() -> None:
    """E with an accent is two characters in NFD and one in NFC; WordPiece sees a plain e."""
    pytest.importorskip("jieba")
    for accent in ("é", "e\u0301"):
        text = f"CAF{accent.upper()}s \U0001f600 中国人"
        plain = [*units(text[:-4], wordpiece()), *units("中国人", wordpiece(), segmenter="jieba")]
        assert plain[:2] == ["cafe+##s", "[UNK]"]
        assert units(text, wordpiece(), segmenter="jieba") == plain


def test_the_chinese_example_of_the_whole_word_masking_paper() -> None:
    pytest.importorskip("jieba")
    expected = ["pro+##ba+##bility" if word == "probability" else "+".join(word) for word in WORDS]
    expected[-1] = "[UNK]"  # the full stop is not in the vocabulary
    assert units(SENTENCE, wordpiece(), segmenter="jieba") == expected


ALPHABET = "ab é\u0301中国人民我T恤1,. \U0001f600\u3000使用"
TEXTS = st.lists(st.text(ALPHABET, max_size=25), min_size=1, max_size=6)
TOKENIZERS = {
    "wordpiece": wordpiece(),
    "byte_bpe": byte_bpe(["ab", "中国", "用我", " a"]),
    "unigram": unigram(),
}


@pytest.mark.skipif(find_spec("jieba") is None, reason="needs jieba")
@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=TEXTS, segmented=st.booleans())
@settings(max_examples=60)
def test_ids_are_the_tokenizers_and_units_are_what_a_walk_over_tokens_finds(
    name: str, texts: list[str], segmented: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    config = MaskUnitsConfig(segmenter="jieba" if segmented else "none")
    found = encode_units(pa.array(texts), make_encoder(tokenizer), tokenizer, config)
    assert found.word_starts is not None
    end = 0
    for text, length in zip(texts, found.lengths.tolist(), strict=True):
        begin, end = end, end + length
        plain = tokenizer.encode(text, add_special_tokens=False)
        assert found.ids[begin:end].tolist() == plain.ids
        starts = found.word_starts[begin:end].tolist()
        assert starts[:1] == [True][: len(starts)]
        han = list(jieba_words()(text)) if segmented else []
        in_han = {place for a, b in han for place in range(a, b)}
        for index in range(1, length):
            (_, last_end), (here, _) = plain.offsets[index - 1], plain.offsets[index]
            words = plain.word_ids
            same_word = words[index] == words[index - 1]
            by_tokenizer = same_word and here not in in_han and last_end - 1 not in in_han
            joined = here < last_end or by_tokenizer or any(a < here < b for a, b in han)
            assert starts[index] == (not joined)


def test_jieba_agrees_with_the_gold_words_of_the_bakeoff(real_data: Path, tmp_path: Path) -> None:
    """F1 of words with a han character is 0.816 on PKU and 0.820 on MSR, a third of each read."""
    jieba = pytest.importorskip("jieba")
    guessing = jieba.Tokenizer()
    guessing.tmp_dir = str(tmp_path)
    words = jieba_words()
    for name in ("pku", "msr"):
        path = real_data / "corpora" / "zh" / "icwb2_segmented" / f"{name}_test_gold.utf8"
        whole = path.read_text(encoding="utf-8").splitlines()
        assert len(whole) > 1900
        lines = [line.split() for line in whole[::3]]

        def f1(segmenter: Callable[[str], Iterable[tuple[int, int]]], lines: Any = lines) -> float:
            hits = either = 0
            for gold in lines:
                expected = _with_han("".join(gold), gold)
                found = set(segmenter("".join(gold)))
                hits += len(expected & found)
                either += len(expected) + len(found)
            return 2 * hits / either

        ours = f1(words)
        assert ours > 0.81
        assert ours > f1(lambda text: _with_han(text, guessing.cut(text, HMM=True)))


def _with_han(text: str, words: Iterable[str]) -> set[tuple[int, int]]:
    places = itertools.pairwise(itertools.accumulate(map(len, words), initial=0))
    return {(a, b) for a, b in places if any("一" <= c <= "鿿" for c in text[a:b])}
