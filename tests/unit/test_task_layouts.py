"""Layouts of public data sets and of labelling tools: each loads with the block of the docs."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import tarfile
import zipfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.commands.tasks import told
from rungwise.core.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.outside import digest, matching
from rungwise.tasks.examples import Answer, ChoiceExample, Question, Tagged, Text
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.look import look

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "layouts.md"
BLOCKS = {
    name: yaml.safe_load(block)
    for name, block in re.findall(r"(?m)^\| ([^|]+) \| `(\{kind.*\})` \|$", PAGE.read_text("utf-8"))
}
# CoNLL-2000 has two columns of tags, and its last is taken.
REAL = [
    block
    for block in re.findall(
        r"```yaml\n(# .*?)```", PAGE.with_name("tasks.md").read_text("utf-8"), re.S
    )
    if "/data/" in block.replace(": data/tasks", "/data/") and "tag: 1" not in block
]


class Block(Config):
    format: TaggedFormat


def lines(*records: Any) -> str:
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)


def rows(*cells: str) -> str:
    return "".join(row.replace("|", "\t") + "\n" for row in cells)


def tar(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
    return packed.getvalue()


def text(*fields: Any) -> tuple[Any, ...]:
    """What is to be understood of a text: itself, its second, its target."""
    first, *second, target = fields
    return first, second[0] if second else None, target


def tagged(words: str, tags: str) -> tuple[Any, ...]:
    return tuple(words.split()), tuple(tags.split())


def squad(**question: Any) -> str:
    asked = {"id": "q", "question": "Why?", "answers": [], **question}
    return json.dumps(
        {"data": [{"title": "t", "paragraphs": [{"context": "It rains.", "qas": [asked]}]}]}
    )


RAIN = {"answers": [{"text": "rains", "answer_start": 3}]}
ASKED = ("Why?", "It rains.", (Answer("rains", 3),))
NLI = ("sentence1", "sentence2", "gold_label")
ARC_LISTS = {"text": ["a", "b"], "label": ["A", "B"]}

# name: (path below the folder, its content, what its first example is understood as)
LAYOUTS: dict[str, tuple[str, str | bytes, tuple[Any, ...]]] = {
    "BoolQ (SuperGLUE)": (
        "train.jsonl",
        lines({"question": "is it", "passage": "It is.", "idx": 0, "label": True}),
        text("is it", "It is.", "true"),
    ),
    "CB (SuperGLUE)": (
        "train.jsonl",
        lines({"premise": "P.", "hypothesis": "H.", "label": "neutral", "idx": 0}),
        text("P.", "H.", "neutral"),
    ),
    "RTE (SuperGLUE)": (
        "train.jsonl",
        lines({"premise": "P.", "hypothesis": "H.", "label": "not_entailment", "idx": 0}),
        text("P.", "H.", "not_entailment"),
    ),
    "WiC (SuperGLUE)": (
        "train.jsonl",
        lines(
            {"word": "bank", "sentence1": "A.", "sentence2": "B.", "idx": 0, "label": False}
            | {"start1": 0, "start2": 0, "end1": 1, "end2": 1, "version": 1.1}
        ),
        text("bank A.", "B.", "false"),
    ),
    "WSC (SuperGLUE)": (
        "train.jsonl",
        lines(
            {"text": "Mark told Pete.", "label": True, "idx": 0}
            | {
                "target": {"span2_index": 2, "span1_index": 0, "span1_text": "Mark"}
                | {"span2_text": "He"}
            }
        ),
        text("Mark told Pete.", "Mark He", "true"),
    ),
    "MultiRC (SuperGLUE)": (
        "train.jsonl",
        lines(
            {
                "idx": 0,
                "version": 1.1,
                "passage": {
                    "text": "P.",
                    "questions": [
                        {
                            "question": "Q?",
                            "idx": 0,
                            "answers": [
                                {"text": "A", "idx": 0, "label": 1},
                                {"text": "B", "idx": 1, "label": 0},
                            ],
                        }
                    ],
                },
            }
        ),
        text("P. Q?", "A", "1"),
    ),
    "CoLA (GLUE)": ("train.tsv", rows("gj04|1||One."), text("One.", "acceptable")),
    "MNLI (GLUE)": (
        "train.tsv",
        rows("index|sentence1|sentence2|label1|gold_label", "0|One.|Two.|neutral|neutral"),
        text("One.", "Two.", "neutral"),
    ),
    "SNLI, JSON Lines": (
        "snli_1.0_dev.jsonl",
        lines(
            *(
                {"annotator_labels": [], "captionID": "1", "gold_label": gold, "pairID": "1r"}
                | {"sentence1": "One.", "sentence2": "Two."}
                for gold in ("-", "neutral")
            )
        ),
        text("One.", "Two.", "neutral"),
    ),
    "ANLI": (
        "train.jsonl",
        lines({"uid": "u", "context": "One.", "hypothesis": "Two.", "label": "e", "reason": ""}),
        text("One.", "Two.", "entailment"),
    ),
    "XNLI, trained in English, tested in Swahili": (
        "xnli.dev.tsv",
        rows(
            "language|gold_label|sentence1_binary_parse|sentence1|sentence2",
            "sw|neutral||Moja.|Mbili.",
            "en|neutral||One.|Two.",
        ),
        text("One.", "Two.", "neutral"),
    ),
    "PAWS": (
        "train.tsv",
        rows("id|sentence1|sentence2|label", "1|One.|Two.|0"),
        text("One.", "Two.", "0"),
    ),
    "SICK": (
        "SICK.txt",
        rows(
            "pair_ID|sentence_A|sentence_B|entailment_label|relatedness_score|SemEval_set",
            "1|One.|Two.|NEUTRAL|4.5|TRAIN",
        ),
        text("One.", "Two.", "neutral"),
    ),
    "STS benchmark": (
        "sts-train.csv",
        rows("main-news|MSRpar|2012test|0001|3.8|One.|Two."),
        text("One.", "Two.", 3.8),
    ),
    "AFQMC (CLUE)": (
        "train.json",
        lines({"sentence1": "双十一", "sentence2": "里面", "label": "0"}),
        text("双十一", "里面", "0"),
    ),
    "TNEWS (CLUE)": (
        "train.json",
        lines({"label": "108", "label_desc": "news_edu", "sentence": "上课时", "keywords": ""}),
        text("上课时", "news_edu"),
    ),
    "CSL (CLUE)": (
        "train.json",
        lines({"id": 1, "abst": "为解决", "keyword": ["水声", "迭代"], "label": "1"}),
        text("水声 迭代", "为解决", "1"),
    ),
    "CLUEWSC2020 (CLUE)": (
        "train.json",
        lines(
            {
                "target": {
                    "span2_index": 25,
                    "span1_index": 3,
                    "span1_text": "伤口",
                    "span2_text": "它们",
                },
                "idx": 0,
                "label": "true",
                "text": "裂开的",
            }
        ),
        text("裂开的", "伤口 它们", "true"),
    ),
    "AG News": ("train.csv", '"3","Wall St.","Short, sold."\n', text("Wall St. Short, sold.", "3")),
    "TREC questions, coarse": (
        "train_5500.label",
        "DESC:manner How did caf\xe9s begin ?\n".encode("latin-1"),
        text("How did café\x73 begin ?", "DESC"),
    ),
    "CLINC150": (
        "data_full.json",
        json.dumps({"oos_val": [["x", "oos"]], "train": [["what is it", "translate"]]}),
        text("what is it", "translate"),
    ),
    "Banking77": (
        "train.csv",
        'text,category\n"Where, then?",card_arrival\n',
        text("Where, then?", "card_arrival"),
    ),
    "SMS Spam Collection": ("SMSSpamCollection", rows('ham|Go "now'), text('Go "now', "ham")),
    "fastText": ("train.txt", "__label__a one two\n", text("one two", "__label__a")),
    "IMDB (aclImdb), in its archive": (
        "aclImdb_v1.tar.gz/aclImdb/train",
        tar(
            aclImdb__train__unsup__0_0="No.",
            aclImdb__train__pos__0_9="A\nfine film.",
            aclImdb__test__neg__0_2="Bad.",
        ),
        text("A\nfine film.", "pos"),
    ),
    "20 Newsgroups": (
        "sci.space/60804",
        b"From: x\n\nCaf\xe9.",
        text("From: x\n\nCafé.", "sci.space"),
    ),
    "Movie review polarity, a file a class": (
        "rt-polarity.neg",
        b"simplistic .\n\ndull .\n",
        text("simplistic .", "negative"),
    ),
    "Label Studio, choices, JSON": (
        "export.json",
        json.dumps(
            [
                {
                    "id": 1,
                    "data": {"text": "Fine."},
                    "annotations": [
                        {"result": [{"value": {"choices": ["good"]}, "from_name": "sentiment"}]}
                    ],
                }
            ]
        ),
        text("Fine.", "good"),
    ),
    "Label Studio, choices, CSV": (
        "export.csv",
        'annotation_id,annotator,id,sentiment,text\n1,2,3,good,"Fine, then."\n',
        text("Fine, then.", "good"),
    ),
    "doccano, classes": (
        "all.jsonl",
        lines({"id": 1, "text": "Fine.", "label": ["good"]}),
        text("Fine.", "good"),
    ),
    "Prodigy, classes": (
        "export.jsonl",
        lines(
            {
                "text": "Fine.",
                "options": [{"id": "GOOD", "text": "good"}],
                "accept": ["GOOD"],
                "answer": "accept",
            }
        ),
        text("Fine.", "GOOD"),
    ),
    "SageMaker Ground Truth": (
        "output.manifest",
        lines(
            {
                "source": "Fine.",
                "review": 1,
                "review-metadata": {"class-name": "good", "confidence": 0.9},
            }
        ),
        text("Fine.", "good"),
    ),
    "GoEmotions": (
        "train.tsv",
        rows("Fine.|2,5|a", "So.|2|b", "No.|5|c", "Go.|2,5|d", "He.|2|e", "Oh.|2|f"),
        text("Fine.", ("2", "5")),
    ),
    "Toxic comments (Jigsaw)": (
        "train.csv",
        "id,comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate\n"
        '1,"One, then.",0,0,1,1,0,0\n2,Two.,0,0,0,0,0,0\n3,Three.,1,0,1,0,0,0\n',
        text("One, then.", ("obscene", "threat")),
    ),
    "Topics of a document, JSON Lines": (
        "train.jsonl",
        lines({"text": "Fine.", "topics": ["b", "a", "b"]}, {"text": "So.", "topics": []}),
        text("Fine.", ("a", "b")),
    ),
    "Label Studio, several choices": (
        "export.json",
        json.dumps(
            [
                {"data": {"text": t}, "annotations": [{"result": [{"value": {"choices": chosen}}]}]}
                for t, chosen in (("Fine.", ["b", "a"]), ("So.", ["a"]))
            ]
        ),
        text("Fine.", ("a", "b")),
    ),
    "CoNLL-2000": ("train.txt", "He PRP B-NP\nruns VBZ B-VP\n\n", tagged("He runs", "B-NP B-VP")),
    "CoNLL-2002": (
        "esp.train",
        "S\xe3o NC B-LOC\nPaulo AQ I-LOC\n".encode("latin-1"),
        tagged("São Paulo", "B-LOC I-LOC"),
    ),
    "CoNLL-2003": ("eng.train", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n", tagged("EU", "B-ORG")),
    "CoNLL-U": (
        "en.conllu",
        "# x\n" + rows("1|He|he|PRON|PRP|_|2|nsubj|_|_"),
        tagged("He", "PRON"),
    ),
    "WNUT-17": (
        "wnut17train.conll",
        rows("@a|O", "ESB|B-location"),
        tagged("@a ESB", "O B-location"),
    ),
    "GermEval 2014": (
        "train.tsv",
        "#\tn-tv.de [2005]\n" + rows("1|Er|O|O", "2|Ulm|B-LOC|O"),
        tagged("Er Ulm", "O B-LOC"),
    ),
    "MultiCoNER": (
        "en_train.conll",
        "# id 4a\tdomain=en\nin _ _ O\nulm _ _ B-LOC\n\n",
        tagged("in ulm", "O B-LOC"),
    ),
    "Weibo NER": (
        "weibo.train",
        rows("老0|B-PER.NOM", "师1|I-PER.NOM", "2|O"),
        tagged("老 师 2", "B-PER.NOM I-PER.NOM O"),
    ),
    "BMES, Chinese words": (
        "train.txt",
        "我 S\n北 B\n京 E\n\n",
        tagged("我 北 京", "B-span B-span I-span"),
    ),
    "CLUENER": (
        "train.json",
        lines(
            {
                "text": "浙商银行叶老桂",
                "label": {"name": {"叶老桂": [[4, 6]]}, "company": {"浙商银行": [[0, 3]]}},
            }
        ),
        tagged(
            "浙 商 银 行 叶 老 桂", "B-company I-company I-company I-company B-name I-name I-name"
        ),
    ),
    "JSON Lines of tokens and tags": (
        "train.jsonl",
        lines({"id": "0", "tokens": ["Al", "Gore", "."], "ner_tags": [1, 2, 0]}),
        tagged("Al Gore .", "B-PER I-PER O"),
    ),
    "Label Studio, entities": (
        "export.json",
        json.dumps(
            [
                {
                    "data": {"text": "In Ulm."},
                    "annotations": [
                        {
                            "result": [
                                {
                                    "value": {
                                        "start": 3,
                                        "end": 6,
                                        "text": "Ulm",
                                        "labels": ["LOC"],
                                    },
                                    "type": "labels",
                                }
                            ]
                        }
                    ],
                }
            ]
        ),
        tagged("In Ulm .", "O B-LOC O"),
    ),
    "doccano, entities": (
        "all.jsonl",
        lines({"id": 1, "text": "In Ulm.", "label": [[3, 6, "LOC"]]}),
        tagged("In Ulm .", "O B-LOC O"),
    ),
    "Prodigy, entities": (
        "export.jsonl",
        lines({"text": "In Ulm.", "tokens": [], "spans": [{"start": 3, "end": 6, "label": "LOC"}]}),
        tagged("In Ulm .", "O B-LOC O"),
    ),
    "SQuAD 1.1": ("train-v1.1.json", squad(**RAIN), ASKED),
    "SQuAD 2.0": ("train-v2.0.json", squad(is_impossible=True), ("Why?", "It rains.", ())),
    "CMRC 2018, DRCD, XQuAD, MLQA": ("dev.json", squad(**RAIN, id="DEV_0_QUERY_0"), ASKED),
    "SQuAD, a question a line": (
        "train.jsonl",
        lines(
            {
                "id": "5",
                "title": "t",
                "context": "It rains.",
                "question": "Why?",
                "answers": {"text": ["rains"], "answer_start": [3]},
            }
        ),
        ASKED,
    ),
    "SWAG": (
        "train.csv",
        ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n0,v,One.,He,a,b,c,d,1\n",
        ("One.", None, ("He a", "He b", "He c", "He d"), 1),
    ),
    "HellaSwag": (
        "hellaswag_train.jsonl",
        lines(
            {
                "ind": 4,
                "ctx_a": "One.",
                "ctx_b": "then",
                "ctx": "One. then",
                "label": 1,
                "endings": ["a", "b"],
                "split": "train",
            }
        ),
        ("One. then", None, ("a", "b"), 1),
    ),
    "CODAH": ("full_data.tsv", rows("o|He|a|b|c|d|2"), ("He", None, ("a", "b", "c", "d"), 2)),
    "DREAM, C3": (
        "train.json",
        json.dumps([[["女:好"], [{"question": "Q?", "choice": ["a", "b"], "answer": "b"}], "1-1"]]),
        ("女:好", "Q?", ("a", "b"), 1),
    ),
    "RACE": (
        "high/1.txt",
        json.dumps(
            {
                "answers": ["B", "A"],
                "options": [["a", "b"], ["c", "d"]],
                "id": "high1.txt",
                "questions": ["Q?", "R?"],
                "article": "It is.",
            }
        ),
        ("It is.", "Q?", ("a", "b"), 1),
    ),
    "ARC, OpenBookQA, CommonsenseQA": (
        "ARC-Easy-Train.jsonl",
        lines(
            {
                "id": "M",
                "answerKey": "2",
                "question": {
                    "stem": "Q?",
                    "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}],
                },
            }
        ),
        ("Q?", None, ("a", "b"), 1),
    ),
    "ARC, choices as lists": (
        "train.jsonl",
        lines({"id": "M", "question": "Q?", "choices": ARC_LISTS, "answerKey": "B"}),
        ("Q?", None, ("a", "b"), 1),
    ),
    "COPA (SuperGLUE)": (
        "train.jsonl",
        lines(
            {
                "premise": "P.",
                "choice1": "a",
                "choice2": "b",
                "question": "cause",
                "label": 0,
                "idx": 0,
            }
        ),
        ("P.", "cause", ("a", "b"), 0),
    ),
    "WinoGrande": (
        "train_xl.jsonl",
        lines({"qID": "3", "sentence": "He _ it.", "option1": "a", "option2": "b", "answer": "2"}),
        ("He _ it.", None, ("a", "b"), 1),
    ),
    "PIQA with labels": (
        "train.jsonl",
        lines({"goal": "Q", "sol1": "a", "sol2": "b", "label": 1}),
        ("Q", None, ("a", "b"), 1),
    ),
    "Social IQa with labels": (
        "train.jsonl",
        lines(
            {
                "context": "C.",
                "question": "Q?",
                "answerA": "a",
                "answerB": "b",
                "answerC": "c",
                "label": "3",
            }
        ),
        ("C.", "Q?", ("a", "b", "c"), 2),
    ),
    "MMLU": (
        "anatomy_dev.csv",
        '"Q, then?",a,b,c,d,C\n',
        ("Q, then?", None, ("a", "b", "c", "d"), 2),
    ),
    "SciQ": (
        "train.json",
        json.dumps(
            [
                {
                    "question": "Q?",
                    "distractor3": "d",
                    "distractor1": "b",
                    "distractor2": "c",
                    "correct_answer": "a",
                    "support": "S.",
                }
            ]
        ),
        ("S.", "Q?", ("a", "b", "c", "d"), 0),
    ),
    "WikiQA, options in rows": (
        "WikiQA-train.tsv",
        rows(
            "QuestionID|Question|DocumentID|DocumentTitle|SentenceID|Sentence|Label",
            "Q0|None?|D|T|0|a|0",
            "Q0|None?|D|T|1|b|0",
            "Q1|Q?|D|T|0|c|0",
            "Q1|Q?|D|T|1|d|1",
        ),
        ("Q?", None, ("c", "d"), 1),
    ),
}


def understood(example: Any) -> tuple[Any, ...]:
    match example:
        case Text():
            return example.text, example.second, example.target
        case Tagged():
            return example.words, example.tags
        case Question():
            return example.question, example.context, example.answers
        case ChoiceExample():
            return example.context, example.question, example.options, example.target
    raise AssertionError(example)


def read(folder: Path, name: str, content: str | bytes, form: dict[str, Any]) -> list[Any]:
    """The examples of a file in `folder`; of an archive, those below the path inside of it."""
    archive, dot, _ = name.partition(".gz/")
    path = folder / (f"{archive}.gz" if dot else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    reader = validate(Block, {"format": form}).format
    files = matching([str(folder / name)], "data.train")
    return [example for file in files for example in reader.read(file, "train", Counter())]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout_loads_with_the_block_of_the_docs(name: str, tmp_path: Path) -> None:
    path, content, expected = LAYOUTS[name]
    first, *_ = read(tmp_path, path, content, BLOCKS[name])
    assert understood(first) == expected


def test_the_docs_have_a_block_for_each_layout_that_is_tested() -> None:
    assert BLOCKS.keys() == LAYOUTS.keys()
    assert len(BLOCKS) >= 40


def test_a_record_that_holds_several_examples_gives_each_with_its_place(tmp_path: Path) -> None:
    path, content, _ = LAYOUTS["RACE"]
    read_ = read(tmp_path, path, content, BLOCKS["RACE"])
    assert [each.where for each in read_] == ["1.txt:item 1.0", "1.txt:item 1.1"]
    assert [each.target for each in read_] == [1, 0]
    uneven = content.replace('"R?"', '"R?", "S?"')  # pyright: ignore
    with pytest.raises(DataError, match=r"lists of one length in questions, options, answers"):
        read(tmp_path, path, uneven, BLOCKS["RACE"])


DAMAGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an empty text": (
        BLOCKS["PAWS"],
        rows("id|sentence1|sentence2|label", "1||Two.|0", "2|One.|Two.|0"),
        "an_empty_text",
    ),
    "a label that is not stated": (
        BLOCKS["ANLI"],
        lines(*({"context": "a", "hypothesis": "b", "label": each} for each in "xe")),
        "their_label",
    ),
    "no JSON": (
        BLOCKS["doccano, classes"],
        '{"te\n{"text": "a", "label": "b"}\n',
        "what_is_no_json",
    ),
    "a field that is missing": (
        BLOCKS["doccano, classes"],
        '{"label": "b"}\n{"text": "a", "label": "b"}\n',
        "a_column_that_is_not_there",
    ),
    "a word without a tag": (
        BLOCKS["CoNLL-2003"],
        "EU X O\nUN X\n\nBonn X B-LOC\n",
        "a_line_with_other_columns",
    ),
    "a mark beyond the text": (
        BLOCKS["doccano, entities"],
        lines({"text": "a", "label": [[0, 9, "X"]]}, {"text": "a", "label": [[0, 1, "X"]]}),
        "a_mark_outside_of_the_text",
    ),
    "marks that overlap": (
        BLOCKS["doccano, entities"],
        lines({"text": "a b", "label": [[0, 3, "X"], [2, 3, "Y"]]}, {"text": "a", "label": []}),
        "marks_that_overlap",
    ),
    "a question without an answer": (
        BLOCKS["SQuAD 1.1"],
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "It rains.",
                                "qas": [
                                    {"id": "1", "question": "Who?", "answers": []},
                                    {"id": "2", "question": "Why?", **RAIN},
                                ],
                            }
                        ]
                    }
                ]
            }
        ),
        "want_of_an_answer",
    ),
    "a column of a label without 0 or 1": (
        BLOCKS["Toxic comments (Jigsaw)"],
        "comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate\n"
        "One.,-1,-1,-1,-1,-1,-1\nTwo.,0,0,0,0,0,0\n",
        "their_label",
    ),
    "no list of labels": (
        BLOCKS["Topics of a document, JSON Lines"],
        lines({"text": "a", "topics": None}, {"text": "a", "topics": []}),
        "their_label",
    ),
    "an answer that is no option": (
        BLOCKS["WinoGrande"],
        lines(
            *({"sentence": "s", "option1": "a", "option2": "b", "answer": each} for each in "01")
        ),
        "their_answer",
    ),
    "no right option": (
        BLOCKS["WikiQA, options in rows"],
        str(LAYOUTS["WikiQA, options in rows"][1]),
        "several_or_no_right_options",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_example_is_refused_or_left_out_and_counted(case: str, tmp_path: Path) -> None:
    form, content, reason = DAMAGED[case]
    with pytest.raises(DataError):
        read(tmp_path, "data.txt", content, form | {"on_error": "error"})
    (file,) = matching([str(tmp_path / "data.txt")], "data.train")
    counts: Counter[str] = Counter()
    reader = validate(Block, {"format": form | {"on_error": "drop"}}).format
    assert len(list(reader.read(file, "train", counts))) == 1
    assert counts == {f"examples_dropped_for_{reason}": 1}


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_an_archive_with_a_flipped_bit_is_refused(tmp_path: Path, packing: str) -> None:
    packed = tmp_path / f"a.tar.{packing}"
    content = random.Random(0).randbytes(200_000)
    mode: Any = f"w:{packing}"
    with tarfile.open(packed, mode) as archive:
        entry = tarfile.TarInfo("train.tsv")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    whole = packed.read_bytes()
    for place in (len(whole) // 2, len(whole) - 5):
        packed.write_bytes(
            whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :],
        )
        with pytest.raises(DataError, match=r"cannot be unpacked \(.*\); fetch it again"):
            matching([f"{packed}/train.tsv"], "data.train")


def test_a_file_of_an_archive_is_the_file_itself(tmp_path: Path) -> None:
    packed = tmp_path / "SST-2.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("SST-2/train.tsv", "SST-2/dev.tsv", "__MACOSX/SST-2/._dev.tsv"):
            archive.writestr(name, rows("sentence|label", f"{name}|1"))
    (file,) = matching([f"{packed}/SST-2/dev.tsv"], "data.train")
    with file.open() as stream:
        assert stream.read().startswith(b"sentence\tlabel\nSST-2/dev.tsv")
    every, some = (matching([f"{packed}{inside}"], "k") for inside in ("", "/SST-2/*in.tsv"))
    assert [f.name for f in every] == ["SST-2.zip/SST-2/dev.tsv", "SST-2.zip/SST-2/train.tsv"]
    assert [f.name for f in some] == ["SST-2.zip/SST-2/train.tsv"]
    assert digest([f"{packed}/SST-2/dev.tsv"], "k") != digest([f"{packed}/SST-2/train.tsv"], "k")
    with pytest.raises(ConfigError, match="no file matches"):
        matching([f"{packed}/SST-2/test.tsv"], "data.train")
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(DataError, match=r"SST-2\.zip: cannot be unpacked"):
        matching([str(packed)], "data.train")


# What a single example does not tell: which of two columns is the class, a header from a row, names
# of classes, another key than the one that is there.
NOT_GUESSED = {
    *("CoLA (GLUE)", "STS benchmark", "AG News", "SMS Spam Collection", "CODAH", "MMLU"),
    *("ANLI", "JSON Lines of tokens and tags", "TREC questions, coarse", "20 Newsgroups"),
    *("Movie review polarity, a file a class", "CSL (CLUE)", "SICK", "WikiQA, options in rows"),
    "XNLI, trained in English, tested in Swahili",
}


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - NOT_GUESSED))
def test_a_look_at_a_single_example_finds_how_to_read_it(name: str, tmp_path: Path) -> None:
    path, content, expected = LAYOUTS[name]
    read(tmp_path, path, content, BLOCKS[name])
    guess = look(str(tmp_path / path))
    assert understood(guess.examples[0]) == expected
    # What is printed is a block that reads the same.
    block = yaml.safe_load(told(path, guess))
    (first, *_) = read(tmp_path, path, content, block["format"])
    assert understood(first) == expected


@pytest.mark.parametrize("block", REAL, ids=lambda block: block.splitlines()[0][2:])
def test_a_look_at_real_files_reads_them_as_their_blocks_do(block: str) -> None:
    data = os.environ.get("RUNGWISE_DATA")
    config = yaml.safe_load(block)
    path = str(config["train"]).replace("data/", f"{data}/", 1)
    if data is None or not Path(path).exists():
        pytest.skip("set RUNGWISE_DATA to the folder of the published files")
    if Path(path).stat().st_size > 2e6 or path.endswith(("train.txt.gz", "train.gz")):
        pytest.skip("reading the whole of it takes seconds")
    reader = validate(Block, {"format": config["format"]}).format
    (file, *_) = matching([path], "data.train")
    counts: Counter[str] = Counter()
    guess, expected = look(path), islice(reader.read(file, "train", counts), 50)
    for found, example in zip(guess.examples, expected, strict=False):
        inputs = [understood(each)[:-1] for each in (found, example)]
        assert inputs[0] == inputs[1]


def test_what_nothing_reads_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\x00\x01\n")
    with pytest.raises(DataError, match="no format reads this"):
        look(str(tmp_path / "a.txt"))
    whole = gzip.compress(b"good\tit is good\n" * 99)
    for name, content, reason in (("b", b"not gzip", "an unsound"), ("c", whole[:40], "a cut-off")):
        (tmp_path / f"{name}.tsv.gz").write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.tsv\.gz: {reason} \.gz.*fetch"):
            look(str(tmp_path / f"{name}.tsv.gz"))


def test_a_header_that_lacks_the_name_of_the_first_column_is_no_header(tmp_path: Path) -> None:
    rows = "".join(f"{n}\tit is {word} {n}\t{word}\n" for n, word in enumerate(["good", "bad"] * 9))
    (tmp_path / "from_r.txt").write_text("review\topinion\n" + rows)
    guess = look(str(tmp_path / "from_r.txt"))
    assert (guess.form["columns"], guess.damaged) == ({"text": 1, "label": 2}, 1)


@pytest.mark.parametrize(
    "odd",
    [
        {"text": "a b", "label": {"X": {"a": [[]]}}},
        {"text": "a b", "label": {"X": {"a": 1}}},
        {"text": "a b", "label": {"X": {"a": [["0", "1"]]}}},
        {"text": "a b", "turns": [{"who": "a"}, "b"]},
    ],
)
def test_odd_json_is_looked_at_too(odd: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(odd))
    with pytest.raises(DataError, match="no format reads this"):
        look(str(tmp_path / "a.jsonl"))


def test_a_header_may_have_names_of_several_words(tmp_path: Path) -> None:
    rows = "".join(f'"it is {word}, and so on",{word}\n' for word in ("good", "bad") * 10)
    (tmp_path / "reviews.csv").write_text("Text of the review,Opinion\n" + rows)
    form = look(str(tmp_path / "reviews.csv")).form
    assert form["columns"] == {"text": "Text of the review", "label": "Opinion"}
    assert "header" not in form
