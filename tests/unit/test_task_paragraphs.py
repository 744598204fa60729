"""The task that is made of a corpus: balanced, without the name, no document in two splits."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import SCHEMA, text_digest
from rungwise.tasks.building import build_task
from rungwise.tasks.config import ParagraphTaskConfig
from rungwise.tasks.data.made import hide_name
from rungwise.tasks.kinds.examples import SPLITS, TaskInfo, read_examples
from tests.summaries import corpus_of, standing


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
                        "digest": text_digest(sentences),
                        "sentences": sentences,
                        "paragraph_starts": list(range(len(sentences))),
                        "spans": [[] for _ in sentences],
                    }
                )
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / f"{split}-00000.parquet")
        files.append({"file": f"{split}-00000.parquet", "split": split, "documents": len(rows)})
    return corpus_of(folder, files)


def test_the_task_is_balanced_hides_the_name_and_shares_no_document_or_text(tmp_path: Path) -> None:
    config = ParagraphTaskConfig(
        num_labels=3, train_per_label=8, validation_per_label=5, test_per_label=10, minimum_words=5
    )
    output = Folder.at(tmp_path / "task")
    summary = build_task(config, {"corpus": corpus(tmp_path / "corpus")}, output, Context())
    task = standing("task", output, summary)
    splits = {split: read_examples(task, split) for split in SPLITS}
    assert {split: len(rows) for split, rows in splits.items()} == summary.examples.model_dump()
    labels = ("alpha", "beta", "gamma")
    assert summary.info == TaskInfo("classification", labels, False, "accuracy")
    seen: set[str] = set()
    for split, rows in splits.items():
        counts = Counter(row.target for row in rows)
        assert len(set(counts.values())) == 1, split
        for row in rows:
            assert row.target not in row.text.lower()
            assert "Licensed" not in row.text
        documents = {row.where for row in rows} | {row.text for row in rows}
        assert not documents & seen
        seen |= documents
    assert {int(row.where.split(".")[1]) >= 10 for row in splits["test"]} == {True}


def test_too_few_paragraphs_are_refused_with_what_was_found(tmp_path: Path) -> None:
    config = ParagraphTaskConfig(num_labels=3, test_per_label=500, minimum_words=5)
    with pytest.raises(DataError, match=r"data\.num_labels is 3, but only 0 labels.*Found"):
        build_task(config, {"corpus": corpus(tmp_path / "c")}, Folder.at(tmp_path / "t"), Context())


def test_hiding_a_name_leaves_longer_words_alone() -> None:
    assert hide_name("Ray, ray.data and array or RAY_x", "ray") == (
        "library, library.data and array or library_x"
    )
