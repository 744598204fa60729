"""Each remedy that a message gives is one that works: applied as it stands, the run is accepted."""

import re
import shlex
from pathlib import Path

import pytest

from rungwise.__main__ import main
from rungwise.core.configuration.overrides import with_overrides
from rungwise.pipeline.recipe import Recipe

# A workflow and overrides of a recipe that are refused, and how the remedy begins.
REFUSED = [
    ("pretrain quickstart model.num_heads=3", "model.hidden_size=132"),
    (
        "pretrain gpt-mini model={kind: llama, num_heads: 12, num_key_value_heads: 8}",
        "model.num_key_value_heads=4",
    ),
    ("pretrain elmo-mini model.max_characters=3", "model.max_characters="),
    ("pretrain quick-thoughts model.network=two_grus model.hidden_size=33", "model.hidden_size=34"),
    (
        "finetune quickstart variants.random.model.max_position_embeddings=32",
        "variants.random.model.max_position_embeddings=64",
    ),
    ("pretrain gpt-mini instances.sequence_length=1000", "model.max_position_embeddings=1000"),
    ("pretrain quickstart model.kind=gpt", "instances.kind=causal"),
    ("pretrain quickstart pretrain.objective=nsp", "pretrain.objective=mlm"),
    ("pretrain quickstart model={kind: ngram}", "pretrain.kind=counts"),
    ("pretrain quickstart pretrain.kind=counts", "pretrain.kind=gradient"),
    ("pretrain quickstart pretrain.order.lanes=12", "pretrain.order.lanes=4"),
    ("pretrain bert-mini pretrain.max_tokens=1000000", "pretrain.max_tokens=null"),
    ("pretrain quickstart pretrain.average={steps: 2000}", "pretrain.average.steps=1650"),
    ("pretrain word2vec pretrain.minimum_rate=0.9", "pretrain.minimum_rate=0."),
    ("finetune quickstart finetune.sequence_length=512", "finetune.sequence_length=64"),
    (
        "finetune quickstart variants.random.finetune.sequence_length=512",
        "variants.random.finetune.sequence_length=64",
    ),
    (
        "finetune quickstart tasks.libraries.finetune.sequence_length=512",
        "tasks.libraries.finetune.sequence_length=64",
    ),
    ("finetune quickstart finetune.loaded_layers=9", "finetune.loaded_layers=null"),
    ("finetune quickstart finetune.accumulation=99 sweep=null", "finetune.accumulation=8"),
    ("pretrain instances", '\'model={"kind": "bert"}\' \'pretrain={"steps": 1000}\''),
    ("ladder quickstart", "'measure={"),
    ("finetune quickstart evaluate=null", "'evaluate={}'"),
    ("instances word2vec", "'instances={"),
]


@pytest.mark.parametrize(("command", "remedy"), REFUSED)
def test_a_remedy_is_accepted_as_it_is_printed(
    command: str, remedy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    workflow, recipe, *rest = command.split(" ", 2)
    text = "corpus={sources: [{kind: pydocs}]}"
    begin = ["plan", workflow, recipe, f"root={tmp_path}", text, *_overrides(rest)]
    assert main(begin) == 2
    message = capfd.readouterr().err
    printed = re.search(r"; set (.*)$", message.strip())
    assert printed, message
    assert printed[1].startswith(remedy), message
    assert main([*begin, *shlex.split(printed[1])]) == 0, capfd.readouterr().err


def _overrides(rest: list[str]) -> list[str]:
    """The overrides of a command; one with blanks stands alone."""
    return [rest[0]] if rest and "{" in rest[0] else shlex.split(" ".join(rest))


@pytest.mark.parametrize(
    ("key", "places"),
    [
        ("pretrain.learning_rate", "pretrain.optimizer.learning_rate"),
        ("pretrain.lr", "pretrain.optimizer.learning_rate"),
        ("steps", "pretrain.steps"),
        ("pretrain.warmup_fraction", "pretrain.optimizer.schedule.warmup_fraction"),
        ("instances.max_predictions", "instances.masking.max_predictions"),
        ("corpus.held_out", "'held_out_fraction'"),
        ("model.sequence_length", "instances.sequence_length"),
        ("batch_size", "pretrain.global_batch_size"),
    ],
)
def test_a_key_in_a_wrong_place_finds_its_own(
    key: str, places: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "pretrain", "quickstart", f"root={tmp_path}", f"{key}=1"]) == 2
    assert f"did you mean {places}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("dotted", "changed"),
    [
        ("variants.a.finetune.epochs", {"variants": {"a": {"finetune.epochs": 3}}}),
        ("variants.a.model.kind", {"variants": {"a": {"model.kind": 3}}}),
        (
            "tasks.t.finetune.adaptation.kind",
            {"tasks": {"t": {"finetune": {"adaptation.kind": 3}}}},
        ),
        ("sweep.space.finetune.epochs.low", {"sweep": {"space": {"finetune.epochs": {"low": 3}}}}),
    ],
)
def test_a_key_that_has_dots_is_one_key(dotted: str, changed: dict[str, object]) -> None:
    data = {"sweep": {"space": {"finetune.epochs": {"low": 1}}}} if "sweep" in dotted else {}
    assert with_overrides(data, {dotted: 3}, Recipe) == changed


def test_no_tasks_name_the_workflow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rest = [f"root={tmp_path}", "corpus={sources: [{kind: pydocs}]}"]
    assert main(["plan", "finetune", "bert-mini", *rest]) == 2
    assert "the workflow pretrain takes it" in capfd.readouterr().err
    assert main(["plan", "pretrain", "bert-mini", *rest]) == 0
