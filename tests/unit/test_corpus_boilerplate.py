"""Books of Project Gutenberg without what stands around them."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import find_files
from rungwise.corpus.building.in_memory import write_corpus
from rungwise.corpus.building.ranges import list_ranges, read_range
from rungwise.corpus.config import CorpusConfig, Rules
from rungwise.corpus.readers.text import gutenberg_text

TODAY = (
    "The Project Gutenberg eBook of Emma\n\nThis eBook is for anyone.\n\n"
    "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***\n",
    "*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***\n\nSection 1.\n*** START: FULL LICENSE ***\n",
)
LONG_TITLE = (
    "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA, A NOVEL\nOF MANY WORDS ***\n\n\n"
    "Produced by A. B. and\nthe C team\n",
    "End of the Project Gutenberg EBook of Emma\n\n*** END OF THIS PROJECT GUTENBERG EBOOK ***\n",
)
SMALL_PRINT = (
    "****The Project Gutenberg Etext of Emma****\n\n"
    "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nLawyers.\n"
    "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
    "End of The Project Gutenberg Etext of Emma\n",
)
BOOK = "\n\nEmma Woodhouse, handsome,\nclever, and rich.\n\nThe end of Project X.\n\n"


@pytest.mark.parametrize("around", [TODAY, LONG_TITLE, SMALL_PRINT, ("", ""), (TODAY[0], "")])
def test_the_book_is_left(around: tuple[str, str]) -> None:
    assert gutenberg_text(around[0] + BOOK + around[1]).strip() == BOOK.strip()


@given(st.text(st.sampled_from("aE *\n.")))
def test_any_book_is_left(book: str) -> None:
    for header, footer in (TODAY, SMALL_PRINT):
        assert gutenberg_text(f"{header}{book}\n{footer}") == f"\n{book}\n"


def test_what_is_cut_is_counted(tmp_path: Path) -> None:
    (tmp_path / "emma.txt").write_text(BOOK.join(TODAY))
    (tmp_path / "plain.txt").write_text(BOOK + "Another one.")
    source = {"kind": "text", "paths": [str(tmp_path)], "boilerplate": "gutenberg"}
    config = validate(CorpusConfig, {"sources": [source]})
    (only,) = list_ranges(config)
    documents = read_range(only, config)
    summary = write_corpus([documents], Rules(minimum_characters=1), "x", Folder.at(tmp_path / "o"))
    (cut,) = summary.cut
    # All but the line break at the end of the file.
    around = len("".join(TODAY)) - 2
    assert (cut.source, cut.reason, cut.characters) == ("x", "boilerplate", around)
    assert summary.headline.endswith(f"cut {around:,} characters")


@pytest.mark.parametrize("around", [TODAY, LONG_TITLE, SMALL_PRINT, ("", ""), (TODAY[0], "")])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("kilobytes", [0.05, 1])
def test_chunks_are_of_the_book_alone(
    tmp_path: Path, around: tuple[str, str], line_break: str, kilobytes: float
) -> None:
    content = BOOK.join(around).replace("\n", line_break)
    (tmp_path / "emma.txt").write_bytes(content.encode())
    source = {"kind": "text", "paths": [str(tmp_path)], "boilerplate": "gutenberg"}
    source |= {"documents": "chunk", "chunk_kilobytes": kilobytes}
    keys = {"sources": [source], "shard_megabytes": 0.0001}
    (only,) = list_ranges(validate(CorpusConfig, keys))
    documents = list(read_range(only, validate(CorpusConfig, keys)))
    paragraphs = [paragraph for one in documents for paragraph in one.paragraphs]
    assert paragraphs == [block.replace("\n", " ") for block in BOOK.strip().split("\n\n")]
    left = sum(map(len, map(str.strip, around)))
    assert left <= sum(one.boilerplate for one in documents) <= left + 4


def test_books_as_they_are(real_data: Path) -> None:
    for file in find_files(str(real_data / "corpora" / "en" / "gutenberg")):
        text = gzip.decompress(Path(file.uri).read_bytes()).decode("utf-8", "replace")
        text = text.replace("\r\n", "\n")
        book = gutenberg_text(text)
        assert 0.9 * len(text) - 20_000 < len(book) <= len(text)
        assert "small print!" not in book.lower()
        assert "*** end of" not in book.lower()
        # Some were shortened before.
        assert "Project Gutenberg" not in text or len(book) < len(text)
