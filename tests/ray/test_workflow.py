"""Whole workflows as users run them: commands in processes of their own, on small corpora."""

import io
import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from mlflow import MlflowClient
from rich.console import Console

import rungwise
from rungwise.__main__ import main
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import DataError
from rungwise.core.exit_codes import USER_ERROR
from rungwise.core.stages.artifact import (
    RECORD,
    Artifact,
    find_artifacts,
    find_folder,
    list_artifacts,
    load,
    write_note,
)
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import KEY_TAG, NOTE_TAG, PARENT_TAG
from rungwise.evaluation.comparison import compare, errors
from rungwise.evaluation.comparison.summary import CompareConfig, EvaluateSummary
from rungwise.pipeline.loading import Pretrained
from rungwise.serving.predictor import Predictor
from rungwise.tasks.data.cutting import parse_example
from tests.commands import RUNGWISE, environment, execute
from tests.conftest import Cli, small_recipe, write_corpus, write_recipe

STAGES = ("corpus", "tokenizer", "tokens", "instances", "pretrain")
DOWNSTREAM: dict[str, Any] = yaml.safe_load("""
tasks:
  libraries:
    data:
      {kind: paragraph_label, num_labels: 3, minimum_words: 5, train_per_label: 4,
       validation_per_label: 4, test_per_label: 4}
variants: {pretrained: {}, random: {finetune.initialisation: random, sweep: null}}
finetune: {batch_size: 4, pooling: mean, sequence_length: 32}
sweep:
  trials: 1
  halving: {grace_period: 0.5}
  space:
    finetune.learning_rate: {kind: loguniform, low: 0.001, high: 0.01}
    finetune.epochs: {kind: choice, values: [1]}
evaluate: {num_seeds: 2, bootstrap_resamples: 100}
registry: {name: small}
""")
TITLES = {
    *STAGES,
    "task/libraries",
    "sweep/libraries/pretrained",
    "evaluate/libraries",
    "register/libraries",
    "table",
    "report",
}


def records(root: Path) -> dict[str, dict[str, Any]]:
    found = sorted(root.glob("*/*/artifact.json"), key=lambda path: path.stat().st_mtime)
    return {path.parts[-3]: json.loads(path.read_text()) for path in found}


@pytest.fixture(scope="module")
def finished(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole fine-tuning workflow, run once, on the Ray of the tests; the folder of its recipe."""
    folder = tmp_path_factory.mktemp("workflow")
    corpus = write_corpus(folder / "text", documents=30)
    recipe = small_recipe(folder / "root", corpus, **DOWNSTREAM)
    recipe["compute"]["max_concurrent_trials"] = 1  # several in test_sweep_tune.py
    # Labels are the three libraries that the documents' names begin with.
    recipe["corpus"]["sources"] = [
        {"kind": "text", "paths": [f"{corpus}/library{n}-*.txt"], "label": f"library{n}"}
        for n in range(3)
    ]
    write_recipe(folder / "recipe.yaml", recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert main(["run", "finetune", str(folder / "recipe.yaml")]) == 0
    return folder


def refuses(folder: Folder, name: str) -> list[str]:
    """Which of loading the artifact, reading the file and verifying the artifact refuse."""
    try:
        artifact = load(folder)
        assert artifact is not None
    except DataError:
        return ["load"]
    refused = []
    for what, check in (
        ("read", lambda: artifact.folder.read_bytes(name)),
        ("verify", artifact.verify),
    ):
        try:
            check()
        except DataError as error:
            refused += [what] if folder.path(name) in str(error) else []
        except FileNotFoundError:
            refused.append(what)
    return refused


def edit(path: Path, kind: str, draw: random.Random) -> None:
    data = path.read_bytes()
    place = draw.randrange(len(data))
    match kind:
        case "flip":
            changed = bytes([data[place] ^ 1 << draw.randrange(8)])
            path.write_bytes(data[:place] + changed + data[place + 1 :])
        case "cut":
            path.write_bytes(data[:place])
        case "remove":
            path.unlink()
        case "link":
            path.rename(path.with_name(f".{path.name}"))
            path.symlink_to(f".{path.name}")


def test_200_edits_of_a_run_are_all_refused(finished: Path, tmp_path: Path, cli: Cli) -> None:
    """A record whenever it is loaded; any other file when it is read, and by `verify`."""
    root = Path(shutil.copytree(finished / "root", tmp_path / "root"))
    artifacts = find_artifacts(Folder.at(root))
    assert len(artifacts) == len(TITLES)
    files = [
        (each, name)
        for each in artifacts
        for name in [*each.record["files"], RECORD]
        if each.folder.size(name)
    ]
    draw = random.Random(36)
    for number in range(200):
        artifact, name = draw.choice(files)
        folder, path = Folder.at(artifact.folder.uri), Path(artifact.folder.path(name))
        # An artifact without a record is none.
        kind = draw.choice(["flip", "cut", "link"] + ["remove"] * (name != RECORD))
        data = path.read_bytes()
        edit(path, kind, draw)
        expected = ["load"] if name == RECORD else ["read", "verify"]
        assert refuses(folder, name) == expected, (path, kind)
        if number % 20 == 0:  # as a user asks
            assert path.name in cli("verify", folder.uri, status=USER_ERROR)
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}").unlink(missing_ok=True)
        path.write_bytes(data)
    for each in artifacts:
        each.verify()


def test_python_code_takes_what_was_built(finished: Path) -> None:
    recipe = rungwise.load_recipe(finished / "recipe.yaml")
    assert {row.reason for row in rungwise.plan("workflows/finetune.py", recipe)} == {"done"}
    outcome = rungwise.run("workflows/finetune.py", recipe, Console(quiet=True))
    assert (set(outcome.artifacts), outcome.built) == (TITLES, ())
    pretrained = rungwise.load(recipe)
    assert isinstance(pretrained, Pretrained)
    assert pretrained.tokenizer.get_vocab_size() == 200
    for name in ("recipe.yaml", "root/pretrain"):
        same = rungwise.load(str(finished / name))
        assert isinstance(same, Pretrained)
        models: tuple[Any, ...] = (same.model, pretrained.model)
        here, there = (model.module.state_dict() for model in models)
        torch.testing.assert_close(here, there)
    predictor = rungwise.load(str(finished / "root" / "evaluate"))
    assert isinstance(predictor, Predictor)
    [answer] = predictor(
        [parse_example({"text": "A worker keeps the rows."}, predictor.info, "here")]
    )
    assert answer["label"] in predictor.info.labels


def test_models_are_found_by_sources(finished: Path, cli: Cli) -> None:
    found = {name: record["fingerprint"] for name, record in records(finished / "root").items()}
    source = f"{finished}/text/library1-*.txt"
    held_out = next((finished / "root" / "corpus").glob("*/validation-*.parquet"))
    document = pq.read_table(held_out)["id"][-1].as_py()
    for what in (["--document", document], ["--source", source]):
        said = cli("why", *what, "--root", str(finished / "root")).splitlines()
        assert said[0].startswith(f"corpus {found['corpus']} (small): ")
        assert [line.split()[:2] for line in said[1:]] == [
            [stage, found[stage]] for stage in ("pretrain", "evaluate", "register")
        ]
    command = ["why", "--document", "x", "--root", str(finished / "root")]
    assert "none of 1 corpora" in cli(*command, status=USER_ERROR)


def test_gc_names_what_neither_the_recipe_nor_a_registered_model_needs(
    finished: Path, tmp_path: Path, cli: Cli
) -> None:
    """The registered model rests on the old pretraining; the old page does not."""
    root = tmp_path / "root"
    shutil.copytree(finished / "root", root)
    command = ["gc", "finetune", str(finished / "recipe.yaml"), f"root={root}"]
    assert "nothing to delete of small" in cli(*command)
    before = set(root.glob("*/*/artifact.json"))
    named = {
        Path(line.split()[-1])
        for line in cli(*command, "pretrain.steps=50").splitlines()
        if line.startswith("finished")
    }
    assert {path.parent.name for path in named} == {"report", "table"}
    assert set(root.glob("*/*/artifact.json")) == before
    cli(*command, "pretrain.steps=50", "--delete")
    assert before - set(root.glob("*/*/artifact.json")) == {
        path / "artifact.json" for path in named
    }


@pytest.mark.slow
def test_a_model_is_rebuilt_to_the_bit(finished: Path, tmp_path: Path) -> None:
    command = [*RUNGWISE, "rebuild", str(finished / "root" / "pretrain")]
    command += ["--into", str(tmp_path / "again")]
    done = execute(command, variables=environment(HOME=str(tmp_path)))
    assert done.stdout.count("same bytes") == len(STAGES)


def test_mlflow_shows_one_parent_one_child_a_stage_and_nested_trials(finished: Path) -> None:
    client = MlflowClient(f"sqlite:///{finished}/root/mlflow.db")
    experiment = client.get_experiment_by_name("rungwise")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    assert all(run.info.status == "FINISHED" for run in runs)
    assert len({run.data.tags[KEY_TAG] for run in runs}) == len(runs)
    by_parent: dict[str | None, list[Any]] = {}
    for found in runs:
        by_parent.setdefault(found.data.tags.get(PARENT_TAG), []).append(found)
    (parent,) = by_parent[None]
    of_recipe = by_parent[parent.info.run_id]
    stages = {str(child.info.run_name).removesuffix(" of small"): child for child in of_recipe}
    assert set(stages) == TITLES
    assert len(by_parent[parent.info.run_id]) == len(stages)
    sweep = stages["sweep/libraries/pretrained"].info.run_id
    seeds = stages["evaluate/libraries"].info.run_id
    assert len(by_parent[seeds]) == 2 * 2
    assert set(by_parent) == {None, parent.info.run_id, sweep, seeds}
    assert len(by_parent[sweep]) == 1
    for trial in by_parent[sweep]:
        assert 0.001 <= float(trial.data.params["finetune.learning_rate"]) <= 0.01
        assert "validation/accuracy" in trial.data.metrics
    assert not any("learning_rate" in name for name in client.get_run(sweep).data.metrics)
    losses = client.get_metric_history(stages["pretrain"].info.run_id, "train/loss")
    assert sorted(point.step for point in losses) == list(range(5, 41, 5))
    artifacts = [found.path for found in client.list_artifacts(parent.info.run_id)]
    assert artifacts == ["report.html", "report_files"]
    assert parent.data.params["pretrain.steps"] == "40"
    assert "evaluate/libraries/accuracy/pretrained" in parent.data.metrics
    assert "pretrain/mlm_loss" in parent.data.metrics
    assert {each.dataset.name for each in parent.inputs.dataset_inputs} == {
        "corpus",
        "task/libraries",
    }
    assert parent.data.tags["mlflow.source.name"]
    note = parent.data.tags[NOTE_TAG]
    assert note.startswith("Without any pretraining, TF-IDF")  # does as well as few steps
    assert "does as well, as far as can be told" in note.splitlines()[0]
    experiment_page = f"#/experiments/{experiment.experiment_id}/runs/{parent.info.run_id}"
    link = f"[report.html]({experiment_page}/artifacts/report.html?"
    assert link in note.splitlines()[0]
    for model in client.search_registered_models():
        assert model.latest_versions
        assert link in str(model.description)
        assert link in str(model.latest_versions[0].description)
    [picture] = re.findall(r"get-artifact\?path=(\S+)&run_uuid=(\w+)\)", note)
    assert picture[1] == parent.info.run_id
    shown = {found.path for found in client.list_artifacts(parent.info.run_id, "report_files")}
    assert picture[0] in shown
    # What cannot differ within a run is no curve.
    constants = {"summary/parameters", "summary/vocab_size"}
    assert constants <= stages["pretrain"].data.params.keys()
    measured = stages["pretrain"].data.metrics.keys()
    assert not {name.removeprefix("summary/") for name in constants} & measured
    # MLflow sorts sections of charts by what stands before the last slash, what has none and
    # system/ behind the others: losses come first.
    sections = {name.rpartition("/")[0] for name in measured}
    assert sections == {"train", "validation", "", "system"}


def test_the_registered_model_answers_in_a_process_that_knows_nothing(finished: Path) -> None:
    code = (
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]);"
        "model = mlflow.pyfunc.load_model('models:/small-libraries/1');"
        "out = model.predict(['The parser returns a value at once.', '']);"
        "print(out.to_json(orient='records'))"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{finished}/root/mlflow.db"]
    # In a folder where no workflow and no package lies.
    done = execute(command, finished, environment(HOME=str(finished)))
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(rows) == 2
    assert all(row["label"].startswith("library") and 0 < row["probability"] <= 1 for row in rows)
    client = MlflowClient(f"sqlite:///{finished}/root/mlflow.db")
    version = client.get_model_version("small-libraries", "1")
    found = records(finished / "root")
    for name in (*STAGES, "task", "evaluate"):
        assert version.tags[f"rungwise.{name}"] == found[name]["fingerprint"]


def test_a_second_run_builds_nothing_and_starts_no_ray(
    finished: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(compute: ComputeConfig) -> None:
        raise AssertionError("it starts Ray")

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("rungwise.pipeline.runner.local_head", refuse)
    before = records(finished / "root")
    said = cli("run", "finetune", str(finished / "recipe.yaml"))
    assert f"0 of {len(TITLES)} stages built" in said
    assert said.count("cached") == len(TITLES)
    assert records(finished / "root") == before
    said = cli("plan", "finetune", str(finished / "recipe.yaml"), "pretrain.steps=50")
    assert re.search(r"instances .* cached", said)
    assert re.search(r"pretrain .* pretrain\.steps 40 -> 50", said)


@pytest.mark.slow
def test_an_evaluation_is_continued(finished: Path, ray_session: None, tmp_path: Path) -> None:
    """What a killed attempt had finished is taken as it is; here it is told apart by its score."""
    root = Folder.at(finished / "root")
    (evaluated,) = list_artifacts(root, "evaluate")
    inputs: dict[str, Artifact] = {}
    for name, row in evaluated.record["inputs"].items():
        artifact = load(find_folder(root, row["stage"], "", row["fingerprint"]))
        assert artifact is not None
        inputs[name] = artifact
    config = CompareConfig.model_validate(evaluated.record["config"])
    output = Folder.at(tmp_path)
    before = EvaluateSummary.of(evaluated)
    first, chosen = before.rows[0], before.variants["pretrained"].finetune
    asked = fingerprint({"settings": chosen, "inputs": [a.fingerprint for a in inputs.values()]})
    done = f"pretrained-{first.seed}-{asked}"
    kept = evaluated.folder
    said = "".join(
        json.dumps({"label": each["prediction"], "probabilities": each["probabilities"]}) + "\n"
        for each in errors.read_predictions(kept)
        if (each["variant"], each["seed"]) == ("pretrained", first.seed)
    )
    scratch = output / ".seeds"
    scratch.write_bytes(f"{done}.safetensors", kept.read_bytes("model.safetensors"))
    scratch.write_bytes(f"{done}.predictions", said.encode())
    digests = {name: scratch.sha256(name) for name in scratch.names()}
    model = json.loads(kept.read_bytes("model.json"))
    row = {**first.model_dump(mode="json"), "files": done, "model": model, "cut": {}}
    row["test"] = {**row["test"], "accuracy": 0.123}
    row["validation"] = {**row["validation"], "accuracy": 2.0}  # so that it is chosen
    write_note(scratch, f"{done}.json", row, digests)
    summary = compare.compare_variants(config, inputs, output, Context())
    assert [row.test["accuracy"] for row in summary.rows].count(0.123) == 1
    assert summary.chosen.seed == first.seed
    # The rest was fine-tuned anew and gives the same, because a seed gives the same bits.
    for row, same in zip(summary.rows[1:], before.rows[1:], strict=True):
        assert row == same.model_copy(update={"seconds": row.seconds})
    assert not (tmp_path / ".seeds").exists()


def test_predict_answers_lines_and_refuses_what_does_not_fit(
    finished: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(finished / "root" / "evaluate")
    monkeypatch.setattr(sys, "stdin", io.StringIO("The parser returns.\n\nthe cache\n"))
    said = cli("predict", model, "--format", "text", "--batch-size", "2")
    answers = [json.loads(line) for line in said.splitlines()]
    assert [answer["where"] for answer in answers] == ["stdin:1", "stdin:2", "stdin:3"]
    assert all(answer["label"].startswith("library") for answer in answers)

    asked, told = tmp_path / "asked.jsonl", tmp_path / "told.jsonl"
    asked.write_text('{"text": "The parser returns."}\n')
    cli("predict", model, "--input", str(asked), "--to", str(told))
    alone = json.loads(told.read_text())
    assert alone["label"] == answers[0]["label"]
    assert alone["probability"] == pytest.approx(answers[0]["probability"], abs=1e-6)

    registered = ["predict", "models:/small-libraries/1", "--root", str(finished / "root")]
    said = cli(*registered, "--input", str(asked))
    assert json.loads(said)["probability"] == alone["probability"]

    asked.write_text('{"text": "one"}\n{"second": "two"}\n')
    refused = tmp_path / "refused.jsonl"
    command = ["predict", model, "--input", str(asked), "--to", str(refused)]
    assert f"{asked}:2: text is missing" in cli(*command, status=2)
    assert not refused.exists()
    for arguments, message in (
        ([model, "--input", "what.xyz"], "what.xyz: cannot tell the format"),
        ([str(tmp_path), "--format", "text"], "no model here"),
        ([model, "--input", str(asked), "--to", str(told)], "the file already exists"),
    ):
        assert message in cli("predict", *arguments, status=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_english_ends_below_its_unigram_loss(real_data: Path, tmp_path: Path) -> None:
    english = real_data / "corpora" / "en"
    sources = (
        f"[{{kind: text, paths: [{english}/reuters21578], documents: blank_line, "
        "lines: paragraph, label: reuters}, "
        f"{{kind: text, paths: [{english}/brown/brown.txt.gz], documents: blank_line, "
        "lines: sentence, label: brown}, "
        f"{{kind: text, paths: [{english}/gutenberg], encoding: detect, label: gutenberg}}]"
    )
    command = [sys.executable, "workflows/pretrain.py", "workflows/configs/quickstart.yaml"]
    command += [f"root={tmp_path}", f"corpus.sources={sources}", "pretrain.steps=800"]
    execute(command)
    (path,) = tmp_path.glob("pretrain/*/artifact.json")
    summary = json.loads(path.read_text())["summary"]
    assert summary["final"]["mlm_loss"] < summary["unigram_loss"] - 0.5
