"""Readers of published task data, by cases made by hand: what they read and what they refuse."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.source_files import find_files
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.formats.columns import iob2_labels, to_iob2
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, Text


class Block(Config):
    format: TaggedFormat


def table(**keys: Any) -> dict[str, Any]:
    return {"kind": "table", "columns": {"text": "text", "label": "label"}, **keys}


def examples(
    folder: Path,
    form: dict[str, Any],
    content: str | bytes,
    name: str = "data.txt",
    counts: Counter[str] | None = None,
    split: str = "train",
) -> list[Any]:
    """What a format makes of a file with this content."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (file,) = find_files(str(path))
    block = validate(Block, {"format": form})
    return list(block.format.read(file, split, Counter() if counts is None else counts))


def squad(*questions: dict[str, Any], context: str = "Gravity makes rain fall.") -> str:
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"version": "1.1", "data": [{"paragraphs": [paragraph]}]})


def asked(text: str, start: int, **keys: Any) -> dict[str, Any]:
    return {
        "id": "q1",
        "question": "Why?",
        "answers": [{"text": text, "answer_start": start}],
        **keys,
    }


def dream(answer: str = "b", options: tuple[str, ...] = ("a", "b", "c")) -> str:
    return json.dumps(
        [[["M: Hi.", "W: Oh."], [{"question": "Q?", "choice": options, "answer": answer}], "1-2"]]
    )


SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)
STS_ROW = "main-news\tMSRpar\t2012test\t0001\t3.800\tA man plays.\tA boy plays."


def test_a_quoted_cell_may_span_lines_and_the_lines_are_the_editors(tmp_path: Path) -> None:
    content = 'text,label\r\n"one\r\ntwo ""three""",a\r\n\r\nfour,b\r\n'
    read = examples(tmp_path, table(delimiter=",", quoting=True), content, "t.csv")
    assert read == [
        Text("t.csv:2", 'one\r\ntwo "three"', None, "a"),
        Text("t.csv:5", "four", None, "b"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    read = examples(tmp_path, table(), b"\xef\xbb\xbftext\tlabel\nwords\ta\n")
    assert read == [Text("data.txt:2", "words", None, "a")]


def test_without_quoting_a_quote_is_a_character(tmp_path: Path) -> None:
    read = examples(tmp_path, table(), 'text\tlabel\n"one\ta\ntwo"\tb\n')
    assert [example.text for example in read] == ['"one', 'two"']


def test_a_packed_file_is_read_as_what_is_in_it(tmp_path: Path) -> None:
    packed = gzip.compress(b"text\tlabel\nwords\ta\n")
    (example,) = examples(tmp_path, table(), packed, "t.tsv.gz")
    assert example == Text("t.tsv.gz:2", "words", None, "a")
    with pytest.raises(DataError, match=r"t\.tsv\.gz: a cut-off \.gz.*fetch the file again"):
        examples(tmp_path, table(), packed[:-12], "t.tsv.gz")


def test_labels_get_their_names_and_comments_and_skipped_labels_are_left_out(
    tmp_path: Path,
) -> None:
    form = table(labels={0: "no way", 1: "yes"}, comment="%", skip_labels=["-"])
    counts: Counter[str] = Counter()
    content = "text\tlabel\n% a comment\nwords\t1\nmore\t-\nlast\t 0\n"
    read = examples(tmp_path, form, content, counts=counts)
    assert [(e.where, e.target) for e in read] == [("data.txt:3", "yes"), ("data.txt:5", "no way")]
    assert counts == {"rows_dropped_for_their_label": 1}


def test_the_last_column_goes_on_to_the_end_of_the_line(tmp_path: Path) -> None:
    form = {
        "kind": "table",
        "columns": {"text": 1, "label": 0},
        "delimiter": " ",
        "header": False,
        "rest_of_line": True,
    }
    (example,) = examples(tmp_path, form, '4 a  "stirring" , funny\n')
    assert (example.text, example.target) == ('a  "stirring" , funny', "4")


def test_json_lines_take_labels_as_text_numbers_or_truth_values(tmp_path: Path) -> None:
    content = '{"text": "a\\nb", "label": 1}\n\n{"text": "c", "label": "1"}\r\n'
    read = examples(tmp_path, table(layout="json_lines"), content + '{"text":"d","label":true}')
    assert [(e.where, e.text, e.target) for e in read] == [
        ("data.txt:1", "a\nb", "1"),
        ("data.txt:3", "c", "1"),
        ("data.txt:4", "d", "true"),
    ]


def test_a_json_array_is_read_with_the_fields_inside_of_others(tmp_path: Path) -> None:
    # As Label Studio exports a choice for a text.
    chosen = [{"result": [{"value": {"choices": ["good"]}}]}]
    form = table(
        layout="json",
        columns={"text": "data.text", "label": "annotations.0.result.0.value.choices.0"},
    )
    content = json.dumps([{"id": 1, "data": {"text": "Fine."}, "annotations": chosen}] * 2)
    assert examples(tmp_path, form, content, "t.json") == [
        Text("t.json:item 1", "Fine.", None, "good"),
        Text("t.json:item 2", "Fine.", None, "good"),
    ]
    dotted = table(layout="json_lines", columns={"text": "a.b", "label": "c"})
    assert examples(tmp_path, dotted, '{"a.b": "x", "c": 1}')[0].text == "x"
    with pytest.raises(DataError, match=r"item 1: expected one column 'data\.txt', .*'data\.text'"):
        examples(
            tmp_path, table(layout="json", columns={"text": "data.txt", "label": "id"}), content
        )
    with pytest.raises(DataError, match="expected a JSON array of objects, found a int"):
        examples(tmp_path, form, "3")


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "big5"])
def test_files_are_read_in_the_encoding_that_is_named(tmp_path: Path, encoding: str) -> None:
    content = "text\tlabel\n你好\ta\n".encode(encoding)
    (read,) = examples(tmp_path, table(encoding=encoding), content)
    assert read.text == "你好"
    tagged = examples(
        tmp_path, {"kind": "conll", "encoding": encoding}, "你 A\n好 B\n".encode(encoding)
    )
    assert tagged[0].words == ("你", "好")
    with pytest.raises(DataError, match=r"expected UTF-8, found the byte .*data\.format\.encoding"):
        examples(tmp_path, table(), content)


def test_rows_of_another_length_can_be_dropped_and_are_counted(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    content = "text\tlabel\nwords\ta\nbroken\nmore\tb\tc\n"
    read = examples(tmp_path, table(on_error="drop"), content, counts=counts)
    assert len(read) == 1
    assert counts == {"examples_dropped_for_their_number_of_columns": 2}


@pytest.mark.parametrize(
    ("task", "header", "row", "target"),
    [
        ("CoLA", None, "gj04\t0\t*\tOne.", "unacceptable"),
        ("SST-2", "sentence\tlabel", "One.\t1", "positive"),
        (
            "MRPC",
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "1\t7\t8\tOne.\tTwo.",
            "equivalent",
        ),
        (
            "QQP",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "1\t2\t3\tOne.\tTwo.\t0",
            "not_duplicate",
        ),
        (
            "STS-B",
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tnews\tf\t2012\t1\tnone\tnone\tOne.\tTwo.\t4.750",
            4.75,
        ),
        (
            "MNLI",
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\t3\t3n\tgov\t(\t(\t(\t(\tOne.\tTwo.\tneutral\tneutral",
            "neutral",
        ),
        (
            "SNLI",
            "index\tcaptionID\tpairID\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\t3\t3n\t(\t(\t(\t(\tOne.\tTwo.\tneutral\tentailment",
            "entailment",
        ),
        ("QNLI", "index\tquestion\tsentence\tlabel", "0\tOne.\tTwo.\tentailment", "entailment"),
        ("RTE", "index\tsentence1\tsentence2\tlabel", "0\tOne.\tTwo.\tentailment", "entailment"),
        ("WNLI", "index\tsentence1\tsentence2\tlabel", "0\tOne.\tTwo.\t0", "not_entailment"),
        (
            "AX",
            "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\t"
            "Hypothesis\tLabel",
            "\t\tNegation\t\tNews\tOne.\tTwo.\tcontradiction",
            "contradiction",
        ),
    ],
)
def test_each_task_of_glue_is_read_by_its_published_columns(
    tmp_path: Path, task: str, header: str | None, row: str, target: str | float
) -> None:
    content = f"{header}\n{row}\n" if header else f"{row}\n"
    (example,) = examples(tmp_path, {"kind": "glue", "task": task}, content)
    second = None if task in ("CoLA", "SST-2") else "Two."
    assert (example.text, example.second, example.target) == ("One.", second, target)


def test_pairs_of_snli_without_a_gold_label_are_left_out(tmp_path: Path) -> None:
    header = "sentence1\tsentence2\tgold_label"
    counts: Counter[str] = Counter()
    form = {"kind": "glue", "task": "SNLI"}
    content = f"{header}\nOne.\tTwo.\t-\nOne.\tThree.\tneutral\n"
    (example,) = examples(tmp_path, form, content, counts=counts)
    assert example.second == "Three."
    assert counts == {"rows_dropped_for_their_label": 1}


def test_sick_gives_each_split_its_rows_and_either_target(tmp_path: Path) -> None:
    header = (
        "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\t"
        "entailment_BA\tsentence_A_original\tsentence_B_original\tsentence_A_dataset\t"
        "sentence_B_dataset\tSemEval_set"
    )
    rows = [
        f"{n}\tOne {n}.\tTwo.\tNEUTRAL\t4.5\tA\tB\to\to\tF\tF\t{part}"
        for n, part in enumerate(["TRAIN", "TEST", "TRIAL", "TRAIN"])
    ]
    content = "\n".join([header, *rows])
    (validated,) = examples(tmp_path, {"kind": "sick"}, content, split="validation")
    assert validated == Text("data.txt:4", "One 2.", "Two.", 4.5)
    entailment = {"kind": "sick", "target": "entailment"}
    read = examples(tmp_path, entailment, content)
    assert [(e.text, e.target) for e in read] == [("One 0.", "neutral"), ("One 3.", "neutral")]
    semeval = (
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        "6\tOne.\tTwo.\t3.3\tCONTRADICTION\n"
    )
    (example,) = examples(tmp_path, {**entailment, "release": "semeval"}, semeval)
    assert example.target == "contradiction"
    (example,) = examples(tmp_path, {"kind": "sick", "release": "semeval"}, semeval)
    assert example.target == 3.3


def test_the_original_sts_rows_may_have_their_sources_after_them(tmp_path: Path) -> None:
    content = f"{STS_ROW}\n{STS_ROW}\thttp://a\thttp://b\n"
    read = examples(tmp_path, {"kind": "sts"}, content)
    assert [(e.text, e.second, e.target) for e in read] == [
        ("A man plays.", "A boy plays.", 3.8)
    ] * 2


def test_conll_columns_are_read_and_iob1_becomes_iob2(tmp_path: Path) -> None:
    content = (
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nUN NNP I-NP B-ORG\nof IN O I-LOC\n# # O O\n\n\n"
        "Bonn NNP I-NP I-LOC"
    )
    first, second = examples(tmp_path, {"kind": "conll"}, content)
    assert first == Tagged("data.txt:3", ("EU", "UN", "of", "#"), ("B-ORG", "B-ORG", "B-LOC", "O"))
    assert second == Tagged("data.txt:9", ("Bonn",), ("B-LOC",))
    form = {"kind": "conll", "scheme": "as_is"}
    assert examples(tmp_path, form, content)[0].tags == ("I-ORG", "B-ORG", "I-LOC", "O")
    assert examples(tmp_path, {"kind": "conll", "tag": 1}, content)[0].tags[0] == "NNP"


def test_to_iob2_leaves_iob2_and_other_tags_alone() -> None:
    assert to_iob2(["O", "B-A", "I-A", "B-A", "O", "B-B", "I-B"]) == [
        *("O", "B-A", "I-A", "B-A", "O", "B-B", "I-B")
    ]
    assert to_iob2(["I-A", "I-A", "I-B", "B-B", "O", "I-B"]) == [
        *("B-A", "I-A", "B-B", "B-B", "O", "B-B")
    ]
    assert to_iob2(["NN", "IN", "JJ"]) == ["NN", "IN", "JJ"]
    assert to_iob2(["S-x", "NN"], {"S-x", "NN"}) == ["S-x", "NN"]


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


@pytest.mark.parametrize(
    ("written", "tags"),
    [
        (["O", "I-PER", "I-LOC"], {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}),
        (["O", "B-X", "I-X", "E-X", "S-X"], {"O", "B-X", "I-X"}),
        (["B", "M", "E", "S"], {"B-span", "I-span"}),
        (["NOUN", "VERB"], {"NOUN", "VERB"}),
    ],
)
def test_stated_labels_are_those_of_the_converted_tags(
    tmp_path: Path, written: list[str], tags: set[str]
) -> None:
    assert set(iob2_labels(written)) == tags
    columns = "".join(f"w\t{tag}\n" for tag in written)
    lists = json.dumps({"tokens": ["w"] * len(written), "tags": written}) + "\n"
    for form, content in (
        ({"kind": "conll", "labels": written}, columns),
        ({"kind": "tokens", "labels": written}, lists),
    ):
        (read,) = examples(tmp_path, form, content)
        stated = validate(Block, {"format": form}).format.stated_labels
        assert set(stated) == tags >= set(read.tags)
        with pytest.raises(DataError, match=r"expected one of the labels"):
            examples(tmp_path, form, content.replace(written[0], "B-QQ", 1))


def test_words_marked_without_a_type_are_spans() -> None:
    # Peking University's marks of two words of two and three characters, and one of one.
    assert to_iob2(list("BEBMES"), set("BMES")) == [
        *("B-span", "I-span", "B-span", "I-span", "I-span", "B-span"),
    ]
    assert to_iob2(["S", "NN"], {"S", "NN"}) == ["S", "NN"]


def test_a_character_a_line_keeps_blanks_that_are_characters(tmp_path: Path) -> None:
    form = {"kind": "conll", "separator": "tab"}
    (example,) = examples(tmp_path, form, "中\tB-LOC\r\n\u3000\tO\r\n \tO\r\n\r\n")
    assert example == Tagged("data.txt:1", ("中", "\u3000", " "), ("B-LOC", "O", "O"))


def test_conllu_skips_ranges_and_empty_nodes_and_comments(tmp_path: Path) -> None:
    def row(id_: str, form: str, upos: str, xpos: str) -> str:
        return "\t".join([id_, form, "_", upos, xpos, *["_"] * 5])

    lines = [
        "# text = #1 don't",
        row("1", "#1", "SYM", "NN"),
        row("2-3", "don't", "_", "_"),
        row("2", "do", "AUX", "VB"),
        row("3", "n't", "PART", "RB"),
        row("3.1", "go", "VERB", "VB"),
        "",
    ]
    (example,) = examples(tmp_path, {"kind": "conllu"}, "\n".join(lines))
    assert example == Tagged("data.txt:2", ("#1", "do", "n't"), ("SYM", "AUX", "PART"))
    (example,) = examples(tmp_path, {"kind": "conllu", "tags": "xpos"}, "\n".join(lines))
    assert example.tags == ("NN", "VB", "RB")


def test_squad_keeps_answers_and_impossible_questions(tmp_path: Path) -> None:
    impossible = {
        "id": "q2",
        "question": "Who?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [{"text": "rain", "answer_start": 14}],
    }
    content = squad(asked("rain", 14, is_impossible=False), impossible)
    first, second = examples(tmp_path, {"kind": "squad"}, content, "s.json")
    context = "Gravity makes rain fall."
    assert first == Question("s.json:q1", "q1", "Why?", context, (Answer("rain", 14),))
    assert second == Question("s.json:q2", "q2", "Who?", context, ())
    answerable = {"kind": "squad", "unanswerable": "drop"}
    assert examples(tmp_path, answerable, content, "s.json") == [first]


def test_offsets_of_squad_count_characters_beyond_the_basic_plane(tmp_path: Path) -> None:
    content = squad(asked("雨", 3), context="\U0001f327 =雨")
    (example,) = examples(tmp_path, {"kind": "squad"}, content)
    assert example.answers == (Answer("雨", 3),)


def test_bad_answers_can_be_dropped_and_are_counted(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    mixed = asked("rain", 14)
    mixed["answers"].append({"text": "rain", "answer_start": 13})
    content = squad(mixed, asked("rain", 99, id="q2"))
    form = {"kind": "squad", "on_error": "drop"}
    (example,) = examples(tmp_path, form, content, counts=counts)
    assert example.answers == (Answer("rain", 14),)
    assert counts == {
        "answers_dropped_for_not_being_in_the_context": 2,
        "examples_dropped_for_want_of_an_answer": 1,
    }


def test_an_answer_without_a_start_is_named(tmp_path: Path) -> None:
    record = {"id": "q", "question": "Why?", "context": "It rains."}
    record["answers"] = {"text": ["It", "rains"], "answer_start": [0]}
    form = {"kind": "squad", "layout": "json_lines"}
    with pytest.raises(DataError, match=r"a start for each answer, found 2 texts and 1 starts"):
        examples(tmp_path, form, json.dumps(record))


@pytest.mark.parametrize(
    ("bad", "left"), [(None, "ABC"), (0, "BC"), (1, "C"), (2, "C"), (3, "A"), (5, "AB")]
)
def test_an_example_that_lost_an_option_is_dropped(
    tmp_path: Path, bad: int | None, left: str
) -> None:
    # A damaged row has no group: at a border it may be an option of either example.
    columns = {"question": "q", "option": "o", "group": "g", "answer": "a"}
    form = {"kind": "choice", "columns": columns, "on_error": "drop"}
    rows = [f"{name}?\t{name}{n}\t{name}\t{n}" for name in "ABC" for n in (0, 1)]
    if bad is not None:
        rows[bad] = "damaged"
    counts: Counter[str] = Counter()
    read = examples(tmp_path, form, "\n".join(["q\to\tg\ta", *rows]), counts=counts)
    assert [each.context[0] for each in read] == list(left)
    assert counts["examples_dropped_for_a_row_that_was_dropped"] == 3 - len(left)


def test_options_in_rows_may_be_none_at_all(tmp_path: Path) -> None:
    columns = {"question": "q", "option": "o", "group": "g", "answer": "a"}
    assert examples(tmp_path, {"kind": "choice", "columns": columns}, "q\to\tg\ta\n") == []


def test_options_without_a_beginning_stand_alone(tmp_path: Path) -> None:
    columns = {"context": "c", "begins": "b", "options": "o", "answer": "a"}
    form = {"kind": "choice", "layout": "json_lines", "columns": columns}
    rows = [{"c": "One.", "b": begins, "o": ["x", "y"], "a": 0} for begins in ("He", "", None)]
    read = examples(tmp_path, form, "\n".join(map(json.dumps, rows)))
    assert [each.options for each in read] == [("He x", "He y"), ("x", "y"), ("x", "y")]


def test_the_split_of_a_record_may_be_a_number(tmp_path: Path) -> None:
    split = {"column": "fold", "train": "0", "validation": "1", "test": "2"}
    rows = [{"text": f"t{fold}", "label": "x", "fold": fold} for fold in (0, 1, 2)]
    content = "\n".join(map(json.dumps, rows))
    form = table(layout="json_lines", split=split)
    (example,) = examples(tmp_path, form, content, split="validation")
    assert example.text == "t1"


def test_an_option_of_swag_is_the_second_sentence_with_an_ending(tmp_path: Path) -> None:
    content = f'{SWAG}\n0,v,1,s,"A guard, armed, runs.",Someone,gold,"opens, fire.",b,c,d,2\n'
    (example,) = examples(tmp_path, {"kind": "swag"}, content)
    options = ("Someone opens, fire.", "Someone b", "Someone c", "Someone d")
    assert example == ChoiceExample("data.txt:2", "A guard, armed, runs.", None, options, 2)


def test_codah_and_dream_are_read_as_published(tmp_path: Path) -> None:
    (example,) = examples(tmp_path, {"kind": "codah"}, "o\tHe\tgoes.\tstays.\tsits.\truns.\t3\n")
    assert example == ChoiceExample(
        "data.txt:1", "He", None, ("goes.", "stays.", "sits.", "runs."), 3
    )
    (example,) = examples(tmp_path, {"kind": "dream"}, dream().replace("[[[", "[\r\n[["))
    assert example == ChoiceExample("data.txt:1-2:0", "M: Hi.\nW: Oh.", "Q?", ("a", "b", "c"), 1)


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
        examples(tmp_path, form, content)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"kind": "tsv"}, r"format\.kind: expected one of table, folders, "),
        ({"kind": "glue", "task": "COLA"}, r"format\.task"),
        (table(columns={"text": "a", "label": "b", "score": "c"}), "label and score are both set"),
        (table(columns={"text": -1, "label": 0}), "an index of a column is 0 or more"),
        (table(header=False), r"columns\.text is a name, but header is false"),
        (table(layout="json_lines", columns={"text": 0, "label": "a"}), "JSON fields have names"),
        (table(labels={0: False}), r"format\.labels"),
        (table(labels=[]), r"format\.labels.*expected labels, found none"),
        (table(rest_of_line=True, quoting=True), "set quoting to false"),
    ],
)
def test_a_format_block_that_contradicts_itself_is_refused(
    form: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Block, {"format": form})
