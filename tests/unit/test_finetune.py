"""Fine-tuning, the task made from a corpus, statistics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats

from rungwise.artifact import Artifact
from rungwise.context import Context
from rungwise.corpus.document import SCHEMA, digest_of
from rungwise.errors import DataError
from rungwise.evaluation.statistics import estimate, paired_difference
from rungwise.finetune import (
    Encoded,
    FinetuneConfig,
    TaskData,
    build,
    evaluate,
    finetune,
    pad,
    predict_logits,
)
from rungwise.models.bert import BertConfig, BertForPretraining
from rungwise.storage import Folder
from rungwise.tasks.paragraphs import TaskConfig, hide_name, read, run

SHAPE = BertConfig(
    num_layers=1, num_heads=2, hidden_size=16, intermediate_size=32, max_position_embeddings=32
)


def data(examples: int = 64, next_sentence: bool = True) -> TaskData:
    """Two labels that one word tells apart, among other words."""
    rng = np.random.default_rng(0)
    splits = {}
    for split in ("train", "validation", "test"):
        labels = rng.integers(0, 2, size=examples)
        rows = [
            [2, *rng.integers(10, 40, size=rng.integers(2, 9)).tolist(), 5 + int(label), 3]
            for label in labels
        ]
        splits[split] = Encoded(rows, labels)
    torch.manual_seed(0)
    pretrained = BertForPretraining(SHAPE, 40, next_sentence=next_sentence)
    return TaskData(splits, 2, 40, SHAPE, dict(pretrained.state_dict()))


def test_a_separable_task_is_learned_and_scored_on_each_split() -> None:
    config = FinetuneConfig(learning_rate=0.01, batch_size=8, epochs=8, pooling="mean", dropout=0)
    seen: list[int] = []
    task = data()
    model = finetune(config, task, "random", 0, lambda epoch, metrics: seen.append(epoch))
    assert seen == list(range(1, 9))
    scores = evaluate(model, task.splits["test"])
    assert scores.accuracy > 0.9
    assert scores.accuracy == (scores.predictions == task.splits["test"].labels).mean()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    config = FinetuneConfig(learning_rate=0.01, batch_size=8, epochs=1)
    task = data()

    def trained(seed: int) -> torch.Tensor:
        return finetune(config, task, "pretrained", seed, lambda *_: None).classifier.weight

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_pretrained_starts_from_the_pretrained_encoder_and_random_does_not(
    pooling: str, next_sentence: bool
) -> None:
    config = FinetuneConfig(pooling=pooling)  # type: ignore[arg-type]
    task = data(next_sentence=next_sentence)
    name = "bert.token_embedding.weight"
    loaded = build(config, task, "pretrained").state_dict()[name]
    assert torch.equal(loaded, task.encoder[name])
    assert not torch.equal(build(config, task, "random").state_dict()[name], task.encoder[name])


def test_predictions_do_not_depend_on_the_other_rows() -> None:
    task = data()
    model = build(FinetuneConfig(pooling="mean"), task, "pretrained")
    rows = task.splits["test"].ids
    together = predict_logits(model, rows)
    for index in (0, 7, 20):
        alone = predict_logits(model, [rows[index]])
        assert torch.allclose(together[index], alone[0], atol=1e-5)


def test_pad_gives_lengths_only_where_they_differ() -> None:
    ids, lengths = pad([[1, 2], [3, 4]])
    assert lengths is None
    assert ids.tolist() == [[1, 2], [3, 4]]
    ids, lengths = pad([[1], [3, 4]])
    assert lengths is not None
    assert lengths.tolist() == [1, 2]
    assert ids.tolist() == [[1, 0], [3, 4]]


def corpus(folder: Path, paragraphs: int = 6) -> Artifact:
    """Three libraries of ten modules; one boilerplate paragraph stands in all of them."""
    files = []
    for split, modules in (("train", range(10)), ("validation", range(10, 16))):
        rows = []
        for label, fruit in (("alpha", "apples"), ("beta", "pears"), ("gamma", "plums")):
            for module in modules:
                sentences = [
                    f"The {label} library and module {module} of kind {p} does what "
                    f"{label.title()} says it does with {fruit} and nothing else at all."
                    for p in range(paragraphs)
                ]
                sentences.append(
                    "Licensed under the same licence as all of the other files are here."
                )
                rows.append(
                    {
                        "id": f"{label}.{module}",
                        "label": label,
                        "digest": digest_of(sentences),
                        "sentences": sentences,
                        "paragraph_starts": list(range(len(sentences))),
                        "spans": [[] for _ in sentences],
                    }
                )
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / f"{split}-00000.parquet")
        files.append({"file": f"{split}-00000.parquet", "split": split, "documents": len(rows)})
    return Artifact("corpus", "c" * 12, Folder.at(folder), {"summary": {"files": files}})


def test_the_task_is_balanced_hides_the_name_and_shares_no_document_or_text(tmp_path: Path) -> None:
    config = TaskConfig(
        num_labels=3, train_per_label=8, validation_per_label=5, test_per_label=10, minimum_words=5
    )
    output = Folder.at(tmp_path / "task")
    summary = run(config, {"corpus": corpus(tmp_path / "corpus")}, output, Context())
    task = Artifact("task", "t" * 12, output, {"summary": summary})
    splits = {split: read(task, split) for split in ("train", "validation", "test")}
    assert summary["labels"] == ["alpha", "beta", "gamma"]
    assert {split: len(rows) for split, rows in splits.items()} == summary["examples"]
    seen: set[str] = set()
    for split, rows in splits.items():
        counts = np.bincount([row.label for row in rows])
        assert len(set(counts)) == 1, split
        for row in rows:
            assert summary["labels"][row.label] not in row.text.lower()
            assert "Licensed" not in row.text
        documents = {row.document for row in rows} | {row.text for row in rows}
        assert not documents & seen
        seen |= documents
    assert {int(row.document.split(".")[1]) >= 10 for row in splits["test"]} == {True}


def test_too_few_paragraphs_are_refused_with_what_was_found(tmp_path: Path) -> None:
    config = TaskConfig(num_labels=3, test_per_label=500, minimum_words=5)
    with pytest.raises(DataError, match=r"task\.num_labels is 3, but only 0 labels.*Found"):
        run(config, {"corpus": corpus(tmp_path / "c")}, Folder.at(tmp_path / "t"), Context())


def test_hiding_a_name_leaves_longer_words_alone() -> None:
    assert hide_name("Ray, ray.data and array or RAY_x", "ray") == (
        "library, library.data and array or library_x"
    )


def test_an_interval_is_students_t_worked_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    # mean 2.5, standard deviation 1.29099, t(0.975, 3) = 3.18245
    assert found.mean == 2.5
    assert found.high - found.mean == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_a_paired_difference_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 12), rng.normal(0, 1, 12)
    found = paired_difference(first.tolist(), second.tolist())
    reference = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        found = estimate(rng.normal(3, 2, 5).tolist())
        hits += found.low <= 3 <= found.high
    assert abs(hits / 2000 - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_a_single_value_has_no_interval_and_none_is_refused() -> None:
    assert math.isnan(estimate([1.0]).low)
    with pytest.raises(ValueError, match="at least one value"):
        estimate([])
