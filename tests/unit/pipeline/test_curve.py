"""The curve of a ladder: which runs each rung has besides its own, and what they have in common."""

from typing import Any

import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Stage
from rungwise.evaluation.pretrainings import CurveConfig, CurveRun, CurveStageConfig
from rungwise.pipeline.ladder import ladder_stages
from rungwise.pipeline.recipe import Recipe
from rungwise.tokenizer.token_stage import TokensConfig
from rungwise.training.fit_config import PretrainStageConfig
from tests.conftest import small_gpt, small_recipe, write_corpus

STABLE = {"kind": "warmup_stable_decay", "warmup_steps": 2}
GPT = small_gpt() | {"pretrain": {"steps": 80, "optimizer": {"kind": "muon", "schedule": STABLE}}}
VARIANTS: dict[str, Any] = {
    "ngram2": {"model.order": 2},
    "gpt": GPT,
    "bert": GPT
    | {"model": GPT["model"] | {"kind": "bert"}}
    # without next sentences, as its rows are blocks of text
    | {"pretrain": GPT["pretrain"] | {"objective": "mlm"}}
    | {"instances": {"kind": "masked_blocks", "sequence_length": 32}},
    "lsa": {"model": {"kind": "lsa", "size": 16}, "pretrain": {"kind": "cooccurrence"}},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("curve")
    return small_recipe(
        folder / "root",
        write_corpus(folder / "text", documents=3),
        model={"kind": "ngram"},
        pretrain={"kind": "counts"},
        variants=VARIANTS,
        measure={"perplexity": {"kind": "perplexity"}, "ranks": {"kind": "ranks"}},
    )


def plan_ladder(plain: dict[str, Any], **curve: Any) -> tuple[dict[str, Stage], CurveStageConfig]:
    recipe = validate(Recipe, plain | {"curve": {"budgets": [0.125, 0.5, 1], "seeds": 2} | curve})
    stages = ladder_stages(recipe)
    config = stages["curve"].config
    assert isinstance(config, CurveStageConfig)
    return stages, config


def fit_at(stages: dict[str, Stage], run: CurveRun) -> tuple[Any, float]:
    """The pretraining of a run, and the share of the text that it reads."""
    pretrain, tokens = stages[run.pretrain].config, stages[run.tokens].config
    assert isinstance(pretrain, PretrainStageConfig)
    assert isinstance(tokens, TokensConfig)
    return pretrain.pretrain, tokens.share


@pytest.mark.parametrize(
    ("of", "fits"),
    [
        (None, {"ngram2": [(None, 0.125), (None, 0.5)], "gpt": [(10, 1.0), (40, 1.0)]}),
        ("text", {"ngram2": [(None, 0.125), (None, 0.5)], "gpt": [(80, 0.125), (80, 0.5)]}),
        ("both", {"ngram2": [(None, 0.125), (None, 0.5)], "gpt": [(10, 0.125), (40, 0.5)]}),
    ],
)
def test_a_budget_is_a_share(plain: dict[str, Any], of: str | None, fits: dict[str, Any]) -> None:
    stages, config = plan_ladder(plain, of=of, seeds=1)
    for rung, expected in fits.items():
        runs = [run for run in config.runs if run.rung == rung and run.budget < 1]
        fitted = [fit_at(stages, run) for run in runs]
        assert [(getattr(fit, "steps", None), share) for fit, share in fitted] == expected


def test_the_whole_budget_is_the_rung_itself(plain: dict[str, Any]) -> None:
    alone = ladder_stages(validate(Recipe, plain))
    stages, config = plan_ladder(plain)
    for run in (run for run in config.runs if run.budget == 1):
        assert stages[run.pretrain].fingerprint == alone[run.pretrain].fingerprint
        assert run.measure is None or stages[run.measure] == alone[run.measure]
    assert alone.items() <= {**stages, "ladder": alone["ladder"]}.items()


def test_seeds_at_the_smallest_two_budgets_of_what_has_one(plain: dict[str, Any]) -> None:
    _, config = plan_ladder(plain, budgets=[0.125, 0.25, 0.5, 1], seeds=3)
    seeds = {
        rung: [(run.budget, run.seed) for run in config.runs if run.rung == rung]
        for rung in ("ngram2", "gpt")
    }
    assert seeds["ngram2"] == [(0.125, 0), (0.25, 0), (0.5, 0), (1.0, 0)]
    smallest = {(budget, seed) for budget in (0.125, 0.25) for seed in range(3)}
    assert {*seeds["gpt"]} == smallest | {(0.5, 0), (1.0, 0)}


def test_code_lengths_are_measured_and_other_losses_of_validation(plain: dict[str, Any]) -> None:
    stages, config = plan_ladder(plain, seeds=1)
    measured = {run.rung: run.measure for run in config.runs if run.budget < 1}
    assert measured == {"ngram2": "measure/ngram2/0.5", "gpt": "measure/gpt/0.5", "bert": None}
    suites = stages["measure/gpt/0.5"].config.model_dump()["suites"]
    assert [*suites] == ["perplexity"]
    assert [*config.passed_over] == ["lsa"]


def test_longer_runs_wait_for_the_shorter_ones_of_their_trunk(plain: dict[str, Any]) -> None:
    stages, _ = plan_ladder(plain)
    short, seed, longer, whole = (
        stages[f"pretrain/gpt{part}"] for part in ("/0.125", "/0.125/seed-1", "/0.5", "")
    )
    assert longer.continues(short)
    assert whole.continues(longer)
    assert not short.continues(longer)
    assert not longer.continues(seed)
    assert not stages["pretrain/bert/0.5"].continues(short)
    assert not stages["pretrain"].continues(stages["pretrain/ngram2/0.5"])


def test_rungs_are_fine_tuned_at_each_budget_as_at_the_whole(plain: dict[str, Any]) -> None:
    tasks = {name: {"data": {"kind": "paragraph_label", "num_labels": 3}} for name in "ab"}
    evaluate = {"num_seeds": 2, "label_budgets": [9], "noise": [0.1]}
    with_tasks = plain | {
        "tasks": tasks,
        "finetune": {"pooling": "mean", "sequence_length": 32},
        "evaluate": evaluate,
    }
    stages, config = plan_ladder(with_tasks, tasks=["b"])
    assert config.compared == ("evaluate/b", "evaluate/b/0.125", "evaluate/b/0.5")
    whole, short = stages["evaluate/b"], stages["evaluate/b/0.125"]
    assert short.inputs["task"] == whole.inputs["task"]
    for rung in ("gpt", "bert"):
        assert short.inputs[f"pretrain/{rung}"] == stages[f"pretrain/{rung}/0.125"]
    settings = [stage.config.model_dump() for stage in (whole, short)]
    own, same = (each["variants"] for each in settings)
    assert {name: own[name] for name in same} == same
    assert not settings[1]["evaluate"]["rivals"]
    assert "evaluate/a/0.125" not in stages


def test_a_curve_names_tasks_of_the_recipe(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="names 'topics', which tasks lacks"):
        plan_ladder(plain, tasks=["topics"])


def test_a_mixture_has_the_curve_of_its_network(plain: dict[str, Any]) -> None:
    model = {"kind": "counts_and_network", "counts": {"order": 3}, "network": GPT["model"]}

    def mixture(fit: dict[str, Any]) -> dict[str, Any]:
        both = {"model": model, "pretrain": {"kind": "interpolation", "network": fit}}
        return plain | {"variants": {"gpt": GPT, "both": GPT | both}}

    stages, config = plan_ladder(mixture(GPT["pretrain"]))
    assert {(run.rung, run.network) for run in config.runs} == {("gpt", ""), ("both", "gpt")}
    runs = [run for run in config.runs if run.rung == "both" and run.seed == 0]
    assert [fit_at(stages, run)[0].network.steps for run in runs] == [10, 40, 80]
    short, longer, whole = (
        stages[f"pretrain/network/both{part}"] for part in ("/0.125", "/0.5", "")
    )
    assert longer.continues(short)
    assert whole.continues(longer)
    with pytest.raises(ConfigError, match=r"set pretrain\.network\.optimizer\.schedule"):
        plan_ladder(mixture({"steps": 80}))


def test_rungs_that_differ_in_fine_tuning_alone_have_one_curve(plain: dict[str, Any]) -> None:
    twice = VARIANTS | {"bert_frozen": VARIANTS["bert"] | {"finetune.adaptation.kind": "frozen"}}
    _, config = plan_ladder(plain | {"variants": twice, "finetune": {}})
    assert "bert_frozen" not in {run.rung for run in config.runs} | config.passed_over.keys()


def test_a_rung_that_is_half_of_another_has_a_curve_of_its_own(plain: dict[str, Any]) -> None:
    half = {"gpt": GPT, "half": GPT | {"pretrain": GPT["pretrain"] | {"steps": 40}}}
    _, config = plan_ladder(plain | {"variants": half}, seeds=1)
    at = {(run.rung, run.budget): run.pretrain for run in config.runs}
    assert [at["half", budget] for budget in (0.125, 0.5, 1.0)] == [
        "pretrain/half/0.125",
        "pretrain/half/0.5",
        at["gpt", 0.5],
    ]


def test_a_schedule_that_knows_its_end_has_no_trunk(plain: dict[str, Any]) -> None:
    linear = {"gpt": GPT | {"pretrain": {"steps": 80}}}
    expected = (
        r"gpt|set pretrain\.optimizer\.schedule: \{kind: warmup_stable_decay, warmup_steps: 1"
    )
    with pytest.raises(ConfigError, match=expected) as raised:
        plan_ladder(plain | {"variants": linear})
    (key,) = raised.value.changes
    assert key == "variants.gpt.pretrain.optimizer.schedule"
    repaired = GPT | {"pretrain.optimizer.schedule": raised.value.changes[key]}
    plan_ladder(plain | {"variants": {"gpt": repaired}})
    plan_ladder(plain | {"variants": linear}, of="both")


@pytest.mark.parametrize("budgets", [[1.0], [0.5], [0.5, 0.25, 1.0], [0.0, 1.0], [0.5, 2.0]])
def test_budgets_rise_to_the_whole(budgets: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"that rise from above 0 to 1, the rung itself"):
        validate(CurveConfig, {"budgets": budgets})


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ({"measure": {"ranks": {"kind": "ranks"}}}, r"add measure\.perplexity"),
        ({"variants": {"lsa": VARIANTS["lsa"]}}, r"\(lsa: its loss is not that of tokens"),
    ],
)
def test_a_curve_needs_bits(plain: dict[str, Any], blocks: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        plan_ladder(plain | blocks)
