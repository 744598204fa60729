"""Lines of text, TSV and JSON Lines become examples, one by one, or say what they lack."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from rungwise.commands.models import check_encoding
from rungwise.core.errors import DataError
from rungwise.tasks.data.cutting import Format, read_lines
from rungwise.tasks.kinds.examples import (
    ChoiceExample,
    Example,
    Kind,
    Question,
    Tagged,
    TaskInfo,
    Text,
)


def info(kind: Kind, *, pair: bool = False) -> TaskInfo:
    return TaskInfo(kind, ("a", "b"), pair, "accuracy")


def test_a_line_of_text_is_an_example_and_an_empty_one_too() -> None:
    lines = ["One text.\n", "\n", "Tabs\tand \u3000blanks stay. \r\n"]
    examples = list(read_lines(lines, "text", info("classification"), "in.txt"))
    assert examples == [
        Text("in.txt:1", "One text."),
        Text("in.txt:2", ""),
        Text("in.txt:3", "Tabs\tand \u3000blanks stay. "),
    ]


PAIR, CHOICE = info("classification", pair=True), ChoiceExample("f:2", "The sun", None, ("a", "b"))


@pytest.mark.parametrize(
    ("lines", "form", "task", "expected"),
    [
        (["EU rejects  call\n"], "text", info("tagging"), Tagged("f:1", ("EU", "rejects", "call"))),
        (
            ['{"words": ["New York", "is"]}'],
            "jsonl",
            info("tagging"),
            Tagged("f:1", ("New York", "is")),
        ),
        # Columns are found by name; only in CSV are quotes no characters.
        (["second\ttext\n", 'B "it"\tA\n'], "tsv", PAIR, Text("f:2", "A", 'B "it"')),
        (["id,text\n", '1,"a, ""b"""\n'], "csv", info("classification"), Text("f:2", 'a, "b"')),
        (
            ['{"id": 7, "question": "Who?", "context": "It was me."}'],
            "jsonl",
            info("span"),
            Question("f:1", "7", "Who?", "It was me."),
        ),
        (["context\toption0\toption1\n", "The sun\ta\tb\n"], "tsv", info("choice"), CHOICE),
        # Rows with fewer options end in empty cells.
        (
            ["context\toption0\toption1\toption2\n", "The sun\ta\tb\t\n"],
            "tsv",
            info("choice"),
            CHOICE,
        ),
    ],
)
def test_a_line_becomes_an_example(
    lines: list[str], form: Format, task: TaskInfo, expected: Example
) -> None:
    assert list(read_lines(lines, form, task, "f")) == [expected]


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_a_cell_may_be_as_long_as_a_passage_whoever_set_a_limit_before(form: Format) -> None:
    text = "word " * 40_000
    before = csv.field_size_limit(131_072)  # the csv module's own
    try:
        (example,) = read_lines(["text\n", text], form, info("classification"), "p")
    finally:
        csv.field_size_limit(before)
    assert example == Text("p:2", text)


def test_an_endless_stream_is_answered_as_it_comes() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "again\n"

    examples = read_lines(endless(), "text", info("classification"), "stdin")
    assert next(examples).where == "stdin:1"
    assert next(examples).where == "stdin:2"


def test_a_file_may_begin_with_a_byte_order_mark_and_must_be_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "f"

    def read(content: bytes) -> list[str]:
        file.write_bytes(content)
        with file.open(encoding="utf-8", newline="") as lines:
            task = info("classification")
            found = read_lines(check_encoding(lines, "f"), "jsonl", task, "f")
            return [each.text for each in found if isinstance(each, Text)]

    line = b'{"text": "a"}\r\n'
    assert read(b"\xef\xbb\xbf" + line) == ["a"]
    for before in (2, 2000):
        with pytest.raises(
            DataError, match=f"^f:{before + 1}: expected UTF-8, found the byte 0xe9"
        ):
            read(before * line + b'{"text": "\xe9"}\n' + 2000 * line)


@pytest.mark.parametrize(
    ("lines", "form", "task", "message"),
    [
        (["x"], "text", info("span"), "needs question, context.*JSON Lines"),
        (['{"text": "a"}'], "jsonl", info("classification", pair=True), r"f:1: second is missing"),
        (['{"text": NaN}'], "jsonl", info("classification"), "f:1: text is missing; this model"),
        (['{"text": 3}'], "jsonl", info("classification"), "f:1: text is 3 and not a text"),
        (['{"text": null}'], "jsonl", info("classification"), "f:1: text is None and not a text"),
        (['{"text": "a"}\n', '{"text":\n'], "jsonl", info("classification"), "f:2: expected one"),
        (["text,id,text\n", "a,b,c\n"], "csv", info("classification"), "f:1: .* found 2 of them"),
        (['{"text": "a"}', "{"], "jsonl", info("classification"), "f:2: expected one JSON object"),
        (["[1]"], "jsonl", info("classification"), "f:1: expected a JSON object, found list"),
        (['{"text": "\\ud83d"}'], "jsonl", info("classification"), "f:1: text holds half of a"),
        (['{"words": ["a", "\\ud83d"]}'], "jsonl", info("tagging"), "f:1: words holds half of a"),
        (["text\tid\n", "a\n"], "tsv", info("classification"), r"f:2: expected 2 columns"),
        (["text\n", "a\n", '"b\n', "c\n"], "csv", info("classification"), "f:3: the quotes of"),
        *(
            (
                [f'{{"context": "a", "options": {options}}}'],
                "jsonl",
                info("choice"),
                "f:1: expected options, a list of 2 or more",
            )
            for options in ("3", '{"A": "b", "B": "c"}', '["b"]')
        ),
        (
            ['{"context": "a", "option0": "b", "option1": "c", "option2": null, "option3": "d"}'],
            "jsonl",
            info("choice"),
            "f:1: option2 is missing, but there is option3",
        ),
    ],
)
def test_errors_name_their_line(
    lines: list[str], form: Format, task: TaskInfo, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(read_lines(lines, form, task, "f"))
