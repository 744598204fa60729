"""The evaluation of variants without a cluster: summary and Parquet file say the same."""

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss
from sklearn.preprocessing import MultiLabelBinarizer
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.configuration.config import validate
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.claims import read_runs
from rungwise.evaluation.comparison.compare import compare_variants
from rungwise.evaluation.comparison.summary import (
    CompareConfig,
    EvaluateSummary,
    independent_scores,
)
from rungwise.evaluation.statistics import estimate, paired_difference
from rungwise.serving.predictor import Predictor
from rungwise.tasks.data.files import add_errors
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import (
    ExampleCounts,
    TaskInfo,
    TaskSummary,
    Text,
    read_examples,
    write_examples,
)
from rungwise.training.tensor_files import save_tensors
from tests.bootstrap import paired_bootstrap
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


@pytest.fixture(autouse=True)
def _local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", LocalRay())


ONE = {"sequence_length": 16, "epochs": 1, "learning_rate": 0.01, "initialisation": "random"}
Setting = dict[str, Any]


def summarise(
    info: TaskInfo, counts: tuple[int, int, int], **baselines: dict[str, float]
) -> TaskSummary:
    train, validation, test = counts
    return TaskSummary(
        info=info,
        examples=ExampleCounts(train=train, validation=validation, test=test),
        baselines=baselines,
        overlap={},
        irregular={},
        headline="task",
    )


def compared(
    folder: Path,
    known: TaskSummary,
    target: Callable[[int], Any],
    variants: Setting,
    evaluate: Setting,
    seeds: Mapping[str, int] | None = None,
) -> tuple[EvaluateSummary, Artifact, Path]:
    """The summary of an evaluation in `folder`/out, its task, and what was told. A text is six
    words of ten letters; `target` says of the n-th one of a split what it is, `seeds` how many
    further pretrainings a variant has."""
    task = standing("task", folder / "task", known)
    letters, rng = np.random.default_rng(1), np.random.default_rng(0)
    words = ["".join(letters.choice([*"abcdefghijk"], 10)) for _ in range(46)]
    for split, count in known.examples.model_dump().items():
        texts = [" ".join(words[n] for n in rng.integers(5, 40, size=6)) for _ in range(count)]
        examples = [Text(f"{split}:{n}", t, None, target(n)) for n, t in enumerate(texts)]
        write_examples(examples, task.folder, split)
    summary = evaluated(folder, task, words, variants, evaluate, seeds)
    return summary, task, folder / "events"


def evaluated(
    folder: Path,
    task: Artifact,
    words: list[str],
    variants: Setting,
    evaluate: Setting,
    seeds: Mapping[str, int] | None = None,
) -> EvaluateSummary:
    """The summary of an evaluation of models that know 46 `words`, in `folder`/out."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    splitter = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    splitter.add_special_tokens(names[:4])
    splitter.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    (folder / "tokenizer").mkdir()
    splitter.save(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer = Artifact("tokenizer", "f" * 12, Folder.at(folder / "tokenizer"), {})
    pretrain = pretrained_of(
        *(folder / "pretrain", small_config("mlm_nsp"), {}), objective="mlm_nsp", vocab_size=50
    )
    save_tensors(pretrain.folder, "model.safetensors", dict(small_model("mlm_nsp").state_dict()))
    block = {"task": "t", "budget": None, "variants": variants, "evaluate": evaluate}
    inputs = {"task": task} | {
        f"{stage}/{name}": made
        for name in variants
        for stage, made in (("tokenizer", tokenizer), ("pretrain", pretrain))
    }
    for name, count in (seeds or {}).items():
        inputs |= {f"pretrain/{name}/seed-{n}": pretrain for n in range(1, count + 1)}
    context = Context(report=Events(folder / "events"))
    config = validate(CompareConfig, block)
    return compare_variants(config, inputs, Folder.at(folder / "out"), context)


def test_what_is_reported_is_what_the_predictions_give(tmp_path: Path) -> None:
    labels = ("a", "b", "c")
    known = summarise(
        TaskInfo("classification", labels, False, "accuracy"),
        (40, 20, 30),
        majority={"accuracy": 1 / 3},
    )
    windows = {"sequence_length": 6, "windows": True, "stride": 2, "class_weights": "balanced"}
    second = {"learning_rate": 0.01, "epochs": 3, "best_epoch": True, "batch_size": 8, **windows}
    settings = {"num_seeds": 2, "bootstrap_resamples": 100, "keep": "second", "rivals": False}
    variants = {"first": ONE | {"sequence_length": 6}, "second": ONE | second}
    summary, task, events = compared(tmp_path, known, lambda n: labels[n % 3], variants, settings)
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert len(table) == 2 * 2 * 30
    for row in summary.rows:
        own = table[(table.variant == row.variant) & (table.seed == row.seed)]
        shares = np.stack(own.probabilities.to_list())
        assert row.test["accuracy"] == pytest.approx(
            accuracy_score(own.gold, own.prediction), abs=1e-9
        )
        whole: dict[str, Any] = {"average": "macro", "zero_division": 0}
        macro = f1_score(own.gold, own.prediction, labels=labels, **whole)
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
    for row in of_second:
        of_row = [event for event in told if event["run"] == f"second-seed-{row.seed}"]
        validated = [event["values"].get("validation/accuracy", 0) for event in of_row]
        assert row.validation["accuracy"] == max(validated)
        assert of_row[-1]["values"]["kept_epoch"] == row.epoch
    assert any(row.epoch < 3 for row in of_second)
    # Every text is longer than a row: four words of six, and of the second variant the last four.
    lost = {name: each.cut["test"] for name, each in summary.variants.items()}
    assert lost == {"first": 1, "second": 0}
    [note] = [event["message"] for event in marks(events) if event["kind"] == "note"]
    assert note.startswith("first: finetune.sequence_length 6 cuts 100.0% of the train examples")
    # What is kept says again what the table has.
    own = table[(table.variant == "second") & (table.seed == summary.chosen.seed)]
    said = Predictor(Folder.at(tmp_path / "out"))(read_examples(task, "test"))
    assert [each["label"] for each in said] == list(own.prediction)
    np.testing.assert_allclose(
        [each["probability"] for each in said], [max(s) for s in own.probabilities], atol=1e-5
    )


def test_several_pretrainings_have_their_own_seeds_and_are_the_outer_level(tmp_path: Path) -> None:
    labels = ("x", "y")
    known = summarise(TaskInfo("classification", labels, False, "accuracy"), (20, 10, 40))
    variants: Setting = dict.fromkeys(("often", "once", "too"), ONE)
    settings = {"num_seeds": 2, "bootstrap_resamples": 100}
    summary, task, _ = compared(
        tmp_path, known, lambda n: labels[n % 2], variants, settings, {"often": 2, "too": 1}
    )
    of = {name: [row for row in summary.rows if row.variant == name] for name in variants}
    assert [(row.seed, row.pretraining) for row in of["often"]] == [
        *((1000, 0), (1001, 0), (1002, 1), (1003, 1), (1004, 2), (1005, 2))
    ]
    assert [row.seed for row in of["once"]] == [1000, 1001]
    assert summary.headline.endswith("(3 pretrainings, 2 seeds each)")
    # A rival has one run, beside each of a variant's and on the same examples.
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert list(summary.rivals) == ["TF-IDF (words)", "TF-IDF (chars)"]
    kind, examples = task_kind(known.info), read_examples(task, "test")
    for name, rival in summary.rivals.items():
        own = table[table.variant == name]
        assert own.seed.isna().all()
        assert rival.test["accuracy"] == accuracy_score(own.gold, own.prediction)
        assert f"{name} {100 * rival.estimate.mean:.1f}%" in summary.headline
        own_sums = kind.sums([{"label": each} for each in own.prediction], examples)
        [pair] = [p for p in summary.differences if (p.first, p.second) == ("often", name)]
        first_sums = [
            kind.sums([{"label": each} for each in rows.prediction], examples)
            for _, rows in table[table.variant == "often"].groupby("seed")
        ]
        assert pair.bootstrap == paired_bootstrap(
            np.stack(first_sums), np.stack([own_sums] * 6), kind.value, 1000, 100, (0, 1), 3
        )
        often = independent_scores([row.test["accuracy"] for row in of["often"]], 3)
        assert pair.seeds == paired_difference(often, [rival.estimate.mean] * 3, (0, 1))
    scores = {name: [row.test["accuracy"] for row in rows] for name, rows in of.items()}
    means = {name: np.reshape(each, (-1, 2)).mean(axis=1) for name, each in scores.items()}
    assert summary.variants["often"].estimates["accuracy"] == estimate(
        means["often"].tolist(), (0.0, 1.0)
    )
    pairs = {(pair.first, pair.second): pair.seeds for pair in summary.differences}
    assert len(pairs) == 3 + 3 * 2
    # By pretraining where both have several, by seed of the first one otherwise.
    assert pairs["often", "too"].count == 2
    assert pairs["often", "too"].mean == pytest.approx((means["often"][:2] - means["too"]).mean())
    assert pairs["often", "once"].count == 2
    expected = np.mean(scores["often"][:2]) - np.mean(scores["once"])
    assert pairs["often", "once"].mean == pytest.approx(expected)
    assert summary.chosen.pretraining == 0
    # What the claims are judged by has the same scores.
    evaluation = standing("evaluate", tmp_path / "judged", summary)
    written = (tmp_path / "out" / "predictions.parquet").read_bytes()
    evaluation.folder.write_bytes("predictions.parquet", written)
    runs = read_runs(evaluation, task)
    assert runs["often"].values() == pytest.approx(means["often"])
    assert runs["once"].values() == pytest.approx(scores["once"])
    assert (runs["often"].pretrainings, runs["too"].pretrainings) == (3, 2)


def test_several_labels_and_noisy_copies_are_what_scikit_learn_scores(tmp_path: Path) -> None:
    labels = ("a", "b", "c")
    known = summarise(TaskInfo("multilabel", labels, False, "micro_f1"), (40, 20, 30))
    sets = ((), ("a",), ("a", "c"), ("b",))
    settings = {"num_seeds": 2, "bootstrap_resamples": 100, "noise": [0.1, 1]}
    summary, task, _ = compared(
        tmp_path, known, lambda n: sets[n % 4], {"first": ONE | {"epochs": 3}}, settings
    )
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    binarizer = MultiLabelBinarizer(classes=labels)
    for row in summary.rows:
        own = table[table.seed == row.seed]
        gold, said = (
            np.asarray(binarizer.fit_transform(own[name])) for name in ("gold", "prediction")
        )
        for average in ("micro", "macro"):
            expected = f1_score(gold, said, average=average, zero_division=0)  # pyright: ignore[reportArgumentType]
            assert row.test[f"{average}_f1"] == pytest.approx(expected, abs=1e-9)
        assert row.test["exact_match"] == pytest.approx(accuracy_score(gold, said), abs=1e-9)
        shares = np.stack(own.probabilities.to_list())
        assert row.test["loss"] == pytest.approx(
            np.mean([log_loss(gold[:, n], shares[:, n], labels=[0, 1]) for n in range(3)]), rel=1e-5
        )
    # The model that is kept scores the noisy copies as the record says.
    predictor = Predictor(Folder.at(tmp_path / "out"))
    [kept] = [row for row in summary.rows if row.seed == summary.chosen.seed]
    assert list(kept.noise) == ["0.1", "1"]
    for rate, found in kept.noise.items():
        copies = add_errors(read_examples(task, "test"), float(rate), 0)
        gold, said = (
            np.asarray(binarizer.fit_transform(sets_))
            for sets_ in (
                [each.target for each in copies],
                [each["labels"] for each in predictor(copies)],
            )
        )
        expected = f1_score(gold, said, average="micro", zero_division=0)  # pyright: ignore[reportArgumentType]
        assert found["micro_f1"] == pytest.approx(expected, abs=1e-9)
        scores = [row.noise[rate]["micro_f1"] for row in summary.rows]
        assert summary.variants["first"].noise[rate] == estimate(scores, (0, 1))
    assert set(summary.variants["first"].cut) == {"train", "validation", "test"}
