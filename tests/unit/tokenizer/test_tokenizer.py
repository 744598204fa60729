"""Tokenizers trained here: one vocabulary in any process, special tokens, the stage."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_TOKENS, UNK_ID
from rungwise.tokenizer import TokenizerSummary, load_tokenizer
from rungwise.tokenizer.building import train, train_tokenizer
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TrainedConfig,
    WordConfig,
    WordPieceConfig,
)
from tests.commands import execute
from tests.corpora import corpus_of_sentences

TEXT = [
    "He was playing while they play; players played, and the player plays.",
    "Strawberries and blueberries are berries.",
    "私は Tokyo に住む naïve café",
] * 5


KINDS: dict[str, type[TrainedConfig]] = {
    "wordpiece": WordPieceConfig,
    "byte_bpe": ByteBpeConfig,
    "character": CharacterConfig,
    "word": WordConfig,
}
SIZES = {"wordpiece": 100, "byte_bpe": 280, "character": 100, "word": 100}


def config(kind: str, **changes: object) -> TrainedConfig:
    values = {"vocab_size": 120, "min_frequency": 1, **changes}
    return KINDS[kind](**values)  # type: ignore[arg-type]


def stage_on(
    text: list[str], config: TrainedConfig, folder: Path
) -> tuple[TokenizerSummary, Tokenizer]:
    """What the stage gives for a corpus of `text`: its summary, and the tokenizer it stored."""
    output = Folder.at(folder / "t")
    inputs = {"corpus": corpus_of_sentences(folder / "c", text)}
    return train_tokenizer(config, inputs, output, Context()), load_tokenizer(output)


# Trains the kinds in sys.argv on a text, and prints digests of what they give.
TRAIN = """
import hashlib, json, sys
from rungwise.tokenizer import building, config
configs, text = json.loads(sys.argv[1])
for name, keys in configs.items():
    trained = building.train(getattr(config, name)(**keys), text).to_str()
    print(hashlib.sha256(trained.encode()).hexdigest())
"""


def test_every_process_learns_the_same_vocabulary() -> None:
    """The library's own training does not: its hash maps are seeded anew in every process."""
    configs = [config(kind, vocab_size=SIZES[kind]) for kind in KINDS]
    named = {type(each).__name__: each.model_dump(mode="json") for each in configs}
    expected = [hashlib.sha256(train(each, TEXT).to_str().encode()) for each in configs]
    for _ in range(2):
        done = execute([sys.executable, "-c", TRAIN, json.dumps([named, TEXT])])
        assert done.stdout.split() == [each.hexdigest() for each in expected]


def test_text_that_looks_like_a_special_token_is_text(tmp_path: Path) -> None:
    text = [*TEXT, "The [MASK] token and [SEP] and [CLS] too."]
    _, tokenizer = stage_on(text, config("wordpiece", vocab_size=100), tmp_path)
    ids = tokenizer.encode("a [MASK] b [SEP] [CLS] [PAD]", add_special_tokens=False).ids
    assert not {PAD_ID, CLS_ID, SEP_ID, MASK_ID} & set(ids)


@pytest.mark.parametrize("kind", ["character", "word"])
def test_a_tokenizer_of_every_kind_gives_its_text_back(kind: str) -> None:
    tokenizer = train(config(kind, vocab_size=100, lowercase=False), TEXT)
    tokenizer.encode_special_tokens = True
    for text in TEXT[:3]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert UNK_ID not in encoding.ids
        back = tokenizer.decode(encoding.ids)
        if kind == "word":
            assert back.replace(" ", "") == text.replace(" ", "")
        else:
            assert back == text


def test_a_character_vocabulary_counts_blanks_and_composed_letters() -> None:
    text = ["e\u0301 é a", "a b"]  # the same letter, decomposed and composed
    tokenizer = train(config("character"), text)
    assert tokenizer.id_to_token(len(SPECIAL_TOKENS)) == " "  # three, the most frequent
    assert set(tokenizer.get_vocab()) == {*SPECIAL_TOKENS, " ", "é", "a", "b"}
    assert tokenizer.encode("  é", add_special_tokens=False).tokens == [" ", " ", "é"]


def test_a_word_vocabulary_has_the_frequent_words_and_knows_not_the_rest() -> None:
    text = ["the cat, the dog", "The cat: a dog!", "the ant"]
    tokenizer = train(config("word", min_frequency=2, vocab_size=16), text)
    assert set(tokenizer.get_vocab()) == {*SPECIAL_TOKENS, "the", "cat", "dog"}
    assert tokenizer.token_to_id("the") == 5
    assert tokenizer.token_to_id("cat") == 6  # as frequent as dog: the alphabet decides
    assert tokenizer.encode("the bee", add_special_tokens=False).tokens == ["the", "[UNK]"]
    whole = train(config("word", split_punctuation=False, lowercase=False), text)
    assert {"cat,", "dog!", "The"} <= set(whole.get_vocab())
    smallest = train(config("word", vocab_size=16), ["a b c d e f g h i j k l m n"])
    assert smallest.get_vocab_size() == 16


@pytest.mark.parametrize("kind", ["character", "word"])
def test_the_stage_counts_the_words_of_its_sample(kind: str, tmp_path: Path) -> None:
    text = [*TEXT, "A sentence: that is, one more [MASK].", "with  two blanks"]
    for megabytes in (1.0, 200e-6):
        settings = config(kind, sample_megabytes=megabytes)
        summary, tokenizer = stage_on(text, settings, tmp_path / str(megabytes))
        sample: list[str] = []
        for sentence in text:
            if sum(map(len, sample)) < megabytes * 1e6:
                sample.append(sentence)
        assert tokenizer.get_vocab() == train(settings, sample).get_vocab()
        assert summary.sample_characters == sum(map(len, sample))
        assert summary.vocab_size == tokenizer.get_vocab_size()
        assert summary.kind == kind
        assert summary.special.ids == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("el año y el ano del niño", ["año", "ano"]),  # Spanish: year, anus
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u0926\u093f\u0928 \u0926\u0940\u0928",
            ["\u0926\u093f\u0928", "\u0926\u0940\u0928"],
        ),
        (
            "\u0e01\u0e34\u0e19 \u0e01\u0e31\u0e19 \u0e19\u0e49\u0e33",
            ["\u0e01\u0e34\u0e19", "\u0e01\u0e31\u0e19"],
        ),  # Thai
        ("ma má mà mả cũ", ["má", "mà"]),  # Vietnamese
        ("한국 한글 서울 사람", ["한국", "한글"]),  # Hangul syllables
        ("one café and a hundred words of English" + " more" * 120, []),
    ],
)
def test_accents_are_dropped_only_where_they_are_rare(
    words: str, kept: list[str], tmp_path: Path
) -> None:
    inputs = {"corpus": corpus_of_sentences(tmp_path / "c", [words] * 20)}

    def learn(kind: str, expected: bool | None, asked: bool | None) -> tuple[Tokenizer, list[str]]:
        """The tokenizer of a vocabulary that the text fills, and what the stage says."""
        notes: list[str] = []
        reporter = SilentReporter()
        reporter.note = notes.append  # pyright: ignore[reportAttributeAccessIssue]
        large = config(kind, vocab_size=999, lowercase=True, strip_accents=expected)
        size = train(large, [words] * 20).get_vocab_size()
        settings = large.model_copy(update={"vocab_size": size, "strip_accents": asked})
        output = Folder.at(tmp_path / f"{kind}-{asked}")
        train_tokenizer(settings, inputs, output, Context(report=reporter))
        return load_tokenizer(output), [note.partition(",")[0] for note in notes]

    tokenizer, notes = learn("wordpiece", not kept, None)
    assert [tokenizer.normalizer.normalize_str(word.upper()) for word in kept] == kept
    assert notes == ["accents and other marks are kept"] * bool(kept)
    assert tokenizer.normalizer.normalize_str("Café") == ("café" if kept else "cafe")
    assert learn("wordpiece", True, True)[1] == []
    assert learn("wordpiece", False, False)[1] == []
    assert learn("byte_bpe", None, None)[1] == []


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strip", [False, True])
def test_accents_are_a_key_of_their_own(kind: str, lowercase: bool, strip: bool) -> None:
    settings = config(kind, vocab_size=SIZES[kind], lowercase=lowercase, strip_accents=strip)
    tokenizer = train(settings, TEXT)
    normalizer = tokenizer.normalizer
    text = "Año" if normalizer is None else normalizer.normalize_str("Año")
    expected = "Ano" if strip else "Año"
    assert text == (expected.lower() if lowercase else expected)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("wordpiece", 16, "different characters that .*; raise it to more than"),
        ("wordpiece", 5000, "fill only"),
        ("byte_bpe", 5000, "fill only"),
    ],
)
def test_too_many_words_are_refused(kind: str, size: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"tokenizer\.vocab_size: .*{message}"):
        stage_on(TEXT, config(kind, vocab_size=size), tmp_path)
    assert Folder.at(tmp_path / "t").names() == []
