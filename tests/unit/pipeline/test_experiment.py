"""Variants, tasks and budgets become stages: each built once, each with a title of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import load, with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Stage
from rungwise.evaluation.comparison.summary import CompareConfig
from rungwise.pipeline.experiment import Experiment, plan_experiment, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import report_stage
from rungwise.report.page import recipe_text
from tests.conftest import small_recipe, write_corpus

PARAGRAPHS = {"data": {"kind": "paragraph_label", "num_labels": 3}}
CAUSAL = {"kind": "causal", "sequence_length": 32}
WORDS = {"kind": "masked_blocks", "sequence_length": 32}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("experiment")
    corpus = write_corpus(folder / "text", documents=3)
    texts = "".join(f"text {n}\t{n % 2}\n" for n in range(40))
    (folder / "labelled.tsv").write_text("text\tlabel\n" + texts)
    table = {"kind": "table", "columns": {"text": "text", "label": "label"}}
    labelled = {
        "kind": "files",
        "format": table,
        "train": str(folder / "labelled.tsv"),
        "validation_fraction": 0.2,
        "test_fraction": 0.2,
    }
    return small_recipe(
        folder / "root",
        corpus,
        tasks={"paragraphs": PARAGRAPHS, "files": {"data": labelled}},
        finetune={"pooling": "mean", "sequence_length": 32},
        evaluate={"num_seeds": 2},
    )


def built(plain: dict[str, Any], **changes: Any) -> dict[str, Stage]:
    return plan(recipe(plain, **changes)).stages


def plan(recipe: Recipe) -> Experiment:
    return plan_experiment(recipe, resolve_variants(recipe))


def recipe(plain: dict[str, Any], **changes: Any) -> Recipe:
    return validate(Recipe, with_overrides(plain, changes))


def step_of(name: str, **blocks: Any) -> dict[str, Any]:
    settings = {"objective": "mlm", "steps": 10, "global_batch_size": 8}
    return {"name": name, "instances": WORDS, "pretrain": settings} | blocks


def titles(stages: dict[str, Stage], name: str) -> Sequence[str]:
    return [title for title, stage in stages.items() if stage.name == name]


def test_what_a_variant_does_not_give_follows_its_kind(plain: dict[str, Any]) -> None:
    """GPT's norms are in front and its tokenizer keeps case, unless the recipe says otherwise."""
    variants = {"gpt": {"model.kind": "gpt", "tokenizer.kind": "byte_bpe", "instances": CAUSAL}}
    for own, expected in (({}, ("pre", False)), ({"model.norm": "post"}, ("post", False))):
        first = recipe(plain, **own, variants=variants, tasks={})
        stages = plan(first).stages
        model, tokenizer = stages["pretrain"].config.model, stages["tokenizer"].config  # pyright: ignore[reportAttributeAccessIssue]
        assert (model.norm, tokenizer.lowercase) == expected  # pyright: ignore[reportAttributeAccessIssue]
        assert model.num_layers == plain["model"]["num_layers"]
        kept = validate(Recipe, first.to_record(first.root))
        assert _fingerprints(kept) == _fingerprints(first)


def test_every_input_comes_before_its_readers_with_its_title(plain: dict[str, Any]) -> None:
    stages = built(plain, variants={"a": {}, "b": {"pretrain.steps": 50}})
    seen: set[str] = set()
    for title, stage in stages.items():
        assert stage.display_name == title
        assert {source.display_name for source in stage.inputs.values()} <= seen
        seen.add(title)
    assert len({stage.fingerprint for stage in stages.values()}) == len(stages)


def test_systems_that_differ_in_fine_tuning_share_the_rest(plain: dict[str, Any]) -> None:
    variants = {"pretrained": {}, "random": {"finetune.initialisation": "random"}}
    stages = built(plain, variants=variants)
    assert titles(stages, "pretrain") == ["pretrain"]
    inputs = stages["evaluate/files"].inputs
    assert inputs["pretrain/pretrained"] is inputs["pretrain/random"]
    config = stages["evaluate/files"].config
    assert isinstance(config, CompareConfig)
    assert [variant.initialisation for variant in config.variants.values()] == [
        "pretrained",
        "random",
    ]


def test_what_a_system_says_of_fine_tuning_goes_over_a_task(plain: dict[str, Any]) -> None:
    stages = built(
        plain,
        **{
            "tasks.files.finetune": {"epochs": 7, "batch_size": 4},
            "variants": {"a": {}, "b": {"finetune.epochs": 9, "finetune.top": {"kind": "bilstm"}}},
        },
    )
    for task, expected in (("files", [(7, 4), (9, 4)]), ("paragraphs", [(3, 32), (9, 32)])):
        config = stages[f"evaluate/{task}"].config
        assert isinstance(config, CompareConfig)
        variants = config.variants.values()
        assert [(one.epochs, one.batch_size) for one in variants] == expected
        assert [one.top.kind for one in variants] == ["linear", "bilstm"]


def test_budgets_are_tasks_of_their_own_with_the_same_variants(plain: dict[str, Any]) -> None:
    stages = built(plain, **{"evaluate.label_budgets": [10, 20]})
    # Files are read before anything is trained, paragraphs come from the corpus.
    assert titles(stages, "task") == [
        "task/files",
        "task/files/10",
        "task/files/20",
        "task/paragraphs",
        "task/paragraphs/10",
        "task/paragraphs/20",
    ]
    order = list(stages)
    assert order.index("task/files/20") < order.index("corpus") < order.index("task/paragraphs")
    assert getattr(stages["task/files/10"].config, "train_examples") == 10  # noqa: B009
    assert getattr(stages["task/paragraphs/20"].config, "train_per_label") == 6  # noqa: B009
    assert len(titles(stages, "evaluate")) == 6


def test_only_named_variants_are_compared_at_budgets(plain: dict[str, Any]) -> None:
    two = {"pretrained": {}, "random": {"finetune.initialisation": "random"}}
    budgets = {"evaluate.label_budgets": [10], "evaluate.budget_variants": ["random"]}
    stages = built(plain, variants=two, **budgets)
    compared = {
        title: list(getattr(stages[title].config, "variants"))  # noqa: B009
        for title in titles(stages, "evaluate")
    }
    assert compared["evaluate/files"] == ["pretrained", "random"]
    assert compared["evaluate/files/10"] == compared["evaluate/paragraphs/10"] == ["random"]


def test_what_only_lost_variants_have_is_left_out(plain: dict[str, Any]) -> None:
    budgets = {"label_budgets": [10], "budget_variants": ["b"], "keep": "b"}
    changes = {f"evaluate.{key}": value for key, value in budgets.items()}
    variants = {name: {"pretrain.seed": seed} for seed, name in enumerate("abc")}
    names = {"tasks.files.variants": ["b"]}
    stages = plan(
        recipe(plain, variants=variants, **changes, **names).with_gaps((), ["b"], {})
    ).stages
    assert titles(stages, "evaluate") == ["evaluate/paragraphs"]
    compared = getattr(stages["evaluate/paragraphs"].config, "variants")  # noqa: B009
    assert list(compared) == ["a", "c"]


@pytest.mark.parametrize("block", ["model", "tokenizer"])
def test_a_block_that_is_a_word_is_refused_beside_weights(
    plain: dict[str, Any], block: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{block}: .*found 'bert'"):
        validate(Recipe, plain | {block: "bert", "pretrain": {"initial": "somewhere"}})


def test_matched_pretraining_costs_every_system_the_same(plain: dict[str, Any]) -> None:
    """A model that predicts every position does more a token than one that predicts 15 %."""
    variants = {"bert": {}, "ltr": {"pretrain.objective": "left_to_right", "instances": CAUSAL}}
    stages = built(plain, variants=variants, match_pretraining="flops")
    steps = [
        stages[title].config.pretrain.steps  # pyright: ignore[reportAttributeAccessIssue]
        for title in ("pretrain", "pretrain/ltr")
    ]
    assert steps[0] == 40
    assert 1 < steps[1] < 40
    same = built(plain, variants=variants)
    assert same["pretrain/ltr"].config.pretrain.steps == 40  # pyright: ignore[reportAttributeAccessIssue]


def test_four_stages_begin_each_with_the_weights_before(plain: dict[str, Any]) -> None:
    domain = step_of("domain", corpus=plain["corpus"] | {"seed": 1})
    task = step_of("task", task_text={"held_out_fraction": 0.2})
    stages = built(
        plain,
        variants={
            "GF": {},
            "GTF": {"steps": [{}, task]},
            "GDTF": {"steps": [{}, domain, task]},
            "GTDF": {"steps": [{}, task, domain]},
        },
    )
    last = stages["evaluate/files"].inputs["pretrain/GDTF"]
    assert last.display_name == "pretrain/task/files/GDTF"
    assert last.inputs["initial"].display_name == "pretrain/domain/GDTF"
    assert last.inputs["initial"].inputs["initial"].display_name == "pretrain"
    # A step on a corpus that follows the task's text is another one for each task.
    ends = [stages[f"evaluate/{task}"].inputs["pretrain/GTDF"] for task in plain["tasks"]]
    assert ends[0].fingerprint != ends[1].fingerprint


def test_a_model_is_registered_with_its_task_not_with_a_step(plain: dict[str, Any]) -> None:
    own = plain["tasks"]["files"]["data"] | {"test_fraction": 0.3}
    step = step_of("more", task=own, task_text={"held_out_fraction": 0.2})
    stages = built(plain, steps=[{}, step], registry={})
    inputs = stages["register/files"].inputs
    assert inputs["task"] is stages["task/files"]
    assert inputs["pretrain"].display_name == "pretrain/more/pretrained"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"a": {"evaluate.num_seeds": 9}}}, r"evaluate.num_seeds: a variant"),
        ({"variants": {"a": {"finetune.epoch": 9}}}, r"variants.a: finetune.epoch: unknown key"),
        ({"evaluate.label_budgets": [2]}, r"tasks.paragraphs: evaluate.label_budgets has 2, fewer"),
        (
            {"evaluate.budget_variants": ["a"], "evaluate.label_budgets": [9]},
            r"budget_variants: .* paragraphs, pretrained, found 'a'",
        ),
        ({"finetune": None}, "has no block finetune"),
        ({"tasks.files.data.train": "/no/where.tsv"}, r"tasks.files: data.train: no file matches"),
        ({"tasks.files.finetune": {"epoch": 2}}, "finetune of pretrained: epoch: unknown key"),
        (
            {
                "evaluate.first_seed": 3,
                "sweep": {
                    "trials": 1,
                    "seed": 4,
                    "space": {"finetune.epochs": {"kind": "choice", "values": [1]}},
                },
            },
            r"seeds 3 to 4, which hold the sweep's own \(4, variant pretrained\)",
        ),
        (
            {"variants": {"a": {"pretrain.objective": "left_to_right", "instances": CAUSAL}}}
            | {"finetune.pooling": "cls"},
            "finetune.pooling is cls, but a bert pretrained on left_to_right",
        ),
        ({"finetune.sequence_length": 64}, "sequence_length is 64, but .* 32 positions"),
        (  # an objective that the recipe gives is that of every variant
            {"variants": {"gpt": {"model.kind": "gpt", "instances": CAUSAL}}}
            | {"pretrain.objective": "mlm_nsp"},
            r"objective is mlm_nsp, but model\.kind is gpt",
        ),
    ],
)
def test_wrong_keys_are_named(plain: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(plain, **changes)


def test_without_tasks_every_variant_is_pretrained_and_has_a_page(plain: dict[str, Any]) -> None:
    step = step_of("more", corpus=plain["corpus"] | {"seed": 1})
    variants = {"a": {}, "b": {"pretrain.steps": 50}, "c": {"steps": [{}, step]}}
    only = recipe(plain, tasks={}, finetune=None, evaluate=None, variants=variants)
    stages = plan(only).stages
    assert titles(stages, "pretrain") == ["pretrain", "pretrain/b", "pretrain/more/c"]
    assert {stage.name for stage in stages.values()} == {
        *("corpus", "tokenizer", "tokens", "instances", "pretrain")
    }
    assert list(report_stage(only, stages).inputs) == list(stages)


def test_every_seed_of_pretraining_is_measured_and_fine_tuned(plain: dict[str, Any]) -> None:
    """In every step too; a model of counts has no seed, so it is built once."""
    step = step_of("more", corpus=plain["corpus"] | {"seed": 1})
    step["pretrain"] |= {"seed": 5}
    counts = {"model": {"kind": "ngram", "order": 2}, "pretrain": {"kind": "counts"}}
    variants = {"a": {}, "once": {"pretraining_seeds": 1}, "counts": counts}
    variants |= {"more": {"steps": [{}, step]}}
    several = {
        "pretraining_seeds": 3,
        "variants": variants,
        "measure": {"perplexity": {"kind": "perplexity"}},
        "tasks.files.variants": ["a", "once", "more"],
    }
    experiment = plan(recipe(plain, **several))
    stages = experiment.stages
    seeds = {
        title: stages[title].config.pretrain.seed  # pyright: ignore[reportAttributeAccessIssue]
        for title in titles(stages, "pretrain")
        if title != "pretrain/counts"
    }
    assert seeds == {
        "pretrain": 0,
        "pretrain/seed-1": 1,
        "pretrain/seed-2": 2,
        **{
            f"pretrain/more/more{end}": seed
            for end, seed in (("", 5), ("/seed-1", 6), ("/seed-2", 7))
        },
    }
    assert {name: len(each) for name, each in experiment.measured.items()} == {
        "a": 3,
        "once": 1,
        "counts": 1,
        "more": 3,
    }
    evaluate = stages["evaluate/files"]
    assert [name for name in evaluate.inputs if name.startswith("pretrain")] == [
        *("pretrain/a", "pretrain/a/seed-1", "pretrain/a/seed-2", "pretrain/once"),
        *("pretrain/more", "pretrain/more/seed-1", "pretrain/more/seed-2"),
    ]
    assert [name for name in evaluate.inputs if name.startswith("tokenizer")] == [
        *("tokenizer/a", "tokenizer/once", "tokenizer/more")
    ]


def test_a_kept_recipe_builds_the_same_stages(plain: dict[str, Any], tmp_path: Path) -> None:
    rates = {"finetune.learning_rate": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}}
    first = recipe(
        plain,
        **{
            "variants": {"a": {}, "b": {"pretrain.steps": 50, "finetune.epochs": 2}},
            "match_pretraining": "flops",
            "tasks.files.finetune": {"epochs": 7},
            "sweep": {"trials": 4, "space": rates},
            "evaluate.label_budgets": [10],
            "registry": {},
            "report": {"fill_in_examples": 3},
            "tracking": {"uri": "http://host:5000"},
        },
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_text(first.to_record("/some/root")))
    again = load(Recipe, path)
    assert _fingerprints(again) == _fingerprints(first)
    assert again.root == "/some/root"
    assert again.tracking.uri == "http://host:5000"


def _fingerprints(of: Recipe) -> dict[str, str]:
    stages = plan(of).stages
    stages["report"] = report_stage(of, stages)
    return {title: stage.fingerprint for title, stage in stages.items()}
