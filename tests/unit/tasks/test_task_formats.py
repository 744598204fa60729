"""Readers of published task data, by cases made by hand: what they read and what they refuse."""

import gzip
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from seqeval.scheme import BILOU, IOB2, IOBES, IOE2, Tokens

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.data.files import load
from rungwise.tasks.formats.tagged import to_iob2
from rungwise.tasks.kinds.examples import Text
from rungwise.tasks.kinds.labels import find_spans
from tests.task_cases import FormatBlock, as_json, read_content


def table(**keys: Any) -> dict[str, Any]:
    return {"kind": "table", "columns": {"text": "text", "label": "label"}, **keys}


def test_a_packed_file_is_read_as_what_is_in_it(tmp_path: Path) -> None:
    packed = gzip.compress(b"text\tlabel\nwords\ta\n")
    (example,) = read_content(tmp_path, table(), packed, "t.tsv.gz")
    assert example == Text("t.tsv.gz:2", "words", None, "a")
    with pytest.raises(DataError, match=r"t\.tsv\.gz: a cut-off \.gz.*fetch the file again"):
        read_content(tmp_path, table(), packed[:-12], "t.tsv.gz")


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "big5"])
def test_files_are_read_in_the_encoding_that_is_named(tmp_path: Path, encoding: str) -> None:
    content = "text\tlabel\n你好\ta\n".encode(encoding)
    (read,) = read_content(tmp_path, table(encoding=encoding), content)
    assert read.text == "你好"
    tagged = read_content(
        tmp_path, {"kind": "conll", "encoding": encoding}, "你 A\n好 B\n".encode(encoding)
    )
    assert tagged[0].words == ("你", "好")
    with pytest.raises(DataError, match=r"expected UTF-8, found the byte .*data\.format\.encoding"):
        read_content(tmp_path, table(), content)


def test_parallel_files_are_read_line_by_line(tmp_path: Path) -> None:
    for language, lines in (("en", "a house\ntwo\n"), ("de", "ein Haus\nzwei\n")):
        (tmp_path / f"data.en-de.{language}").write_text(lines)
    paths = [str(tmp_path / f"data.en-de.{language}") for language in ("de", "en")]
    form = {"kind": "parallel", "source": "en", "target": "de"}
    task = {"format": form, "train": paths, "validation": paths, "test": paths}
    config = validate(FilesTaskConfig, task)
    examples = load(config).splits["train"]
    assert [(e.text, e.target) for e in examples] == [("a house", "ein Haus"), ("two", "zwei")]
    assert examples[1].where == "data.en-de.en:2"
    with pytest.raises(DataError, match=r"expected files with \.en and \.de .*; name both, or"):
        load(validate(FilesTaskConfig, task | {"train": paths[1:]}))
    with pytest.raises(DataError, match=r"expected files with \.fr and \.de .*, found .*en-de\.de"):
        load(validate(FilesTaskConfig, task | {"format": form | {"source": "fr"}}))
    (tmp_path / "data.en-de.de").write_text("ein Haus\n")
    with pytest.raises(DataError, match=r"expected aligned lines, found 2 in .* and 1 in .*mend"):
        load(config)


READINGS = yaml.safe_load(Path(__file__).with_name("read_files.yaml").read_text("utf-8"))


@pytest.mark.parametrize("title", READINGS, ids=lambda title: title.replace(" ", "_"))
def test_a_file_is_read_as_these_examples(tmp_path: Path, title: str) -> None:
    case, counts = READINGS[title], Counter[str]()
    split = case.get("split", "train")
    result = read_content(tmp_path, case["format"], case["content"], counts=counts, split=split)
    places = [each.where.removeprefix("data.txt:") for each in result]
    assert [[p, *as_json(e)] for p, e in zip(places, result, strict=True)] == case["examples"]
    assert counts == case.get("counts", {})


@pytest.mark.parametrize("marks", ["BIES", "BILU", "BMES"])
def test_every_scheme_of_spans_is_read_as_iob2(marks: str) -> None:
    rng = random.Random(1)
    for _ in range(50):
        iob2, other, types = [], [], ("A", "B", "C-1")
        for _ in range(rng.randint(1, 8)):
            length, kind = rng.randint(0, 4), rng.choice(types)
            begin, inside, end, alone = (f"{mark}-{kind}" for mark in marks)
            iob2 += ["O"] if length == 0 else [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]
            middle = [inside] * (length - 2)
            other += [["O"], [alone]][length] if length < 2 else [begin, *middle, end]
        assert to_iob2(other, set(other)) == iob2


@pytest.mark.parametrize("scheme", [IOB2, IOE2, IOBES, BILOU], ids=lambda each: each.__name__)
def test_spans_of_a_scheme_are_those_that_seqeval_finds(scheme: type) -> None:
    marks = {IOE2: "IE", IOBES: "BIES", BILOU: "BILU"}.get(scheme, "BI")
    labels = ("O", *(f"{mark}-{kind}" for mark in marks for kind in "XY"))
    for tags in itertools.product(labels, repeat=4):
        strict = {(e.tag, e.start, e.end - 1) for e in Tokens(list(tags), scheme).entities}
        # Of illegal sequences seqeval's strict mode reads only what is a whole span.
        if sum(end - start + 1 for _, start, end in strict) == len(tags) - tags.count("O"):
            assert find_spans(to_iob2(tags, labels)) == strict


def test_spans_of_ioe1_and_iob1_that_touch_stay_apart() -> None:
    """Writes random spans by the definition of Tjong Kim Sang and Veenstra 1999, and reads them."""
    rng = random.Random(2)
    for _ in range(100):
        spans = [("O" if rng.random() < 0.3 else rng.choice("XY"), rng.randint(1, 3))
                 for _ in range(rng.randint(1, 7))]  # fmt: skip
        iob2, iob1, ioe1 = [], [], []
        for number, (kind, length) in enumerate(spans):
            if kind == "O":
                for tags in (iob2, iob1, ioe1):
                    tags += ["O"] * length
                continue
            inside = [f"I-{kind}"] * length
            before = number > 0 and spans[number - 1][0] == kind
            after = number + 1 < len(spans) and spans[number + 1][0] == kind
            iob2 += [f"B-{kind}", *inside[1:]]
            iob1 += [f"B-{kind}" if before else inside[0], *inside[1:]]
            ioe1 += [*inside[1:], f"E-{kind}" if after else inside[0]]
        for tags, marks in ((iob1, "BI"), (ioe1, "EI")):
            assert to_iob2(tags, {"O", *(f"{m}-{k}" for m in marks for k in "XY")}) == iob2


def test_a_sentence_that_is_left_out_says_nothing_of_the_scheme(tmp_path: Path) -> None:
    form = {"kind": "conll", "on_error": "drop"}
    content = "Ann\tI-PER\nLee\tI-PER\n\nUlm\tX-PER\nno\n\nBob\tI-PER\n"
    sentences = read_content(tmp_path, form, content)
    assert [each.tags for each in sentences] == [("B-PER", "I-PER"), ("B-PER",)]


def test_words_marked_without_a_type_are_spans() -> None:
    # Peking University's marks of two words of two and three characters, and one of one.
    assert to_iob2(list("BEBMES"), set("BMES")) == [
        *("B-span", "I-span", "B-span", "I-span", "I-span", "B-span")
    ]
    assert to_iob2(["S", "NN"], {"S", "NN"}) == ["S", "NN"]


REFUSED: dict[str, tuple[dict[str, Any], str | bytes, str]] = {
    name: (each["format"], each["content"], each["message"])
    for name, each in yaml.safe_load(
        Path(__file__).with_name("refused_files.yaml").read_text("utf-8")
    ).items()
}
REFUSED |= {
    "a score beyond any float": (
        {"kind": "table", "layout": "json_lines", "columns": {"text": "text", "score": "score"}},
        json.dumps({"text": "a", "score": 10**400}),
        r"data\.txt:1: expected a number as the score, found 1000",
    ),
    "bytes that are not UTF-8": (
        table(),
        b"\xef\xbb\xbftext\tlabel\r\nwords\ta\r\ncaf\xe9\tb\r\n",
        r"data\.txt:3: expected UTF-8, found the byte 0xe9; set data\.format\.encoding",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "_"))
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    form, content, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        read_content(tmp_path, form, content)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"kind": "tsv"}, r"format\.kind: expected one of table, folders, "),
        (table(columns={"text": "a", "label": "b", "score": "c"}), "label and score are both set"),
        (table(columns={"text": "a", "target": "b", "second": "c"}), "second and target are both"),
        (table(columns={"text": "a", "target": "b", "label": "c"}), "label and target are both"),
        (table(columns={"text": -1, "label": 0}), "an index of a column is 0 or more"),
        (table(labels={0: False}), r"format\.labels"),
        (table(labels=[]), r"format\.labels.*expected labels, found none"),
        (table(rest_of_line=True, quoting=True), "set quoting to false"),
    ],
)
def test_a_format_that_contradicts_itself_is_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(FormatBlock, {"format": form})
