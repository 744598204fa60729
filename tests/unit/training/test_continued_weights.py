"""Continued pretraining: the same weights on every worker, refusals, and no second beginning."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, PretrainedBody, TaskModel
from rungwise.models.families.elmo import ElmoConfig
from rungwise.models.families.nnlm import NnlmConfig
from rungwise.models.families.recurrent import LstmConfig
from rungwise.models.losses.objectives import LossSum
from rungwise.models.word_vectors.vector_family import TABLE
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.training.config import FitConfig, GradientConfig, GradientFit
from rungwise.training.feed import list_turns, open_phases
from rungwise.training.initial import build_model, check_initial, compare_tensors
from rungwise.training.parallel import Group, Worker
from rungwise.training.pretrained import load_module
from rungwise.training.ray.gradient import check_fit
from rungwise.training.summary import GradientRun, PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors, save_tensors
from tests.small_models import objective_of
from tests.summaries import made_of
from tests.training_runs import (
    VOCAB,
    Killed,
    KilledAt,
    assert_same_weights,
    config,
    make_instances,
    run,
)

ALONE = Worker(Group(0, 1, torch.device("cpu")), ComputeConfig(micro_batch_size=4))
HEADS = {"bert.pooler.weight", "bert.pooler.bias", "nsp.weight", "nsp.bias"}
# A step that changes no weight: float32 has no room for what it would add.
STANDING: dict[str, Any] = {"pretrain.steps": 1, "pretrain.optimizer.learning_rate": 1e-30}
FEW: dict[str, Any] = {"pretrain.steps": 3}
MLM = {"pretrain.objective": "mlm", **FEW}


def kept(root: Path, stage: str, fingerprint: str, made: dict[str, Any]) -> Artifact:
    """A finished artifact below `root`, as a run leaves it."""
    record = {**made, "stage": stage, "fingerprint": fingerprint, "label": "made"}
    return artifacts.finish(Folder.at(root / stage / f"made-{fingerprint}"), record, {})


def instances_of(root: Path, tokenizer: str = "t" * 12, kind: str = "masked_pairs") -> Artifact:
    """Instances of tokens that name the tokenizer they were encoded with."""
    fingerprint = f"{tokenizer[0]}{kind.replace('_', '')}"[:12].ljust(12, "0")
    made = make_instances(root / "instances" / f"made-{fingerprint}", kind).record
    encoded = {"tokenizer": {"stage": "tokenizer", "fingerprint": tokenizer}}
    tokens = kept(root, "tokens", fingerprint, {"inputs": encoded})
    inputs = made_of(tokens=tokens)
    return kept(root, "instances", fingerprint, {**made, "inputs": inputs})


def pretrained(
    root: Path,
    settings: GradientFit,
    instances: Artifact,
    fingerprint: str,
    initial: Artifact | None = None,
) -> Artifact:
    """A finished run as an artifact; its summary holds what further runs read, and its losses."""
    output = root / "pretrain" / f"made-{fingerprint}"
    progress = run(settings, instances, output, initial=initial)
    began = compare_tensors(build_model(settings, VOCAB, meta=True), initial) if initial else None
    made = {
        "config": settings.blocks(),
        "inputs": {"instances": {"stage": "instances", "fingerprint": instances.fingerprint}},
    }
    artifact = kept(root, "pretrain", fingerprint, made)
    summary = PretrainSummary.model_construct(
        vocab_size=VOCAB,
        began_with=began,
        gradient=GradientRun.model_construct(validation=tuple(progress.validation)),
    )
    return summary.replace_summary(artifact)


def carried_tensors(pretrain: Artifact) -> tuple[str, ...]:
    began_with = PretrainSummary.of(pretrain).began_with
    return () if began_with is None else began_with.carried


def validation(pretrain: Artifact, place: int) -> dict[str, int | float]:
    gradient = PretrainSummary.of(pretrain).gradient
    assert gradient is not None
    return gradient.validation[place]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def instances(root: Path) -> Artifact:
    return instances_of(root)


@pytest.fixture(scope="module")
def general(root: Path, instances: Artifact) -> Artifact:
    return pretrained(root, config(**FEW), instances, "aaaa")


def of(pretrain: Artifact) -> dict[str, torch.Tensor]:
    return load_tensors(pretrain.folder, MODEL)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# From an objective to another of each family that has both, and the modules that are then fresh.
CONVERSIONS: list[tuple[str, str, str, set[str]]] = [
    ("bert", "left_to_right", "mlm", set()),
    ("bert", "left_to_right", "mlm_nsp", {"pooler", "nsp"}),
    ("bert", "mlm_nsp", "left_to_right", set()),
    ("modern_bert", "left_to_right", "mlm", set()),
    ("modern_bert", "mlm", "left_to_right", set()),
    ("modern_bert", "left_to_right", "causal_and_masked", set()),
    ("bert", "causal_and_masked", "mlm", set()),
    ("bert", "mlm", "permuted", set()),
    ("modern_bert", "mlm", "replaced_tokens", {"generator", "detector"}),
]


@pytest.mark.parametrize(("family", "before", "after", "fresh"), CONVERSIONS)
def test_a_model_is_converted_to_another_way_of_reading(
    root: Path, tmp_path: Path, family: str, before: str, after: str, fresh: set[str]
) -> None:
    """Every tensor that both have is the same to the bit, and so is the first loss."""

    def settings(name: str, **changes: Any) -> GradientFit:
        return config("", family, **{"pretrain.objective": name, "model.dropout": 0.0}, **changes)

    def rows(name: str) -> Artifact:
        kinds = settings(name).objective.reads
        return instances_of(tmp_path, kind=kinds[-1] if name == "mlm" else kinds[0])

    first = pretrained(tmp_path, settings(before, **FEW), rows(before), "aaaa")
    further = settings(after, **STANDING, **{"pretrain.seed": 5})
    inputs = {"instances": rows(after), "initial": first}
    check_fit(further, inputs, ComputeConfig())
    second = pretrained(tmp_path, further, rows(after), "bbbb", first)
    old, new = of(first), of(second)
    assert_same({name: new[name] for name in old}, old)
    told = PretrainSummary.of(second).began_with
    assert told is not None
    assert (told.objective, told.fingerprint) == (before, "aaaa")
    assert set(told.fresh) == new.keys() - old.keys()
    modules = {name.removeprefix("bert.").split(".")[0] for name in told.fresh}
    assert modules == fresh
    assert set(told.carried) == (HEADS if before == "mlm_nsp" else set())
    # The loss is that of these weights, read in the other way, before the first step.
    model = further.model.build(VOCAB, further.objective)
    model.load_state_dict({name: old.get(name, new[name]) for name in model.state_dict()})
    batches = open_phases(further, list_turns(inputs, further.pretrain), ALONE)[0].validation()
    with torch.no_grad():
        sums = sum((further.objective(model, batch).packed() for batch in batches), torch.zeros(1))
    expected = LossSum.unpacked(sums, further.objective.parts).metrics()
    assert validation(second, 0)["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_a_killed_further_run_goes_on_from_its_own_checkpoint_and_not_from_the_start(
    general: Artifact, instances: Artifact, tmp_path: Path
) -> None:
    settings = config(**{"pretrain.steps": 8})
    undisturbed = run(settings, instances, tmp_path / "a", initial=general)
    others = Artifact("pretrain", "", Folder.at(tmp_path / "others"), general.record)
    save_tensors(others.folder, MODEL, {n: torch.zeros_like(t) for n, t in of(general).items()})
    with pytest.raises(Killed):
        run(settings, instances, tmp_path / "b", report=KilledAt(7), initial=general)
    # If the weights it began with came in again, they would now be zeros.
    resumed = run(settings, instances, tmp_path / "b", initial=others)
    assert resumed == undisturbed
    assert_same_weights(tmp_path / "a", tmp_path / "b")


def test_untrained_parts_are_carried(root: Path, general: Artifact, instances: Artifact) -> None:
    words = pretrained(root, config(**MLM), instances, "bbbb", general)
    told = PretrainSummary.of(words).began_with
    assert told is not None
    assert (set(told.carried), told.fresh) == (HEADS, ())
    assert validation(words, 0)["mlm_loss"] == pytest.approx(
        validation(general, -1)["mlm_loss"], rel=1e-6
    )
    before, after = of(general), of(words)
    assert before.keys() == after.keys()
    assert {name for name in before if torch.equal(before[name], after[name])} == HEADS
    # The model is read as one of its objective, without them, and fine-tuning finds the pooler.
    assert set(load_module(words).state_dict()) == before.keys() - HEADS
    task = TaskInfo("classification", ("no", "yes"), False, "accuracy")
    model = TaskModel(
        FinetuneConfig(), task, PretrainedBody(config().model, objective_of("mlm"), VOCAB)
    )
    model.load_pretrained(after)
    pooler = dict(model.head.named_parameters())["pool.dense.weight"]
    assert torch.equal(pooler, before["bert.pooler.weight"])

    again = pretrained(root, config(**MLM), instances, "cccc", words)
    assert set(carried_tensors(again)) == HEADS
    pairs = pretrained(root, config(**STANDING), instances, "dddd", again)
    assert carried_tensors(pairs) == ()
    assert_same(of(pairs), of(again))


def test_a_missing_weight_is_named(general: Artifact, instances: Artifact, tmp_path: Path) -> None:
    short = Artifact("pretrain", "", Folder.at(tmp_path), general.record)
    tensors = of(general)
    del tensors["mlm.bias"]
    save_tensors(short.folder, MODEL, tensors)
    with pytest.raises(DataError, match=r"lacks mlm\.bias"):
        run(config(), instances, tmp_path / "run", initial=short)


def refusal(settings: GradientFit, inputs: dict[str, Artifact]) -> str:
    with pytest.raises(ConfigError) as caught:
        check_fit(settings, inputs, ComputeConfig())
    return str(caught.value)


def test_what_cannot_go_on_is_refused(root: Path, general: Artifact, instances: Artifact) -> None:
    inputs = {"instances": instances, "initial": general}
    check_fit(config(), inputs, ComputeConfig())
    check_fit(config(**MLM), inputs, ComputeConfig())

    wider = config(**{"model.hidden_size": 32, "model.num_layers": 1})
    told = refusal(wider, inputs)
    assert "model.hidden_size is 32, but there it was 16" in told
    assert "model.num_layers is 1, but there it was 2" in told

    others = {**inputs, "instances": instances_of(root, tokenizer="u" * 12)}
    told = refusal(config(), others)
    assert "uuuuuuuuuuuu" in told
    assert "tttttttttttt" in told
    assert "tokenizer" in told

    sentences = pretrained(
        root,
        config(**FEW, **{"pretrain.objective": "simcse"}),
        instances_of(root, kind="masked_blocks"),
        "ssss",
    )
    told = refusal(config(**MLM), {"instances": instances, "initial": sentences})
    assert "pretrain.objective is mlm" in told
    assert "were trained on simcse; set pretrain.objective=simcse" in told
    blocks = {**inputs, "instances": instances_of(root, kind="causal")}
    assert "model.kind is gpt, but there it was bert" in refusal(config("causal"), blocks)


def test_word_vectors_replace_those_of_any_model_and_stay_as_they_are(root: Path) -> None:
    """A table of word2vec under an LSTM, at every step of a run; the rest is the seed's draw."""
    blocks: Any = {"model": {"kind": "word2vec", "size": 16}, "pretrain": {"kind": "asynchronous"}}
    tokens = {"stage": "tokens", "fingerprint": "tcausal00000"}
    made = {"config": blocks, "inputs": {"tokens": tokens}}
    instances = instances_of(root, kind="causal")
    table = torch.randn(VOCAB, 16)
    folder = Folder.at(root / "pretrain" / "made-vvvv")
    save_tensors(folder, MODEL, {TABLE: table, "output.weight": table.clone()})
    vectors = kept(root, "pretrain", "vvvv", made)
    family = LstmConfig(num_layers=1, hidden_size=16, tied=False)
    settings = FitConfig(family, GradientConfig(steps=3, global_batch_size=4, objective="causal"))
    check_initial(settings, vectors, instances)
    output = run(settings, instances, root / "pretrain" / "made-under", initial=vectors)
    trained = load_tensors(Folder.at(root / "pretrain" / "made-under"), MODEL)
    fresh = build_model(settings, VOCAB).state_dict()
    assert output.step == 3
    assert trained.keys() == fresh.keys()
    for name, value in trained.items():
        start = table if name == "lstm.token_embedding.weight" else fresh[name]
        assert torch.equal(value, start) == (start is table), name
    began = compare_tensors(build_model(settings, VOCAB, meta=True), vectors)
    assert began.carried == ()
    assert set(began.fresh) == fresh.keys() - {"lstm.token_embedding.weight"}
    for model, message in (
        (LstmConfig(hidden_size=8), "of the step before have 16 units, .* have 8; give"),
        (NnlmConfig(embedding_size=8), "have 8; give the step before that size"),
        (ElmoConfig(), "an? elmo has none; leave that step out"),
    ):
        other = FitConfig(model, GradientConfig(steps=3, objective=model.objectives[0].name))
        with pytest.raises(ConfigError, match=message):
            check_initial(other, vectors, instances)
