"""Clean-up, quality rules and boilerplate: by hand, and what holds of any text."""

import gzip
import unicodedata
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.storage.source_files import find_files
from rungwise.corpus.building.range_builder import RangeBuilder, read_range
from rungwise.corpus.cleaning.text import DOCUMENT, PARAGRAPH, Cleaned, clean, clean_all, find_fault
from rungwise.corpus.config import CorpusConfig, DocumentRules, list_ranges
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers.documents import gutenberg_text, split_paragraphs

ANY_TEXT = st.text(alphabet=st.characters())
_MESSY = (
    "aé \t\r\n\x00\x1b\x7f\x85\x9f\u00a0\u00ad\u0301\u0338\u200b\u200c\u200d\u2028\u202e\u2060"
    "\u3000\ufeff\ufffd\u212a\ud800中می"
)
MESSY_TEXT = st.lists(st.sampled_from([*_MESSY, "<br", "<BR", "/>", ">"])).map("".join)


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("plain text stays", "plain text stays"),
        ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
        ("nai\u0308ve", "naïve"),
        ("\ufeffsoft\u00adhyphen zero\u200bwidth", "softhyphen zerowidth"),
        ("no\u00a0break\u3000wide \t tab", "no break wide tab"),
        ("  indented \n\t lines \n", "indented\nlines"),
        ("a film. <br /><br />Its end<BR>is<br/>é", "a film.\n\nIts end\nis\né"),
        ("a <br\nb> <b> < br> <brown>", "a <br\nb> <b> < br> <brown>"),
        ("\u202eright to left\u202c", "right to left"),
        # Persian spells with the non-joiner; between ASCII letters it is noise.
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("a\u200cb", "ab"),
        # Taking the joiner out brings letter and accent together.
        ("e\u200d\u0301", "é"),
    ],
)
def test_cases(dirty: str, expected: str) -> None:
    assert clean(dirty) == Cleaned(expected, removed=0, replaced=0)


def test_what_cannot_be_read_is_counted() -> None:
    assert clean("a\x00b\x1b\ud800c\x90") == Cleaned("abc", removed=4, replaced=0)
    assert clean("lost \ufffd\ufffd here") == Cleaned(
        "lost \ufffd\ufffd here", removed=0, replaced=2
    )


@given(ANY_TEXT | MESSY_TEXT)
def test_clean_text_is_clean(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned.text) == (cleaned.text, 0, cleaned.replaced)
    assert unicodedata.is_normalized("NFC", cleaned.text)
    assert "  " not in cleaned.text
    assert cleaned.text == cleaned.text.strip()
    cleaned.text.encode("utf-8")
    controls = [c for c in cleaned.text if unicodedata.category(c) == "Cc"]
    assert set(controls) <= {"\n"}


@given(st.lists(st.lists(MESSY_TEXT, min_size=1, max_size=3), max_size=4))
def test_many_at_once_are_cleaned_as_each_alone(documents: list[list[str]]) -> None:
    # A line break made of two characters with one between them that goes is two line breaks here.
    documents = [[text.replace("\r", "") for text in texts] for texts in documents]
    cleaned = clean_all(documents)
    alone = [[clean(text) for text in several] for several in documents]
    texts = [one.split(PARAGRAPH) for one in cleaned.text.split(DOCUMENT)] if documents else []
    assert [[text.strip("\n") for text in several] for several in texts] == [
        [one.text for one in several] for several in alone
    ]
    assert cleaned.removed == sum(one.removed for several in alone for one in several)
    assert cleaned.replaced == sum(one.replaced for several in alone for one in several)


ENGLISH = ["The committee met on Monday.", "It decided, after some hours, to wait for the report."]
CHINESE = [
    "\u59d4\u5458\u4f1a\u5728\u661f\u671f\u4e00\u5f00\u4f1a\uff0c\u51b3\u5b9a\u7b49\u5f85\u62a5\u544a\u3002"
    * 30
]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (ENGLISH, ""),
        (CHINESE, ""),
        # In Hindi every other letter bears a mark.
        (["\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0939\u0948\u0964"], ""),
        (["| -- | ++ | == |", "a b c"], "quality: few letters"),
        (["Shr 34 cts vs 29 cts", "Net 807,000 vs 2,858,000"], "quality: few letters"),
        (
            ["In 1987 some 12 of 34 and in 1988 only 56 of all 78 came in again."],
            "quality: many digits",
        ),
        (["Caf\ufffd au lait is served."], "quality: many lost characters"),
        ([*ENGLISH, "x" * 501], "quality: long run without a blank"),
        ([*ENGLISH, "你" * 2000], ""),  # Han needs no blanks
        ([*ENGLISH, *ENGLISH], "quality: repeated sentences"),
        (["Yes, so it is.", *ENGLISH, "Yes, so it is."], "quality: one sentence again and again"),
    ],
)
def test_each_rule_names_what_it_is_for(sentences: list[str], expected: str) -> None:
    assert find_fault(sentences) == expected


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ({"paths": ["en/brown/brown.txt.gz"], "documents": "blank_line", "lines": "sentence"}, 0),
        ({"paths": ["en/gutenberg"], "encoding": "detect"}, 0),
        ({"kind": "wikitext", "paths": ["en/wikitext-2-raw"]}, 0),
        ({"paths": ["zh/classics"], "lines": "paragraph"}, 0),
        # Measured: 0.86 %, chemical formulas and lists of results.
        ({"paths": ["zh/csl_abstracts"], "documents": "line"}, 0.015),
    ],
    ids=["brown", "gutenberg", "wikitext", "classics", "abstracts"],
)
def test_real_prose_passes(real_data: Path, source: dict[str, Any], most: float) -> None:
    paths = [str(real_data / "corpora" / path) for path in source["paths"]]
    block = {"kind": "text"} | source | {"paths": paths}
    config = validate(CorpusConfig, {"sources": [block], "quality": True})
    documents = chain.from_iterable(read_range(each, config) for each in list_ranges(config))
    builder = RangeBuilder(config, "x")
    kept = sum(table.num_rows for table in builder.tables(islice(documents, 0, None, 4)))
    reasons = builder.report.dropped.items()
    dropped = sum(count for reason, count in reasons if reason.startswith("quality"))
    assert kept
    assert dropped <= most * (kept + dropped)


def sentences_of(text: str) -> list[str]:
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    draft = RawDocument("a", "b", split_paragraphs(plain, "paragraph"))
    tables = RangeBuilder(DocumentRules(minimum_characters=1), "x").tables([draft])
    return [sentence for table in tables for sentence in table["sentences"][0].as_py()]


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
