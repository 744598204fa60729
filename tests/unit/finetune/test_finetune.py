"""Fine-tuning of items by hand (toy_tasks.py): adaptations, tops, states, refusals."""

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models
from torch.nn import functional

from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.finetune import (
    PretrainedBody,
    build_frame,
    check,
    describe,
    evaluate,
    finetune,
    load_data,
    outputs,
    restore,
)
from rungwise.finetune.loop import build, collate, learning_rate_shares, make_batches
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Kind, TaskInfo, Text, write_examples
from rungwise.tasks.kinds.items import Item, Row
from rungwise.tasks.kinds.kind import Pairs
from rungwise.training.optimizer import (
    OptimizerConfig,
    build_optimizer,
    compute_learning_rate,
    set_learning_rate,
)
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import save_tensors
from tests.small_models import KINDS as OBJECTIVES
from tests.small_models import objective_of, small_config, small_model
from tests.summaries import pretrained_of, task_of
from tests.toy_tasks import INFO, WAYS, config_of, stand_in, toy_data, word_tokenizer

# Of generation, see test_generation.py.
TASKS: tuple[Kind, ...] = tuple(kind for kind in INFO if kind != "generation")
CAUSAL: tuple[str, ...] = ("causal", "left_to_right", "modern_left_to_right", "llama")

REFUSED = yaml.safe_load(Path(__file__).with_name("refused_finetuning.yaml").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


class Epochs:
    """An `on_epoch` that keeps the metrics of each epoch and the state after it, by its number."""

    def __init__(self) -> None:
        self.metrics: dict[int, dict[str, float]] = {}
        self.states: dict[int, bytes] = {}

    def __call__(self, epoch: int, metrics: dict[str, float], state: Any = None) -> None:
        self.metrics[epoch], self.states[epoch] = metrics, state()


@pytest.mark.parametrize(("kind", "pairs"), [way for way in WAYS if way[0] in TASKS])
def test_an_easy_task_is_learned_and_scored_on_each_split(kind: Kind, pairs: Pairs) -> None:
    keys: dict[str, Any] = {
        "epochs": 8,
        "dropout": 0,
        "pooling": "mean",
        "learning_rate": 0.03,
        "pairs": pairs,
    }
    data = toy_data(kind, examples=48, pairs=pairs, num_layers=1)
    model = finetune(config_of(**keys), data, 0, epochs := Epochs())
    metrics = epochs.metrics
    assert list(metrics) == list(range(1, 9))
    assert metrics[8]["loss"] < metrics[1]["loss"]
    scores = evaluate(model, data, "test")
    assert scores.metrics["accuracy"] > 0.9
    assert len(scores.predictions) == 48
    assert model.calibration == {"outputs": 48.0}
    assert not model.training
    validation = evaluate(model, data, "validation")
    assert (validation.loss, validation.metrics["accuracy"]) == (
        metrics[8]["loss"],
        metrics[8]["accuracy"],
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_pretrained_starts_from_the_pretrained_weights_and_random_does_not(objective: str) -> None:
    data = toy_data("classification", objective)
    pooling = "mean" if objective in CAUSAL else "cls"
    name = next(name for name in data.weights if "attention.output.weight" in name)
    for initialisation in ("pretrained", "random"):
        start = build(config_of(initialisation=initialisation, pooling=pooling), data).state_dict()
        same = torch.equal(start[f"encoder.{name}"], data.weights[name])
        assert same == (initialisation == "pretrained")
        if (drawn := start.get("head.pool.dense.weight")) is not None:
            trained = data.weights.get("bert.pooler.weight")
            assert (trained is not None) == (objective in ("mlm_nsp", "sentence_order"))
            assert (trained is not None and torch.equal(drawn, trained)) == (
                same and trained is not None
            )


def test_a_loss_that_is_not_finite_names_the_learning_rate() -> None:
    data = toy_data("classification")
    data.weights["bert.embedding_norm.weight"].fill_(float("nan"))
    message = r"loss of step 1 of 3 is nan; lower finetune\.learning_rate, now 0\.01"
    with pytest.raises(UserError, match=message):
        finetune(config_of(), data, 0)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[set[float]]:
    """The learning rates of the optimizer, step by step."""
    steps: list[set[float]] = []

    def record(optimizer: torch.optim.Optimizer, rate: float) -> None:
        set_learning_rate(optimizer, rate)
        steps.append({group["lr"] for group in optimizer.param_groups})

    monkeypatch.setattr("rungwise.training.optimizer.set_learning_rate", record)
    return steps


def test_the_rates_of_the_optimizer_are_the_configs(rates: list[set[float]]) -> None:
    keys: dict[str, Any] = {"epochs": 3, "warmup_fraction": 0.4, "head_learning_rate": 0.05}
    finetune(config_of(**keys), toy_data("classification"), 0)
    assert len(rates) == 9
    assert max(rates, key=max) == rates[4] == {0.01, 0.05}  # the first four steps warm up
    rates.clear()
    finetune(config_of(adaptation={"kind": "frozen"}, **keys), toy_data("classification"), 0)
    assert rates[4] == {0.05}, "nothing learns at `learning_rate`"


@pytest.mark.parametrize(
    ("objective", "use"), tuple(zip(OBJECTIVES, itertools.cycle(["frozen", "features"])))
)
def test_a_fixed_encoder_keeps_every_byte_and_the_rest_learns(objective: str, use: str) -> None:
    data = toy_data("classification", objective)
    config = config_of(adaptation={"kind": use}, pooling="mean", weight_decay=0.1)
    torch.manual_seed(3)
    start = build(config, data).state_dict()
    end = finetune(config, data, 3).state_dict()
    moved = {name for name in end if not torch.equal(start[name], end[name])}
    assert moved == {name for name in end if not name.startswith("encoder.")}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_discriminative_rates_are_the_formula(objective: str) -> None:
    """Of two layers: embeddings decay², first decay, second 1; the head its own."""
    data = toy_data("tagging", objective)
    config = config_of(
        adaptation={"kind": "discriminative", "decay": 0.5}, head_learning_rate=0.03, epochs=2
    )
    model = build(config, data)
    optimizer_config = OptimizerConfig(learning_rate=config.learning_rate)
    optimizer = build_optimizer(model, optimizer_config, learning_rate_shares(model, config))
    set_learning_rate(optimizer, compute_learning_rate(3, 6, optimizer_config))
    now = compute_learning_rate(3, 6, optimizer_config)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        share = 0.25
        if name.startswith("head."):
            share = 3.0
        elif ".blocks.0." in name:
            share = 0.5
        elif ".blocks.1." in name or ".final_norm." in name:
            share = 1.0
        assert rates[id(parameter)] == pytest.approx(now * share, rel=1e-12), name


def test_layers_unfreeze_from_the_top_one_after_the_other() -> None:
    data = toy_data("classification", "mlm")
    use = {"kind": "discriminative", "decay": 0.9, "unfreeze_every_epochs": 2}
    config = config_of(adaptation=use, epochs=8)
    torch.manual_seed(0)
    before = {name: t.clone() for name, t in build(config, data).state_dict().items()}
    kept: list[set[str]] = []

    def on_epoch(epoch: int, metrics: Any, state: Any = None) -> None:
        after = torch.load(io.BytesIO(state()), weights_only=True)["model"]
        moved = {name for name in after if not torch.equal(before[name], after[name])}
        kept.append({_level(name) for name in moved})
        before.update(after)

    finetune(config, data, 0, on_epoch)
    order = ["head", "block 1", "block 0", "embeddings"]
    assert kept == [set(order[: 1 + epoch // 2]) for epoch in range(8)]


def _level(name: str) -> str:
    if name.startswith("head."):
        return "head"
    return f"block {name.partition('.blocks.')[2][0]}" if ".blocks." in name else "embeddings"


@pytest.mark.parametrize("use", ["full", "features", "discriminative"])
def test_going_on_from_a_state_gives_the_bits_of_one_go(use: str) -> None:
    data = toy_data("classification")
    block = {"kind": use} | ({"unfreeze_every_epochs": 1} if use == "discriminative" else {})
    config = config_of(adaptation=block, epochs=3, pooling="mean")
    whole = finetune(config, data, 4, first := Epochs())
    for done in (1, 2, 3):
        resumed = finetune(config, data, 4, rest := Epochs(), first.states[done])
        assert list(rest.metrics) == list(range(done + 1, 4))
        assert resumed.calibration == whole.calibration
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_whoever_goes_on_with_other_settings_gets_those(rates: list[set[float]]) -> None:
    data = toy_data("classification")
    config = config_of(epochs=2, warmup_fraction=0)
    finetune(config, data, 0, first := Epochs())
    state = first.states[1]
    changed = config.model_copy(update={"learning_rate": 0.5, "weight_decay": 0.3, "epochs": 3})
    rates.clear()
    finetune(changed, data, 0, start=state)
    assert [max(each) for each in rates] == pytest.approx([0.5 * (1 - n / 9) for n in range(3, 9)])
    same, other = (
        finetune(c, data, 0, start=state).state_dict()["head.linear.weight"]
        for c in (config, changed)
    )
    assert not torch.equal(same, other)
    wide = config.model_copy(update={"top": config_of(top={"kind": "bilstm"}).top})
    for other, saved in ((wide, state), (config, b"of another program")):
        with pytest.raises(UserError, match=r"the saved state is of another .* keep finetune\.top"):
            finetune(other, data, 0, start=saved)


@pytest.mark.parametrize("kind", TASKS)
def test_an_answer_does_not_depend_on_the_others_and_stands_in_its_place(kind: Kind) -> None:
    data = toy_data(kind, examples=70)
    model = build(config_of(pooling="mean"), data).eval()
    items = data.splits["test"].items
    together = outputs(model, items)
    for place in (0, 33, 69):
        (alone,) = outputs(model, [items[place]])
        np.testing.assert_allclose(together[place], alone, atol=1e-5)
        item = items[place]
        expected = {
            "classification": (2,),
            "multilabel": (2,),
            "regression": (),
            "tagging": (len(item.places), 2),
            "span": (len(item.rows[0].ids), 2),
            "choice": (len(item.rows),),
        }
        assert alone.shape == expected[kind]
        assert alone.dtype == np.float32
        assert np.isfinite(alone).all()


@pytest.mark.parametrize("kind", ["classification", "tagging", "span"])
def test_the_loss_of_a_split_is_the_mean_over_items_or_words(kind: Kind) -> None:
    data = toy_data(kind, examples=70)
    model = build(config_of(pooling="mean"), data).eval()
    items = data.splits["test"].items
    losses: list[float] = []
    for item, logits in zip(items, outputs(model, items), strict=True):
        logits_T = torch.from_numpy(np.asarray(logits))
        match kind:
            case "tagging":
                target = torch.tensor(item.target)
                losses += functional.cross_entropy(logits_T, target, reduction="none").tolist()
            case "span":
                pair = functional.cross_entropy(logits_T.T, torch.tensor(item.target))
                losses.append(pair.item())
            case _:
                losses.append(functional.cross_entropy(logits_T, torch.tensor(item.target)).item())
    assert evaluate(model, data, "test").loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("objective", "kind"), tuple(zip(OBJECTIVES, itertools.cycle(["classification", "span"])))
)
def test_a_model_comes_back_from_its_description_and_tensors(objective: str, kind: Kind) -> None:
    data = toy_data(kind, objective)
    use = {"kind": "features"} if kind == "span" else {"kind": "full"}
    top = {"kind": "bilstm", "hidden_size": 3} if kind == "span" else {"kind": "linear"}
    model = build(config_of(adaptation=use, top=top, pooling="mean"), data).eval()
    model.calibration = {"null_threshold": 0.25}
    described = json.loads(json.dumps(describe(model)))
    again = restore(described, model.state_dict())
    assert again.calibration == model.calibration
    assert (again.config, again.info, again.pretrained) == (
        model.config,
        data.info,
        data.pretrained,
    )
    items = data.splits["test"].items[:5]
    for one, other in zip(outputs(model, items), outputs(again, items), strict=True):
        assert np.array_equal(one, other)
    tensors = model.state_dict()
    tensors["head.linear.weight"] = tensors["head.linear.weight"][:, :1]
    with pytest.raises(DataError, match=r"size mismatch for head\.linear\.weight: .*give its own"):
        restore(described, tensors)


@pytest.mark.parametrize(("keys", "message"), REFUSED["settings"])
def test_impossible_settings_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(**keys)


@pytest.mark.parametrize(("objective", "kind", "keys", "message"), REFUSED["models"])
def test_what_a_model_or_a_task_cannot_be_asked_is_refused_before_anything_runs(
    objective: str, kind: Kind, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config_of(**keys), INFO[kind], small_config(objective), objective_of(objective))
    with pytest.raises(ConfigError, match=message):
        finetune(config_of(**keys), toy_data(kind, objective), 0)


def test_what_only_looks_impossible_is_let_pass() -> None:
    gpt = small_config("causal")
    check(config_of(), INFO["tagging"], gpt, objective_of("causal"))  # nothing is pooled
    check(
        config_of(top={"kind": "bilstm"}), INFO["choice"], gpt, objective_of("causal")
    )  # it reads both ways
    check(config_of(), INFO["choice"], small_config("bidirectional"), objective_of("bidirectional"))
    check(
        config_of(pairs="both_orders"), INFO["regression"], small_config("mlm"), objective_of("mlm")
    )
    sinusoid = small_config("mlm", positions="sinusoid")
    check(config_of(sequence_length=400), INFO["span"], sinusoid, objective_of("mlm"))


@pytest.fixture
def tokenizer() -> Tokenizer:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return word_tokenizer(special, (f"w{n}" for n in range(45)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_marks_are_those_of_pretraining_or_new_ones(objective: str, tokenizer: Tokenizer) -> None:
    pretrained = PretrainedBody(small_config(objective), objective_of(objective), 50)
    frame = build_frame(config_of(), pretrained, tokenizer)
    marks = (frame.start, frame.between, frame.end)
    masks = objective_of(objective).masks
    assert marks == ((2, 3, 3) if masks else (50, 51, 52))
    assert frame.reads_ahead == (objective not in CAUSAL)
    assert frame.sequence_length == 16
    bare = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    if masks:
        with pytest.raises(DataError, match="no special token for 'cls'"):
            build_frame(config_of(), pretrained, bare)
    else:
        assert build_frame(config_of(), pretrained, bare) == frame


def test_data_are_loaded_from_artifacts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    info = TaskInfo("classification", ("a", "b"), False, "accuracy")
    task = task_of(tmp_path / "task", info)
    for split, count in (("train", 3), ("validation", 2), ("test", 1)):
        write_examples(
            [Text(f"{split}:{n}", "w1", target="a") for n in range(count)], task.folder, split
        )
    (tmp_path / "tokenizer").mkdir()
    words = Artifact("tokenizer", "f" * 12, Folder.at(tmp_path / "tokenizer"), {})
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    model = small_model("causal")
    pretrain = pretrained_of(
        tmp_path / "pretrain", small_config("causal"), {}, objective="causal", vocab_size=50
    )
    save_tensors(pretrain.folder, "model.safetensors", dict(model.state_dict()))
    data = load_data(task, words, pretrain, config_of(pooling="last"))
    expected = PretrainedBody(small_config("causal"), objective_of("causal"), 50)
    assert (data.info, data.pretrained) == (info, expected)
    assert {name: len(split.items) for name, split in data.splits.items()} == {
        "train": 3,
        "validation": 2,
        "test": 1,
    }
    assert data.splits["test"].examples == [Text("test:0", "w1", target="a")]
    row = data.splits["test"].items[0].rows[0]
    assert (row.ids[0], row.ids[-1]) == (50, 52)
    assert torch.equal(data.weights["gpt.token_embedding.weight"], model.gpt.token_embedding.weight)
    with pytest.raises(ConfigError, match=r"finetune\.pooling is cls"):
        load_data(task, words, pretrain, config_of())
    smaller = PretrainSummary.of(pretrain).model_copy(update={"vocab_size": 49})
    with pytest.raises(DataError, match=r"expected the 49 tokens of the pretrained .* found 50"):
        load_data(task, words, smaller.replace_summary(pretrain), config_of(pooling="last"))


USES = (
    {"kind": "full"},
    {"kind": "frozen"},
    {"kind": "discriminative"},
    {"kind": "discriminative", "unfreeze_every_epochs": 1},
    {"kind": "features"},
)
TOPS = ({"kind": "linear"}, {"kind": "bilstm", "hidden_size": 3})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_way_of_use_serves_every_kind_of_task(objective: str) -> None:
    """A step of each: gradients are finite and reach what the way of use says.

    Each objective takes every way of use once, each with another kind than the objective before.
    """
    data = {kind: toy_data(kind, objective, examples=3) for kind in TASKS}
    poolings = ("mean", "last") if objective in CAUSAL else ("cls", "mean", "last")
    first = OBJECTIVES.index(objective)
    for number, (use, top) in enumerate(itertools.product(USES, TOPS)):
        kind = TASKS[(first + number) % len(TASKS)]
        pooling = poolings[number // 2 % len(poolings)]
        config = config_of(adaptation=use, top=top, pooling=pooling, epochs=2, dropout=0)
        model = build(config, data[kind]).train()
        batch = collate(data[kind].splits["train"].items, KINDS[kind])
        assert batch.targets is not None
        logits = model(batch.ids, batch.segments, batch.rows)
        total, count = KINDS[kind].loss_sums(logits, batch.targets)
        (total / count).backward()
        for name, parameter in model.named_parameters():
            fixed = use["kind"] in ("frozen", "features")
            if fixed and name.startswith("encoder."):
                assert parameter.grad is None, (config, name)
            else:
                assert parameter.grad is not None, (config, name)
                assert parameter.grad.isfinite().all(), (config, name)


def test_an_epoch_takes_every_item_once_in_batches_of_like_length() -> None:
    rng = np.random.default_rng(0)
    items = [
        Item((Row((1,) * length, (0,) * length, length - 1),), n)
        for n, length in enumerate(rng.integers(3, 60, size=1003))
    ]
    batches = make_batches(items, 8, seed=1, epoch=2)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert [len(batch) for batch in batches] == [8] * 125 + [3]
    lengths = np.array([len(item.rows[0].ids) for item in items])
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    shuffled = rng.permutation(1003)
    drawn = sum(8 * lengths[shuffled[n : n + 8]].max() for n in range(0, 1003, 8))
    assert padded < 1.1 * lengths.sum() < 0.7 * drawn
    # Neither short nor long ones come first, and another epoch has another order.
    means = np.array([lengths[batch].mean() for batch in batches[:-1]])
    assert abs(np.corrcoef(means, np.arange(125))[0, 1]) < 0.3
    again, other = (make_batches(items, 8, seed=1, epoch=epoch) for epoch in (2, 3))
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    assert any((a != b).any() for a, b in zip(batches, other, strict=True))
