"""Promotion: what passes the gate, what does not and is told why; the card."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import mlflow
import pytest
from markdown_it import MarkdownIt
from mlflow.artifacts import download_artifacts
from safetensors.torch import load_file, save_file

from rungwise.__main__ import main
from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, TrackingRun
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.summary import (
    EvaluateSummary,
    PairedDifference,
    PretrainingCost,
    RivalResult,
    SeedRow,
    VariantResult,
)
from rungwise.evaluation.statistics import Difference, estimate
from rungwise.evaluation.suites.items import MeasureSummary, SuiteScore
from rungwise.finetune import FinetuneConfig
from rungwise.serving import registry
from rungwise.serving.card import escape, fit_description
from rungwise.serving.predictor import FILES, Predictor, load_predictor
from rungwise.serving.registry import register_model
from rungwise.serving.stage import RegisterConfig
from rungwise.tasks.kinds.examples import (
    SPLITS,
    ExampleCounts,
    TaskSummary,
    Text,
    read_examples,
    write_examples,
)
from rungwise.training.summary import PretrainSummary
from tests.conftest import Cli
from tests.report_pages import Recorder, corpus_summary
from tests.unit.serving.test_predictor import INFO, make_model

NAME = "small-toy"
COUNTS = ExampleCounts(train=40, validation=2, test=40)
TEXTS = [Text(f"test:{n}", f"w{n} w{n * 7 % 40}") for n in range(COUNTS.test)]


class Models:
    """A root with a corpus, a task that its first model answers wholly right, and more models."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"sqlite:///{root}/mlflow.db"
        self._recorder = Recorder(Folder.at(root))
        config = {"sources": [{"kind": "text", "paths": ["books/*.txt"]}]}
        outside = {"sources.0": {"files": 1}}
        corpus = self._recorder.add("corpus", config, corpus_summary(), outside)
        corpus.folder.write_bytes("text.txt", b"some text")
        self.corpus = self._finish(corpus)
        model = make_model(self._scratch("right"), "classification", "mlm_nsp")
        said = model(TEXTS)
        summary = TaskSummary(
            info=INFO["classification"],
            examples=COUNTS,
            baselines={"majority": {"accuracy": 0.55}},
            overlap={},
            irregular={},
            headline="task",
        )
        task = self._recorder.add("task", {}, summary)
        labelled = [replace(t, target=each["label"]) for t, each in zip(TEXTS, said, strict=True)]
        for split in SPLITS:
            write_examples(labelled, task.folder, split)
        self._finish(task)
        score = SuiteScore(
            suite="blimp",
            part="",
            metric="accuracy",
            group=None,
            value=0.5234,
            low=0.5075,
            high=0.539,
            count=4020,
        )
        scores = (score, score.model_copy(update={"group": "binding"}))
        measured = MeasureSummary(scores=scores, passed_over={}, seconds={}, headline="measure")
        self._finish(self._recorder.add("measure", {}, measured))
        self._finish(
            self._recorder.add("pretrain", {}, PretrainSummary.model_construct(headline="pretrain"))
        )

    def _scratch(self, name: str) -> Path:
        folder = self.root.parent / name
        folder.mkdir()
        return folder

    def _finish(self, artifact: Artifact) -> Artifact:
        done = artifacts.finish(artifact.folder, artifact.record, {})
        self._recorder.made[artifact.stage] = done
        return done

    def evaluated(
        self,
        turned: bool,
        validation: float,
        trivial: float = -1.0,
        random: float | None = None,
        rival: float = -1.0,
    ) -> Artifact:
        """An evaluation that kept a model, `turned` or not, with these scores of its rivals."""
        made = self.root.parent / "right"
        weights = load_file(made / "model.safetensors")
        if turned:
            for name in ("head.linear.weight", "head.linear.bias"):
                weights[name] = -weights[name]
        accuracy = 0.0 if turned else 1.0
        row = SeedRow(
            variant="pretrained",
            seed=5,
            epoch=1,
            validation={"accuracy": validation},
            test={"accuracy": accuracy},
            mix=None,
            seconds=1.0,
        )
        variant = VariantResult(
            estimates={"accuracy": estimate([accuracy, accuracy])},
            finetune=FinetuneConfig(),
            selection=None,
            pretraining=None,
            cut={},
        )
        variants = {"pretrained": variant}
        differences: tuple[PairedDifference, ...] = ()
        if random is not None:
            cost = PretrainingCost(
                objective="mlm", steps=1, tokens=1, flops=None, parameters=1, fingerprint="f" * 12
            )
            variants = {
                "random": variant,
                "pretrained": variant.model_copy(update={"pretraining": cost}),
            }
            differences = (
                PairedDifference(
                    first="random",
                    second="pretrained",
                    seeds=estimate([-random - 0.01, -random + 0.01]),
                    bootstrap=Difference(-random, -1.0, 1.0, 0.5),
                    error_reduction=None,
                ),
            )
        summary = EvaluateSummary(
            task="toy",
            budget=None,
            kind="classification",
            metric="accuracy",
            seeds=(5,),
            examples=COUNTS,
            rows=(row,),
            variants=variants,
            differences=differences,
            baselines={"majority": {"accuracy": trivial}},
            beats_baselines=None,
            chosen=row,
            rivals={
                "TF-IDF": RivalResult(
                    name="TF-IDF of words",
                    strength=1.0,
                    validation={"accuracy": rival},
                    test={"accuracy": rival},
                    estimate=estimate([rival, rival]),
                    noise={},
                    seconds=1.0,
                )
            },
            headline="evaluate",
        )
        keys = {"validation": validation, "trivial": trivial, "random": random, "rival": rival}
        artifact = self._recorder.add("evaluate", keys, summary)
        for name in FILES:
            artifact.folder.copy_file(made / name, name)
        with artifact.folder.staged("model.safetensors") as path:
            save_file(weights, path)
        examples = read_examples(self._recorder.made["task"], "test")
        said = Predictor(artifact.folder)(TEXTS)
        rows = errors.prediction_rows("pretrained", 5, examples, said, "label")
        errors.write_predictions(rows, artifact.folder)
        return self._finish(artifact)

    def registered(self, evaluated: Artifact) -> Any:
        """What the register stage says of it."""
        mlflow.set_tracking_uri(self.uri)
        inputs = self._recorder.made | {"evaluate": evaluated}
        with mlflow.start_run() as whole, mlflow.start_run(nested=True) as run:
            self.page = f"#/experiments/0/runs/{whole.info.run_id}/artifacts/report.html"
        output = Folder.at(self._scratch(f"out-{evaluated.fingerprint}"))
        context = Context(tracking=TrackingRun(self.uri, run.info.run_id, "report.html"), recipe={})
        return register_model(RegisterConfig(name=NAME), inputs, output, context)


def test_bytes_that_differ_are_named(tmp_path: Path) -> None:
    models = Models(tmp_path / "root")
    first, turned = models.evaluated(False, 0.9), models.evaluated(True, 0.8)
    assert registry.find_faults(first, first.folder) == []
    assert "model.safetensors is not that of" in registry.find_faults(first, turned.folder)[0]
    Path(models.corpus.folder.path("text.txt")).write_bytes(b"some texd")
    [fault] = registry.find_faults(first, first.folder)
    assert "text.txt" in fault


@pytest.mark.slow  # MLflow makes a database and copies models
def test_a_version_gets_the_alias_through_the_gate(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = Models(tmp_path / "root")
    root = ["--root", str(models.root)]
    scores = {"1": (False, 0.9), "2": (True, 0.7), "3": (False, 0.8)}
    pages: dict[str, str] = {}
    for number, (turned, validation) in scores.items():
        made = models.registered(models.evaluated(turned, validation))
        assert (made.version, made.alias) == (number, "champion" if number == "1" else None)
        pages[number] = models.page
    client = mlflow.MlflowClient(models.uri)
    outputs = client.get_run(models.page.split("/")[4]).outputs
    assert outputs is not None
    [output] = outputs.model_outputs
    logged = client.get_logged_model(output.model_id)
    assert logged.model_id in str(client.get_model_version(NAME, "3").source)

    def promote(*arguments: str) -> tuple[int, str, str]:
        status = main(["promote", *arguments, *root])
        out, err = capsys.readouterr()
        return status, err or out, str(registry.find_holder(client, NAME, "champion"))

    status, told, champion = promote(f"models:/{NAME}/2")
    assert (status, champion) == (2, "1")
    assert "scores 0.700000 in validation, and version 1, which has the alias, 0.900000" in told
    assert promote(f"models:/{NAME}/2", "--to", "trial")[0] == 0, "nobody holds it"
    assert promote(f"models:/{NAME}/3", "--to", "trial") == (0, mock.ANY, "1")
    assert str(registry.find_holder(client, NAME, "trial")) == "3"
    client.set_registered_model_alias(NAME, "trial", "2")
    baselines = {
        "4": (1.0, None, 0.5, "the trivial baseline majority (1.000)"),
        "5": (0.5, 0.0, 0.5, "random weights (random)"),
        "6": (0.5, 0.5, 1.0, "TF-IDF of words (1.000, without pretraining)"),
        "7": (0.5, 0.5, 0.5, ""),
    }
    for number, (trivial, random, rival, fault) in baselines.items():
        made = models.registered(models.evaluated(False, 0.95, trivial, random, rival))
        pages[number] = models.page
        assert (made.version, made.alias) == (number, None if fault else "champion")
        assert f"is not shown to be above {fault}" in made.headline or not fault
        status, told, champion = promote(f"models:/{NAME}/{number}")
        assert (status, champion) == ((2, "1") if fault else (0, "7"))
        assert f"is not shown to be above {fault}" in told or not fault
    client.set_registered_model_alias(NAME, "champion", "1")

    card, about = (str(client.get_model_version(NAME, n).description) for n in ("1", "3"))
    assert "| **this model** (pretrained, seed 5) | 1.0000 | 1.0000 to 1.0000 |" in card
    assert "| majority (trivial baseline) | -1.0000 | |" in card
    assert card.count("| blimp accuracy | 0.5234 | 0.5075 to 0.539 | 4,020 |") == 1
    assert "Intended use: " in card
    assert r"text: books/\*.txt" in card
    assert "not stated" in card
    assert "rungwise rebuild " in card
    served = Path(download_artifacts(f"models:/{NAME}/3"))
    assert (served / "artifacts" / "card.md").read_text("utf-8") in about
    assert f"]({pages['3']}?" in about
    assert f"]({pages['1']}?" in card
    short = fit_description("before\n", "row\n" * 2000, "after")
    assert len(short) <= 5000, "PostgreSQL takes no more"
    assert short.startswith("before\nrow\n")
    assert short.endswith("row\n\nThe rest is in card.md, beside the model.\nafter")
    (tmp_path / "FILE").write_text("one\ntwo\n")
    [command] = re.findall("`rungwise (predict .*)`", about)
    assert len(cli(*shlex.split(command), "--format", "text").splitlines()) == 2
    [copy] = {
        path
        for path in tmp_path.rglob("model.safetensors")
        if path.samefile(served / "artifacts" / "model.safetensors")
    } or {served / "artifacts" / "model.safetensors"}
    copy.write_bytes(copy.read_bytes()[:-1] + b"\0")
    status, told, champion = promote(f"models:/{NAME}/3")
    assert (status, champion) == (2, "1")
    assert "/model.safetensors is not that of" in told
    assert main(["verify", f"models:/{NAME}/3", *root]) == 2
    assert f"models:/{NAME}/3  CHANGED" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"model\.safetensors has changed since it was written"):
        load_predictor(Folder.at(served / "artifacts"))
    cli("verify", f"models:/{NAME}/1", *root)
    said = cli("why", f"models:/{NAME}@trial", *root)
    assert said.startswith(f"models:/{NAME}/2\n  registered 20")
    first = Path(download_artifacts(f"models:/{NAME}/1")) / "artifacts"
    load_predictor(Folder.at(first))
    (first / "more.pkl").write_bytes(b"x")
    refused = cli("verify", f"models:/{NAME}/1", *root, status=2)
    assert "more.pkl is not in the record" in refused
    (first / "artifact.json").unlink()
    for command in (["verify"], ["predict", "--input", "FILE", "--format", "text"]):
        refused = cli(*command, f"models:/{NAME}/1", *root, status=2)
        assert "has no artifact.json" in refused
    assert "has no artifact.json" in promote(f"models:/{NAME}/1", "--to", "trial")[1]


def test_the_card_shows_the_names_of_labels_and_files_as_they_are() -> None:
    """CommonMark and its tables render an escaped name as the name itself."""
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for text in (
        "C++",
        "<b>a</b>",
        "a|b",
        "[x](//y)",
        "`*.txt`",
        "A&B &lt;",
        "\\*",
        "~~a~~",
        "a\n# b",
    ):
        cell = reader.parse(f"| {escape(text)} |\n|---|\n")[4].children or []
        assert [token.type for token in cell] == ["text"]
        assert cell[0].content == text.replace("\n", " ")
