"""Quality rules: prose of two scripts passes, each kind of what is no prose is named."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.config import validate
from rungwise.corpus import CorpusConfig
from rungwise.corpus.building.range_builder import RangeBuilder
from rungwise.corpus.building.ranges import list_ranges, read_range
from rungwise.corpus.cleaning.quality import QualityConfig, find_fault

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
        ([*ENGLISH, "\u4f60" * 2000], ""),  # Han needs no blanks
        ([*ENGLISH, *ENGLISH], "quality: repeated sentences"),
        (["Yes, so it is.", *ENGLISH, "Yes, so it is."], "quality: one sentence again and again"),
    ],
)
def test_each_rule_names_what_it_is_for(sentences: list[str], expected: str) -> None:
    assert find_fault(sentences, QualityConfig()) == expected


@pytest.mark.parametrize(
    ("field", "at_limit", "beyond"),
    [
        ("minimum_letter_share", ["abc..."], ["ab..."]),
        ("maximum_digit_share", ["abc123"], ["abc1234"]),
        ("maximum_lost_share", ["abc\ufffd\ufffd\ufffd"], ["ab\ufffd\ufffd\ufffd"]),
        ("maximum_repeated_share", ["ab", "a", "ab"], ["abc", "abc", "abc"]),
        ("maximum_one_sentence_share", ["ab", "cdef", "gh", "ab"], ["abc", "de", "abc"]),
    ],
)
def test_a_share_may_reach_its_limit_and_not_pass_it(
    field: str, at_limit: list[str], beyond: list[str]
) -> None:
    off: dict[str, Any] = {
        name: 0.0 if name.startswith("minimum") else 1.0
        for name in QualityConfig.model_fields
        if name.endswith("share")
    }
    config = QualityConfig(**{**off, field: 0.5})
    assert find_fault(at_limit, config) == ""
    assert find_fault(beyond, config) != ""
    assert find_fault(beyond, QualityConfig(**off)) == ""


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
    config = validate(CorpusConfig, {"sources": [block], "quality": {}})
    kept = dropped = 0
    for each in list_ranges(config):
        builder = RangeBuilder(config, "x")
        kept += sum(table.num_rows for table in builder.tables(read_range(each, config)))
        reasons = builder.report.dropped.items()
        dropped += sum(count for reason, count in reasons if reason.startswith("quality"))
    assert kept
    assert dropped <= most * (kept + dropped)


def test_number_tables_of_a_news_wire_are_dropped(real_data: Path) -> None:
    path = real_data / "corpora" / "en" / "reuters21578" / "reuters-000-018.txt.gz"
    stories = gzip.decompress(path.read_bytes()).decode().split("\n\n")[:2000]
    found = {story: find_fault(story.split("\n"), QualityConfig()) for story in stories}
    tables_of_results = [story for story in stories if story.lstrip().startswith("Shr ")]
    caught = [story for story in tables_of_results if found[story]]
    assert len(caught) > 0.5 * len(tables_of_results)
