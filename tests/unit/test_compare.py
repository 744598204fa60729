"""The evaluation of variants without a cluster: summary and Parquet file say the same."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.artifact import Artifact
from rungwise.core.config import validate
from rungwise.core.context import Context
from rungwise.core.storage import Folder
from rungwise.evaluation.compare import CompareConfig, compare_variants
from rungwise.serving.predictor import Predictor
from rungwise.tasks.examples import ExampleCounts, TaskInfo, TaskSummary, Text, read, write
from rungwise.training.checkpoint import save_tensors
from tests.small_models import small_config, small_model
from tests.summaries import pretrained_of, standing
from tests.toy_sweeps import Events, marks


class LocalRay:
    """As much of Ray as the stage calls, in this process."""

    def remote(self, **_: Any) -> Any:
        def decorated(function: Any) -> Any:
            return SimpleNamespace(remote=lambda *given: functools.partial(function, *given))

        return decorated

    def wait(self, waiting: list[Any]) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, ready: list[Any]) -> list[Any]:
        return [called() for called in ready]


def test_what_is_reported_is_what_the_predictions_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", LocalRay())
    rng = np.random.default_rng(0)
    labels = ("a", "b", "c")
    known = TaskSummary(
        info=TaskInfo("classification", labels, False, "accuracy"),
        examples=ExampleCounts(train=40, validation=20, test=30),
        baselines={"majority": {"accuracy": 1 / 3}},
        overlap={},
        irregular={},
        headline="task",
    )
    task = standing("task", tmp_path / "task", known)
    for split, count in (("train", 40), ("validation", 20), ("test", 30)):
        texts = [" ".join(f"w{n}" for n in rng.integers(5, 40, size=6)) for _ in range(count)]
        examples = [Text(f"{split}:{n}", t, None, labels[n % 3]) for n, t in enumerate(texts)]
        write(examples, task.folder, split)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(46))]
    splitter = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    splitter.add_special_tokens(names[:4])
    splitter.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    (tmp_path / "tokenizer").mkdir()
    splitter.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    words = Artifact("tokenizer", "f" * 12, Folder.at(tmp_path / "tokenizer"), {})
    pretrain = pretrained_of(
        *(tmp_path / "pretrain", small_config("mlm_nsp"), {}), objective="mlm_nsp", vocab_size=50
    )
    save_tensors(pretrain.folder, "model.safetensors", dict(small_model("mlm_nsp").state_dict()))
    one = {"sequence_length": 16, "epochs": 1, "learning_rate": 0.01, "initialisation": "random"}
    settings = {"num_seeds": 2, "bootstrap_resamples": 100, "keep": "second"}
    windows = {"sequence_length": 6, "windows": True, "stride": 2, "class_weights": "balanced"}
    second = {"learning_rate": 0.01, "epochs": 3, "best_epoch": True, "batch_size": 8, **windows}
    variants = {"first": one, "second": one | second}
    block = {"task": "t", "budget": None, "variants": variants, "evaluate": settings}
    inputs = {"task": task} | {
        f"{stage}/{name}": made
        for name in variants
        for stage, made in (("tokenizer", words), ("pretrain", pretrain))
    }
    output = Folder.at(tmp_path / "out")
    events = tmp_path / "events"
    context = Context(report=Events(events))
    summary = compare_variants(validate(CompareConfig, block), inputs, output, context)
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert len(table) == 2 * 2 * 30
    for row in summary.rows:
        own = table[(table.variant == row.variant) & (table.seed == row.seed)]
        shares = np.stack(own.probabilities.to_list())
        assert row.test["accuracy"] == pytest.approx(
            accuracy_score(own.gold, own.prediction), abs=1e-9
        )
        macro = f1_score(own.gold, own.prediction, average="macro", labels=labels, zero_division=0)
        assert row.test["macro_f1"] == pytest.approx(macro, abs=1e-9)
        # The loss is a sum in float32, over windows where there are some.
        if row.variant == "first":
            assert row.test["loss"] == pytest.approx(
                log_loss(own.gold, shares, labels=labels), rel=1e-5
            )
        assert list(own.prediction) == [labels[n] for n in shares.argmax(axis=1)]
    # Of the variant that is asked for, the seed that is best on validation.
    of_second = [row for row in summary.rows if row.variant == "second"]
    assert summary.chosen.variant == "second"
    assert summary.chosen.validation["accuracy"] == max(r.validation["accuracy"] for r in of_second)
    # Its weights are those of the best epoch, which MLflow is told.
    told = [event for event in marks(events) if event["kind"] == "metrics"]
    for row in summary.rows:
        best = max(row.curve) if row.variant == "second" else row.curve[-1]
        assert row.validation["accuracy"] == row.curve[row.epoch - 1] == best
        [last] = [
            event
            for event in told
            if event["run"] == f"{row.variant}-seed-{row.seed}" and "kept_epoch" in event["values"]
        ]
        assert (last["step"], last["values"]["kept_epoch"]) == (row.epoch, row.epoch)
        assert last["values"]["test/accuracy"] == row.test["accuracy"]
    assert any(row.epoch < 3 for row in of_second)
    # Every text is longer than a row of the second variant: four words of six, then the last four.
    lost = {name: each.cut["test"] for name, each in summary.variants.items()}
    assert (lost["first"].cut_examples, lost["first"].windowed_examples) == (0, 0)
    assert (lost["second"].cut_examples, lost["second"].windowed_examples) == (0, 30)
    [note] = [event["message"] for event in marks(events) if event["kind"] == "note"]
    assert "second: 100.0% of the train examples" in note
    assert "read in several rows, so that nothing is cut" in note
    # What is kept says again what the table has.
    own = table[(table.variant == "second") & (table.seed == summary.chosen.seed)]
    said = Predictor.load(output)(read(task, "test"))
    assert [each["label"] for each in said] == list(own.prediction)
    np.testing.assert_allclose(
        [each["probability"] for each in said], [max(s) for s in own.probabilities], atol=1e-5
    )
