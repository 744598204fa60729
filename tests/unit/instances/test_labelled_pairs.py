"""Pairs of a task, labelled or aligned: by the recipe's tokenizer, whole or counted as cut."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.instances import building
from rungwise.instances.batch import LabelledPairs
from rungwise.instances.building import ShardTask, list_orders
from rungwise.instances.inspection import describe_row
from rungwise.instances.kind import Facts
from rungwise.instances.masking import Vocabulary
from rungwise.instances.reader import InstanceReader
from rungwise.instances.shards import Shard, pad_rows
from rungwise.instances.texts import AlignedLinesConfig, LabelledPairsConfig, TextPairsKind
from rungwise.pipeline.recipe import Recipe
from rungwise.tasks.config import TaskTokensConfig
from rungwise.tasks.data import task_text
from rungwise.tasks.data.task_text import encode_pairs
from rungwise.tasks.kinds.examples import Kind, TaskInfo, Text, write_examples
from rungwise.tokenizer import load_tokenizer
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, TrainedConfig, WordPieceConfig
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile
from tests.conftest import made_up_sentences, small_recipe
from tests.report_pages import tokenizer_summary
from tests.summaries import standing, task_of

LABELS = ("contradiction", "entailment", "neutral")
TOKENIZERS: list[TrainedConfig] = [
    WordPieceConfig(vocab_size=200, min_frequency=1),
    ByteBpeConfig(vocab_size=400, min_frequency=1),
]


def examples_of(seed: int, count: int, labels: tuple[str, ...] = LABELS) -> list[Text]:
    """Pairs of texts of one to four sentences."""
    rng = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(made_up_sentences(int(rng.integers(1000)), int(rng.integers(1, 5))))

    return [
        Text(f"train.tsv:{seed}{number}", text(), text(), labels[rng.integers(len(labels))])
        for number in range(count)
    ]


def tokenizer_of(folder: Path, config: TrainedConfig) -> Artifact:
    tokenizer = train(config, made_up_sentences(0, 200))
    with Folder.at(folder).staged("tokenizer.json") as path:
        tokenizer.save(str(path))
    return standing("tokenizer", folder, tokenizer_summary(tokenizer, config.kind))


def tokens_of(
    folder: Path,
    splits: dict[str, list[Text]],
    tokenizer: Artifact,
    kind: Kind = "classification",
    pair: bool = True,
    labels: tuple[str, ...] = LABELS,
) -> Artifact:
    """The tokens of a task with these examples; nobody can read its test split."""
    output = Folder.at(folder / "task")
    for split, examples in splits.items():
        write_examples(examples, output, split)
    output.write_bytes("test.parquet", b"not to be opened")
    inputs = {
        "task": task_of(output, TaskInfo(kind, labels, pair, "accuracy")),
        "tokenizer": tokenizer,
    }
    tokens = Folder.at(folder / "tokens")
    summary = encode_pairs(TaskTokensConfig(), inputs, tokens, Context())
    return standing("task_tokens", tokens, summary)


@pytest.mark.parametrize("tokenizer_config", TOKENIZERS, ids=lambda config: config.kind)
@pytest.mark.parametrize(("seed", "most"), [(1, 5), (2, 12), (3, 200)])
def test_rows_are_those_of_a_slow_builder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer_config: TrainedConfig,
    seed: int,
    most: int,
) -> None:
    monkeypatch.setattr(task_text, "_PAIRS_PER_FILE", 20)
    splits = {"train": examples_of(seed, 50), "validation": examples_of(seed + 10, 30)}
    tokenizer = tokenizer_of(tmp_path / "tokenizer", tokenizer_config)
    tokens = tokens_of(tmp_path, splits, tokenizer)
    summary, library = TokensSummary.of(tokens), load_tokenizer(tokenizer.folder)
    assert summary.labels == LABELS
    assert (summary.documents.train, summary.documents.validation) == (50, 30)
    config, output = LabelledPairsConfig(sentence_length=most), Folder.at(tmp_path / "instances")
    task = ShardTask(
        config, tokens.folder, output, summary.vocab_size, summary.special, summary.labels
    )
    rows = [task(order) for order in list_orders(config, summary.files)]
    assert [row["instances"] for row in rows] == [20, 20, 10, 20, 10]
    instances = building._summary(config, summary, rows)
    artifact = standing("instances", output, instances, config.model_dump(mode="json"))
    cut = 0
    for split, examples in splits.items():
        reader = InstanceReader(artifact, split)
        # Any order, from several shards, as when a job goes on with other workers.
        order = np.random.default_rng(seed).permutation(len(examples))
        batch: Any = reader.batch(order, np.zeros_like(order), 0)
        for place, example in enumerate(examples[number] for number in order):
            ids = [library.encode(part, add_special_tokens=False).ids for part in example.parts]
            cut += sum(max(0, len(each) - most) for each in ids)
            texts = [each[:most] for each in ids]
            assert pair_of(batch, place) == (texts, LABELS.index(str(example.target)))
    statistics, everything = instances.statistics, [*splits["train"], *splits["validation"]]
    counts = [sum(example.target == label for example in everything) for label in LABELS]
    assert [statistics[f"label_{number}"] for number in range(3)] == counts
    assert statistics["labels"] == 3
    assert statistics["largest_label_share"] == max(counts) / 80
    assert statistics["tokens_unused"] == cut
    assert (instances.labels, instances.instances.train) == (LABELS, 50)
    assert "  3 labels, " in instances.headline


def read_batch(config: TextPairsKind, shard: Shard, vocabulary: Vocabulary) -> Any:
    rows = np.arange(len(shard))
    return config.batch(pad_rows(shard, rows, rows, config.width, 0), rows, 0, vocabulary)


def pair_of(batch: LabelledPairs[Any], row: int) -> tuple[list[list[int]], int]:
    texts = zip(batch.ids[row], batch.lengths[row], strict=True)
    columns = np.arange(batch.ids.shape[2])
    assert not batch.ids[row][columns >= batch.lengths[row][:, None]].any()
    return [ids[:length].tolist() for ids, length in texts], int(batch.label[row])


def test_aligned_lines_are_the_texts_of_a_task_and_those_to_write(tmp_path: Path) -> None:
    """Each line by the tokenizer's library; either kind refuses the other's task."""
    tokenizer = tokenizer_of(tmp_path / "tokenizer", TOKENIZERS[0])
    made = examples_of(3, 20)
    lines = [Text(each.where, each.text, None, each.second) for each in made]
    splits = {"train": lines, "validation": lines[:4]}
    tokens = tokens_of(tmp_path, splits, tokenizer, "generation", pair=False, labels=())
    summary, config = TokensSummary.of(tokens), AlignedLinesConfig(sentence_length=9)
    assert summary.headline.startswith("24 pairs  ")
    text = TokensFile(tokens.folder.local("train-00000.arrow")).text()
    rng, library = np.random.default_rng(0), load_tokenizer(tokenizer.folder)
    shard = config.build(text, summary.special, rng).shard
    vocabulary = Vocabulary(summary.vocab_size, summary.special, summary.labels)
    batch = read_batch(config, shard, vocabulary)
    for row, example in enumerate(lines):
        for ids, length, part in zip(
            batch.ids[row], batch.lengths[row], (example.text, str(example.target)), strict=True
        ):
            expected = library.encode(part, add_special_tokens=False).ids[:9]
            assert ids[:length].tolist() == expected
    assert (
        config.check(shard, Facts("s", summary.vocab_size, summary.special, 0))["instances"] == 20
    )
    with pytest.raises(
        DataError, match=r"labelled_pairs need a task with one label .* take aligned"
    ):
        LabelledPairsConfig().build(text, summary.special, rng)
    labelled = tokens_of(tmp_path / "labelled", {"train": made, "validation": made}, tokenizer)
    other = TokensFile(labelled.folder.local("train-00000.arrow")).text()
    with pytest.raises(DataError, match=r"aligned_lines need a task with a text to write"):
        config.build(other, summary.special, rng)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shard, Facts, Vocabulary]:
    folder = tmp_path_factory.mktemp("pairs")
    tokenizer = tokenizer_of(folder / "tokenizer", TOKENIZERS[0])
    examples = {"train": examples_of(4, 40), "validation": examples_of(5, 5)}
    tokens = tokens_of(folder, examples, tokenizer)
    summary = TokensSummary.of(tokens)
    text = TokensFile(tokens.folder.local("train-00000.arrow")).text()
    built = CONFIG.build(text, summary.special, np.random.default_rng(0))
    return (
        built.shard,
        Facts("s", summary.vocab_size, summary.special, 0, labels=3),
        Vocabulary(summary.vocab_size, summary.special, summary.labels),
    )


CONFIG = LabelledPairsConfig(sentence_length=30)


def test_a_row_is_shown_with_its_label_in_words(shard: tuple[Shard, Facts, Vocabulary]) -> None:
    built, _, vocabulary = shard
    rows = pad_rows(built, np.arange(9), np.arange(9), CONFIG.width, 0)
    (first, second), label = pair_of(read_batch(CONFIG, built, vocabulary), 3)
    assert [*describe_row(rows, 3, vocabulary)] == [
        f"{len(first) + len(second)} tokens",
        f"first_length: {len(first)}",
        f"label: {LABELS[label]}",
    ]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("first_length", 0, "tokens of a text must be at least 1"),
        ("first_length", 31, "tokens of a text must be at most 30"),
        ("label", 3, "largest label must be below 3"),
    ],
)
def test_a_broken_pair_is_caught(
    shard: tuple[Shard, Facts, Vocabulary], column: str, value: int, message: str
) -> None:
    built, facts, _ = shard
    values = built.columns[column].copy()
    values[np.argmax(built.lengths)] = value
    broken = dataclasses.replace(built, columns={**built.columns, column: values})
    with pytest.raises(DataError, match=message):
        CONFIG.check(broken, facts)


def test_a_pair_of_which_a_text_has_no_tokens_is_left_out_and_counted(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path / "tokenizer", TOKENIZERS[0])
    train = examples_of(8, 10)
    for number, (text, second) in {2: ("\u200b", "a"), 5: ("a", " \t"), 9: (" ", " ")}.items():
        train[number] = dataclasses.replace(train[number], text=text, second=second)
    tokens = tokens_of(tmp_path, {"train": train, "validation": examples_of(9, 4)}, tokenizer)
    summary = TokensSummary.of(tokens)
    assert summary.documents.train == 7
    assert summary.headline.startswith("11 pairs  3 labels")
    assert summary.headline.endswith("3 pairs left out for a text without tokens")
    labels = TokensFile(tokens.folder.local("train-00000.arrow")).text().labels
    assert labels is not None
    kept = [example for number, example in enumerate(train) if number not in (2, 5, 9)]
    assert labels.tolist() == [LABELS.index(str(example.target)) for example in kept]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair": False}, "to write for another, found one of 3 labels for a text;"),
        ({"kind": "regression"}, "found a number for a pair of texts;"),
        ({"kind": "multilabel"}, "found which of 3 labels a pair of texts has;"),
    ],
)
def test_another_task_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    tokenizer = tokenizer_of(tmp_path / "tokenizer", TOKENIZERS[0])
    splits = {"train": examples_of(1, 20), "validation": examples_of(2, 5)}
    with pytest.raises(DataError, match=message):
        tokens_of(tmp_path, splits, tokenizer, **changes)


def recipe_of(folder: Path, **changes: Any) -> dict[str, Any]:
    for name in ("text.txt", "pairs.tsv"):
        (folder / name).write_text("a\tb\tyes\n")
    form = {"kind": "table", "columns": {"text": 0, "second": 1, "label": 2}, "header": False}
    task = {
        "kind": "files",
        "format": form,
        "train": str(folder / "pairs.tsv"),
        "validation_fraction": 0.1,
        "test_fraction": 0.1,
    }
    labelled = {"instances": {"kind": "labelled_pairs"}, "steps": [{"task": task}]}
    return small_recipe(folder, folder / "text.txt", **labelled) | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": []}, "are those of a task; write a step with a task"),
        ({"instances": {"kind": "causal"}}, "a step with a task reads its labelled pairs or its"),
    ],
)
def test_labels_without_a_task(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Recipe, recipe_of(tmp_path, **changes))
