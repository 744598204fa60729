"""Text from outside the corpus is read with the clean-up of the corpus, whoever reads it."""

import json
import re
import sys
import unicodedata
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from tokenizers import Tokenizer

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.corpus.cleaning.text import clean
from rungwise.evaluation.suites.base import Rung
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Kind, Tagged, TaskInfo, Text
from rungwise.tasks.kinds.items import Frame, locate
from rungwise.tokenizer import (
    CLEAN_UP,
    FILE,
    TokenizerFileConfig,
    ids_after_blank,
    load_reader,
    read_tokenizer,
)
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TrainedConfig,
    WordConfig,
    WordPieceConfig,
)
from rungwise.tokenizer.files import remove_clean_up
from tests.unit.corpus.test_corpus_cleaning import ANY_TEXT, MESSY_TEXT

HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e"
TEXTS = [f"the café in 한국 and {HINDI} read a naïve text, again and again"] * 9
CONFIGS: list[TrainedConfig] = [
    WordPieceConfig(vocab_size=90, lowercase=False),
    ByteBpeConfig(vocab_size=300),
    CharacterConfig(vocab_size=60),
    WordConfig(vocab_size=30),
]


def readers(folder: Path, config: TrainedConfig) -> tuple[Tokenizer, Tokenizer]:
    """A trained tokenizer as it is, and as text from outside the corpus is read."""
    raw = train(config, TEXTS)
    (folder / FILE).write_text(raw.to_str())
    return raw, load_reader(Folder.at(folder))


def on_one_line(text: str) -> str:
    """The clean-up of the corpus, with blanks for line breaks, as between two sentences."""
    return re.sub(r"[ \n]*\n[ \n]*", " ", clean(text).text)


def test_one_character_is_cleaned_up_as_in_the_corpus() -> None:
    # Beyond them stand Han characters, private ones and none, which nothing changes.
    planes = range(0xD800), range(0xE000, 0x20000), range(0x2F800, 0x2FA20), range(0xE0000, 0xE0200)
    every = [*map(chr, chain(*planes, range(0x20000, sys.maxunicode + 1, 997)))]
    texts = ["x".join(every[first : first + 500]) for first in range(0, len(every), 500)]
    assert [t for t in texts if CLEAN_UP.normalize_str(t) != on_one_line(t)] == []


@given(ANY_TEXT | MESSY_TEXT)
def test_any_text_is_cleaned_up_as_in_the_corpus(text: str) -> None:
    text = re.sub("[\ud800-\udfff]", "", text)
    assert CLEAN_UP.normalize_str(text) == on_one_line(text)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_reader_gives_the_tokens_of_the_corpus(tmp_path: Path, config: TrainedConfig) -> None:
    raw, reader = readers(tmp_path, config)
    expected = raw.encode(TEXTS[0], add_special_tokens=False).ids
    messy = unicodedata.normalize("NFD", TEXTS[0]).replace(" a ", " \u00a0\r\n a\u00ad\u200b  ")
    for text in (TEXTS[0], messy, f"\ufeff {messy}\n"):
        assert reader.encode(text, add_special_tokens=False).ids == expected
    behind = [raw.encode(f"again {word}", add_special_tokens=False) for word in TEXTS[0].split()]
    again = len(raw.encode("again", add_special_tokens=False).ids)
    assert ids_after_blank(reader, TEXTS[0].split()) == [each.ids[again:] for each in behind]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_an_exported_tokenizer_loses_its_clean_up(tmp_path: Path, config: TrainedConfig) -> None:
    """It is then the one that was trained, which the fast encoders know, and a corpus is clean."""
    raw, reader = readers(tmp_path, config)
    (tmp_path / FILE).write_text(reader.to_str())
    read = remove_clean_up(read_tokenizer(TokenizerFileConfig(path=str(tmp_path))))
    for tokenizer in (read, remove_clean_up(read)):
        assert (
            json.loads(tokenizer.to_str())["normalizer"] == json.loads(raw.to_str())["normalizer"]
        )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_place_is_one_in_the_raw_text(tmp_path: Path, config: TrainedConfig, form: str) -> None:
    text = unicodedata.normalize(form, f"  {TEXTS[0]}")  # pyright: ignore[reportArgumentType]
    _, reader = readers(tmp_path, config)
    [located] = locate(reader, [text])
    for word in ("café", "한국", "naïve", "again"):
        word = unicodedata.normalize(form, word)  # pyright: ignore[reportArgumentType]
        start = text.index(word)
        tokens = located.covering(start, start + len(word))
        assert tokens is not None
        assert text[located.starts[tokens[0]] : located.ends[tokens[1]]] == word


@pytest.mark.parametrize("kind", ["classification", "tagging", "generation"])
def test_labelled_text_and_suites_read_either_form_alike(tmp_path: Path, kind: Kind) -> None:
    """Tokens of a task in NFC and NFD are those of a corpus in NFC."""
    _, reader = readers(tmp_path, CONFIGS[0])
    info = TaskInfo(kind, ("x",), False, "accuracy")
    frame = Frame(2, 3, 3, sequence_length=200)
    composed, decomposed = (
        [
            Tagged("1", tuple(text.split()), ("x",) * len(text.split()))
            if kind == "tagging"
            else Text("1", text, target="x")
        ]
        for form in ("NFC", "NFD")
        for text in [unicodedata.normalize(form, TEXTS[0])]  # pyright: ignore[reportArgumentType]
    )
    first, second = (task_kind(info).encode(e, reader, frame) for e in (composed, decomposed))
    assert [item.rows for item in first] == [item.rows for item in second]
    tokenizer = Artifact("tokenizer", "f" * 12, Folder.at(tmp_path), {})
    rung = Rung(tokenizer, tokenizer, tokenizer, tokenizer, SilentReporter())
    assert [rung.encode(each[0].parts) for each in (composed, decomposed)] == [
        [each.ids for each in reader.encode_batch(composed[0].parts, add_special_tokens=False)]
    ] * 2
    restored = Tokenizer.from_str(reader.to_str())
    assert restored.encode(decomposed[0].parts[0]).ids == reader.encode(composed[0].parts[0]).ids
