"""What `rungwise tasks` prints of whole data sets: a block that loads their own splits."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.tasks.data.files import load
from tests.conftest import Cli
from tests.task_cases import files_task, json_lines

WORDS = ("sea", "wind", "harbour", "storm", "gull", "rope", "deck", "lamp", "tide", "sand")


def prose(number: int) -> str:
    rng = random.Random(number)
    return " ".join(["the", *(rng.choice(WORDS) for _ in range(9)), str(number)])


def tsv(*rows: tuple[Any, ...]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def labelled(first: int, number: int, label: str | None = None) -> list[tuple[Any, ...]]:
    return [(prose(n), label or ("good", "bad")[n % 2]) for n in range(first, first + number)]


def tagged(first: int, number: int, end: str = "\n") -> str:
    """Sentences in two columns with hashtags and # as words; the first is #, #sea or an entity."""
    return "".join(
        "\n".join(
            [*["#\tO", "#sea\tO", "Ulm\tB-LOC", "#\tO", "#sea\tO"][n % 3 :][:3], f"{n}\tO", end]
        )
        for n in range(first, first + number)
    )


GLUE = ("sentence", "label")
# name: (path, {file: content}, examples of the splits, notes). None: as many as the shares give.
CASES: dict[str, tuple[str, dict[str, str], tuple[int | None, ...], list[str]]] = {
    "WNUT-17: lines of a tab, words that begin with #": (
        "wnut",
        {
            "wnut/wnut17train.conll": tagged(0, 300, "\t\n"),
            "wnut/emerging.dev.conll": tagged(300, 40),
            "wnut/emerging.test.annotated": tagged(340, 50),
            "wnut/README.md": "# The task\n\nTags are in IOB2.\n",
        },
        (300, 40, 50),
        ["left out, since the block does not read it or its name tells no split: README.md"],
    ),
    "tags of words that nearly all begin with #": (
        "tags.tsv",
        {
            "tags.tsv": "".join(
                "".join(f"#{w}{n}\tO\n" for w in WORDS) + "Ulm\tB-LOC\n\n" for n in range(60)
            )
        },
        (None, None, None),
        [],
    ),
    "span tags in a spelling that is not known": (
        "tags.tsv",
        {
            "tags.tsv": "".join(
                f"Ann\tB_PER\nLee\tI_PER\n{prose(n)[4:7]}{n}\tO\n\n" for n in range(90)
            )
        },
        (None, None, None),
        [],
    ),
    "GLUE: a test file without labels": (
        "glue",
        {
            "glue/train.tsv": tsv(GLUE, *labelled(0, 300)),
            "glue/dev.tsv": tsv(GLUE, *labelled(300, 50)),
            "glue/test.tsv": tsv(("index", "sentence"), *((n, prose(n)) for n in range(40))),
        },
        (None, None, 50),
        [
            "left out, since the block does not read it or its name tells no split: test.tsv",
            "no other file with labels is named as a test; validation is taken",
        ],
    ),
    "aclImdb: folders of classes below those of splits": (
        "aclImdb",
        {
            f"aclImdb/{split}/{label}/{n}_train.txt": prose(n + 500 * (split == "test"))
            for split, number in (("train", 30), ("test", 20))
            for label in ("neg", "pos")
            for n in range(number * (label == "pos"), number * (1 + (label == "pos")))
        },
        (None, None, 40),
        [],
    ),
    "a table sorted by its labels": (
        "sorted.tsv",
        {"sorted.tsv": tsv(*labelled(0, 1500, "good"), *labelled(1500, 1500, "bad"))},
        (None, None, None),
        [],
    ),
}
TOTALS = {"tags": 60, "a table": 3000, "GLUE": 350, "aclImdb": 100}


@pytest.mark.parametrize("case", CASES)
def test_the_block_that_is_printed_loads_the_data_with_its_own_splits(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    path, files, expected, notes = CASES[case]
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    printed = cli("tasks", path)
    for note in notes:
        assert f"# {note}" in printed
    assert "skipped" not in printed
    (block,) = yaml.safe_load(printed)["tasks"].values()
    task = load(files_task(block["data"]))
    numbers = tuple(len(task.splits[split]) for split in ("train", "validation", "test"))
    assert all(e in (None, n) and n for e, n in zip(expected, numbers, strict=True)), numbers
    total = next((number for name, number in TOTALS.items() if case.startswith(name)), None)
    assert total in (None, sum(numbers))
    if case.startswith("WNUT"):
        words = [word for e in task.splits["train"] for word in e.words]
        assert (len(words), words.count("#"), words.count("#sea")) == (1200, 300, 300)
    if case.startswith("a table"):
        assert task.info.labels == ("bad", "good")


def table(*labels: Any, count: int = 60) -> list[tuple[Any, ...]]:
    """Texts with these labels in turns."""
    return [(prose(n), labels[n % len(labels)]) for n in range(count)]


LABEL = ("text", "label")
BY_LABEL = {"columns": {"text": "text", "label": "label"}}
HALVES = "labels: x: 30 (50%), y: 30 (50%)"


@pytest.mark.parametrize(
    ("header", "rows", "format_", "said"),
    [
        (
            ("review_id", "word", "class"),
            [(f"A{n:07d}-{n}", f"{WORDS[n % 3]} {n}", ("x", "y")[n % 2]) for n in range(60)],
            {"columns": {"text": "word", "label": "class"}},
            "labels: x: 30 (50%), y: 30 (50%)",
        ),
        (
            LABEL,
            table("", "x", "", "y"),
            BY_LABEL | {"skip_labels": [""]},
            "labels: x: 15 (50%), y: 15 (50%)",
        ),
        (
            LABEL,
            table("1.0", "0.0", ""),
            BY_LABEL | {"skip_labels": [""]},
            "labels: 1.0: 20 (50%), 0.0: 20 (50%)",
        ),
        (LABEL, table("x", "y ", " y", "x"), BY_LABEL, HALVES),
        (
            ("Texte", "\u00c9tiquette"),
            table("x", "y"),
            {"columns": {"text": "Texte", "label": "\u00c9tiquette"}},
            HALVES,
        ),
        (
            LABEL,
            [(f"caf\u00c3\u00a9 {text}", label) for text, label in table("x", "y")],
            None,
            "60 places look like UTF-8 read in another encoding, such as \u00c3\u00a9 for \u00e9",
        ),
        (
            LABEL,
            [(f"caf\ufffd {text}", label) for text, label in table("x", "y")],
            None,
            "60 characters were lost before",
        ),
    ],
)
def test_columns_that_are_taken_and_what_they_hold_are_said(
    header: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    format_: dict[str, Any] | None,
    said: str,
    tmp_path: Path,
    cli: Cli,
) -> None:
    (tmp_path / "a.tsv").write_text(tsv(header, *rows))
    printed = cli("tasks", str(tmp_path / "a.tsv"))
    assert any(line.startswith("#") and said in line for line in printed.splitlines())
    (block,) = yaml.safe_load(printed)["tasks"].values()
    if format_:
        assert block["data"]["format"] == {"kind": "table", **format_}
    assert load(files_task(block["data"])).splits["train"]


def test_a_single_label_is_said(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a.jsonl").write_text(
        json_lines(*({"text": prose(n), "label": "x"} for n in range(9)))
    )
    said = cli("tasks", str(tmp_path / "a.jsonl"))
    assert "all examples have one label, 'x'; a task needs two" in said
