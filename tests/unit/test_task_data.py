"""Every block of docs/reference/tasks.md, on the real files where they are there."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rungwise.core.configuration.config import Config, validate
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.tasks.config import FilesTaskConfig, TaskConfig, split_files
from rungwise.tasks.data import files
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import read_examples
from rungwise.tasks.kinds.tagging import marks_spans
from rungwise.tasks.stage import build_task
from tests.conftest import REPOSITORY
from tests.summaries import standing

PAGE = (REPOSITORY / "docs" / "reference" / "tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
REAL = {
    block.partition("\n")[0].removeprefix("# "): block for block in BLOCKS if "data/tasks/" in block
}
# Hundreds of thousands of words with a tag each, and two million characters.
SLOW = [name for name in REAL if name.startswith(("MSRA", "CoNLL", "IMDB"))]

# Examples by file, as the README of the data has them.
COUNTS = {
    "en/AG_NEWS/test.csv": 7600,
    "en/CODAH/fold_0/dev.tsv": 556,
    "en/CODAH/fold_0/test.tsv": 555,
    "en/CODAH/fold_0/train.tsv": 1665,
    "en/CODAH/full_data.tsv": 2776,
    "en/CoLA/in_domain_dev.tsv": 527,
    "en/CoLA/in_domain_train.tsv": 8551,
    "en/CoLA/out_of_domain_dev.tsv": 516,
    "en/CoNLL-2000/test.txt": 2012,
    "en/CoNLL-2000/train.txt.gz": 8936,
    "en/CoNLL-2003/eng.testa": 3250,
    "en/CoNLL-2003/eng.testb": 3453,
    "en/CoNLL-2003/eng.train.gz": 14041,
    "en/DREAM/dev.json": 2040,
    "en/DREAM/test.json": 2041,
    "en/DREAM/train.json.gz": 6116,
    "en/IMDB/test.jsonl.gz": 24999,
    "en/IMDB/train.jsonl.gz": 24998,
    "en/MNLI/dev.csv.gz": 19647,
    "en/MPQA/mpqa.neg": 7292,  # and two blank lines
    "en/MPQA/mpqa.pos": 3311,  # and a blank line
    "en/MR/rt-polarity.neg": 5331,
    "en/MR/rt-polarity.pos": 5331,
    "en/MRPC/msr_paraphrase_test.txt": 1725,
    "en/MRPC/msr_paraphrase_train.txt": 4076,
    "en/QNLI/dev.tsv": 4755,
    "en/SICK/SICK_test_annotated.txt": 4927,
    "en/SICK/SICK_train.txt": 4500,
    "en/SICK/SICK_trial.txt": 500,
    "en/SNLI/dev.csv": 9831,
    "en/SQuAD-v1.1/xquad.en.json": 778,
    "en/SQuAD-v2.0/dev-v2.0.json": 3708,
    "en/SST-2/dev.tsv": 872,
    "en/SST-2/test.tsv": 1821,
    "en/SST-2/train.tsv": 6920,
    "en/SST-5/stsa.fine.dev": 1101,
    "en/SST-5/stsa.fine.test": 2210,
    "en/SST-5/stsa.fine.train": 8544,
    "en/STS-B/stsb-en-dev.csv": 1500,
    "en/STS-B/stsb-en-test.csv": 1379,
    "en/STS-B/stsb-en-train.csv": 5749,
    "en/STS12-16/2012": 2358,
    "en/STS12-16/2013": 1500,
    "en/STS12-16/2014": 3750,
    "en/STS12-16/2015": 8500,
    "en/STS12-16/2016": 9183,
    "en/UD_English-EWT/en_ewt-ud-dev.conllu": 2001,
    "en/UD_English-EWT/en_ewt-ud-test.conllu": 2077,
    "multi/SIB-200/en.train.jsonl.gz": 803,
    "multi/SIB-200/en.valid.jsonl.gz": 201,
    "multi/SIB-200/zh.train.jsonl.gz": 803,
    "multi/SIB-200/zh.valid.jsonl.gz": 201,
    "multi/XNLI/en.train.jsonl.gz": 8000,
    "multi/XNLI/en.valid.jsonl.gz": 2000,
    "multi/XNLI/zh.train.jsonl.gz": 8000,
    "multi/XNLI/zh.valid.jsonl.gz": 2000,
    "zh/CMRC2018/cmrc2018_dev.json.gz": 3219,
    "zh/ChnSentiCorp/dev.tsv": 1200,
    "zh/ChnSentiCorp/test.tsv": 1200,
    "zh/ChnSentiCorp/train.tsv.gz": 9600,
    "zh/FewCLUE/bustm/dev_few_all.json": 160,
    "zh/FewCLUE/bustm/test_public.json": 1772,
    "zh/FewCLUE/bustm/train_few_all.json": 160,
    "zh/MSRA-NER/msra_test_bio.txt": 3442,
    "zh/MSRA-NER/train.txt.gz": 52912,
    "zh/SQuAD-v1.1/xquad.zh.json": 778,
    "zh/THUCNews/dev.txt": 10000,
    "zh/THUCNews/test.txt": 10000,
}
# Labels by data set and split, from the same README.
LABELS = {
    ("CoLA", "train"): {"acceptable": 6023, "unacceptable": 2528},
    ("SST-2", "train"): {"positive": 3610, "negative": 3310},
    ("SST-2", "validation"): {"positive": 444, "negative": 428},
    ("SST-2", "test"): {"positive": 909, "negative": 912},
    ("MRPC", "test"): {"equivalent": 1147, "not_equivalent": 578},
}
# Tokens, and entities as counted by Tjong Kim Sang and De Meulder 2003, table 2.
CONLL_2003 = {
    "train": (203_621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
    "validation": (51_362, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
    "test": (46_435, {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}),
}
WORDS = {"CoNLL-2000, chunks": (211_727, 47_377), "UD English EWT": (25_147, 25_094)}


class Block(Config):
    task: TaskConfig


def block(name: str, real_data: Path) -> FilesTaskConfig:
    """The block that begins with `# name`, with the paths of the real files."""
    (text,) = (text for title, text in REAL.items() if title.startswith(name))
    data = yaml.safe_load(text.replace("data/tasks/", f"{real_data}/tasks/"))
    config = validate(Block, {"task": data}).task
    assert isinstance(config, FilesTaskConfig)
    return config


def in_file(config: FilesTaskConfig, split: str) -> int:
    """The number of examples in the files of a split; a folder is counted as a whole."""
    names = {file.uri.partition("/tasks/")[2] for file in split_files(config, split)}
    return sum(COUNTS[name] for name in {n if n in COUNTS else str(Path(n).parent) for n in names})


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.partition("\n")[0])
def test_a_block_of_the_reference_is_a_task(text: str) -> None:
    validate(Block, {"task": yaml.safe_load(text)})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in REAL]
)
def test_a_block_of_the_reference_reads_the_real_files_whole(
    name: str, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stand-in for the baselines, which have tests of their own.
    for kind in KINDS.values():
        monkeypatch.setattr(kind, "baselines", lambda *_: {})
    config = block(name, real_data)
    output = Folder.at(tmp_path)
    summary = build_task(config, {}, output, Context())
    task = standing("task", output, summary)
    splits = {split: read_examples(task, split) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in splits.items()} == summary.examples.model_dump()
    counts: dict[str, int] = Counter()
    for split, number in summary.examples:
        counts[split if split in config.paths() else "train"] += number
    dropped = Counter[str]()
    if name.startswith("CMRC"):
        # 200 answers of 9,657; three questions have no other.
        assert summary.irregular["train"] == {
            "answers_dropped_for_not_being_in_the_context": 200,
            "examples_dropped_for_want_of_an_answer": 3,
        }
        dropped["train"] = 3
    for split, reasons in summary.irregular.items():
        dropped[split] += reasons.get("rows_dropped_for_their_label", 0)
    assert counts == {split: in_file(config, split) - dropped[split] for split in config.paths()}
    for (start, split), labels in LABELS.items():
        if name.startswith(start):
            assert Counter(e.target for e in splits[split]) == labels


def test_every_file_of_the_real_tasks_is_in_a_block(real_data: Path) -> None:
    folder = real_data / "tasks"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    read_by_blocks = {
        file.uri.partition("/tasks/")[2]
        for name in REAL
        for config in [block(name, real_data)]
        for split in config.paths()
        for file in split_files(config, split)
    }
    # Minimal pairs and senses are no task to fine-tune on.
    probed = ("en/BLiMP/", "en/CoarseWSD-20/", "zh/ZhoBLiMP/")
    left = {path for path in there - read_by_blocks if not path.startswith(probed)}
    assert left == {"en/IMDB/unsup.jsonl.gz", "zh/THUCNews/class.txt"}
    names = (folder / "zh/THUCNews/class.txt").read_text().split()
    assert list(block("THUCNews", real_data).format.stated_labels) == names


def test_the_entities_of_conll_2003_are_as_many_as_its_authors_counted(real_data: Path) -> None:
    config = block("CoNLL-2003", real_data)
    task = files.load(config)
    assert task.info.metric == "f1"
    for split, (tokens, entities) in CONLL_2003.items():
        assert len(task.splits[split]) == in_file(config, split)
        tags = [tag for e in task.splits[split] for tag in e.tags]
        assert len(tags) == tokens
        assert Counter(tag[2:] for tag in tags if tag.startswith("B-")) == entities


@pytest.mark.parametrize(
    "name", [pytest.param("CoNLL-2000, chunks", marks=pytest.mark.slow), "UD English EWT"]
)
def test_words_are_as_many_as_the_data_has(name: str, real_data: Path) -> None:
    task = files.load(block(name, real_data))
    train, test = WORDS[name]
    assert sum(len(e.words) for s in ("train", "validation") for e in task.splits[s]) == train
    assert sum(len(e.words) for e in task.splits["test"]) == test
    assert marks_spans(task.info.labels) == (name != "UD English EWT")


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("STS-B", {"header": None}, (0, 1, 2)),
        ("SNLI", {}, ("premise", "hypothesis", "label")),
        ("AG News", {"header": None}, (1, 2, 0)),
        (
            "MRPC",
            {"sep": "\t", "quoting": csv.QUOTE_NONE, "encoding": "utf-8-sig"},
            ("#1 String", "#2 String", "Quality"),
        ),
        (
            "QNLI",
            {"sep": "\t", "quoting": csv.QUOTE_NONE},
            ("question", "sentence", "label"),
        ),
    ],
)
def test_tables_are_read_as_pandas_reads_them(
    name: str, options: dict[str, Any], columns: tuple[Any, ...], real_data: Path
) -> None:
    config = block(name, real_data)
    splits = files.load(config).splits
    examples = [
        e for split, rows in splits.items() if split not in config.paths() for e in rows
    ] + splits["train"]
    frame = pd.read_csv(config.train[0], dtype=str, keep_default_na=False, **options)
    rows = frame[list(columns)].itertuples(index=False, name=None)
    given = getattr(config.format, "labels", None) or getattr(
        getattr(config.format, "table", None), "labels", None
    )
    names = given if isinstance(given, dict) else {}
    expected = Counter(
        (text, second, float(target) if name == "STS-B" else names.get(target, target))
        for text, second, target in rows
    )
    assert Counter((e.text, e.second, e.target) for e in examples) == expected


def test_every_answer_of_the_real_questions_stands_at_its_place(real_data: Path) -> None:
    impossible = 0
    for name in ("SQuAD 1.1", "SQuAD 2.0", "CMRC", "XQuAD"):
        for rows in files.load(block(name, real_data)).splits.values():
            for e in rows:
                for answer in e.answers:
                    assert e.context[answer.start : answer.start + len(answer.text)] == answer.text
                impossible += not e.answers
    assert impossible == 1987
