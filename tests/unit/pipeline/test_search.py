"""Searches over pretraining: fake stages end in any order and are killed, and the search is one."""

import random
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, Stage
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.pretrainings import SearchSummary, run_search
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.search import apply_searches, grow_stages
from rungwise.pipeline.stages import Grow, chain_stages, pretrain_stages
from rungwise.pipeline.workflow import plan
from rungwise.training.config import GradientConfig
from rungwise.training.fit_config import PretrainStageConfig
from rungwise.tuning.trials import expected_best
from tests.conftest import small_gpt, small_recipe, write_corpus
from tests.report_pages import gradient_run, pretrain_summary
from tests.summaries import end_stage

RATE = "pretrain.optimizer.learning_rate"
SIZE = "pretrain.global_batch_size"
SPACE = {
    RATE: {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    SIZE: {"kind": "choice", "values": [8, 16, 32]},
}
PLATEAU = {"kind": "warmup_stable_decay", "warmup_steps": 2}
ORDERS = {"kind": "choice", "values": [1, 2, 3]}
LIST = {"search.measure": {"kind": "word_list", "path": "nowhere.txt"}}
HALVING = {"search.halving": {}, "pretrain.optimizer.schedule": PLATEAU}
SOURCES = {"word2vec": "asynchronous", "glove": "cooccurrence", "ngram": "counts"}
TEXT_TOKENS = 10_000


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("search")
    corpus = write_corpus(folder / "text", documents=3)
    search = {"trials": 6, "space": SPACE}
    return small_recipe(folder / "root", corpus, search=search, **small_gpt())


def of(plain: dict[str, Any], kind: str = "gpt", **changes: Any) -> Recipe:
    if kind != "gpt":
        plain = plain | {"model": {"kind": kind}, "pretrain": {"kind": SOURCES[kind]}}
        space = {"pretrain.learning_rate": SPACE[RATE]}
        plain["search"] = {"trials": 6, "space": space if kind == "word2vec" else {}}
    return validate(Recipe, with_overrides(plain, changes))


def chain(recipe: Recipe) -> list[Stage]:
    return chain_stages(recipe)[0]


def growing(recipe: Recipe) -> Grow:
    grow = grow_stages(recipe, chain, chain(recipe))
    assert grow is not None
    return grow


class Cluster:
    """Ends stages two at once in an order that `seed` draws. `fails` says which settings do."""

    def __init__(self, recipe: Recipe, fails: float = 0.0) -> None:
        self.recipe, self.fails = recipe, fails
        self.finished: dict[str, Artifact] = {}
        self.failed: dict[str, str] = {}

    def work(self, seed: int, most: int | None = None) -> bool:
        """Go on until the end, or until so many stages have ended: killed then, with two begun."""
        grow, draw, failed = growing(self.recipe), random.Random(seed), self.failed
        while most is None or most > 0:
            stages = grow(self.finished, failed).stages
            ready = [
                stage
                for stage in stages
                if not {stage.fingerprint} & {*self.finished, *failed}
                and all(each.fingerprint in self.finished for each in stage.inputs.values())
            ]
            if not ready:
                return True
            stage = draw.choice(ready[:2])
            error = self._end(stage)
            if error:
                failed[stage.fingerprint] = error
            most = None if most is None else most - 1
        return False

    def _end(self, stage: Stage) -> str:
        summary: dict[str, Any] = {"headline": ""}
        if stage.name == "pretrain":
            config = stage.config
            assert isinstance(config, PretrainStageConfig)
            rate = getattr(config.pretrain, "learning_rate", None) or 0.0
            if isinstance(config.pretrain, GradientConfig):
                rate = config.pretrain.optimizer.learning_rate
            if rate < self.fails:
                return "it diverged"
            summary = summarise(config, self._earlier(config))
        record = {
            "summary": summary,
            "facts": stage.facts,
            "config": stage.config.model_dump(mode="json"),
        }
        self.finished[stage.fingerprint] = Artifact(
            stage.name, stage.fingerprint, Folder.at("/nowhere"), record
        )
        return ""

    def _earlier(self, config: PretrainStageConfig) -> dict[str, Any] | None:
        """The shorter run that a run goes on from, as prolonging finds it."""
        if not isinstance(config.pretrain, GradientConfig) or not config.pretrain.shared_steps:
            return None
        shorter = [
            (min(before.shared_steps, config.pretrain.shared_steps), artifact.fingerprint)
            for artifact in self.finished.values()
            if artifact.stage == "pretrain"
            and (before := PretrainStageConfig.model_validate(artifact.record["config"]).pretrain)
            and isinstance(before, GradientConfig)
            and before.model_copy(update={"steps": config.pretrain.steps}) == config.pretrain
        ]
        if not shorter:
            return None
        step, fingerprint = max(shorter)
        return {"step": step, "fingerprint": fingerprint, "label": "small"}

    def record(self, tmp_path: Path) -> SearchSummary:
        """What the search stage records of all that has ended."""
        stages = growing(self.recipe)(self.finished, self.failed).stages
        (stage,) = (each for each in stages if each.name == "search")
        inputs = {name: self.finished[each.fingerprint] for name, each in stage.inputs.items()}
        return run_search(stage.config, inputs, Folder.at(tmp_path), Context())  # pyright: ignore[reportArgumentType]


def summarise(config: PretrainStageConfig, earlier: dict[str, Any] | None) -> dict[str, Any]:
    """A made-up summary: the best learning rate is 0.01, and every setting has its own speed."""
    settings, objective = config.pretrain, config.objective
    own = config.model_dump(mode="json", exclude={"pretrain": {"epochs", "steps"}})
    noise = random.Random(canonical_json(own)).random()
    epochs = getattr(settings, "epochs", None) or 1
    tokens, seconds = TEXT_TOKENS * epochs, 1.0 + epochs * (0.5 + noise)
    rate = getattr(settings, "learning_rate", None) or 0.02
    if isinstance(settings, GradientConfig):
        rate = settings.optimizer.learning_rate
        speed = 1_000 * (1 + noise)
        tokens = settings.steps * settings.global_batch_size * 32
        if settings.max_tokens:  # it ends after the first step that passes it
            tokens = settings.max_tokens + settings.global_batch_size * 16
        seconds = tokens / speed
        if settings.max_seconds:
            seconds = settings.max_seconds * (1 + 0.02 * noise)
            tokens = round(seconds * speed)
    loss = abs(rate - 0.01) ** 0.5 + 2.0 + 0.01 * noise + 1e4 / tokens
    final = {objective.tokens.loss_key: loss, "bits_per_byte": loss}
    run = None
    if isinstance(settings, GradientConfig):
        run = gradient_run([{"step": settings.steps}], prolonged=[earlier] if earlier else [])
    summary = pretrain_summary(config.model, objective.name, final, run)
    fit = {"fitting": settings.kind, "tokens": tokens, "epochs": float(epochs), "seconds": seconds}
    return summary.model_copy(update=fit).model_dump(mode="json")


def outcome(summary: SearchSummary) -> tuple[Any, ...]:
    trials = [(each.number, each.values, each.score, len(each.runs)) for each in summary.trials]
    return trials, summary.best.number, [run.score for run in summary.seeds]


CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "random": ("gpt", {}),
    "grid": ("gpt", {"search.trials": None, "search.space": {SIZE: SPACE[SIZE]}}),
    "halving": ("gpt", HALVING),
    "halving tokens": ("gpt", {**HALVING, "search.tokens": 400_000}),
    "tokens": ("gpt", {"search.tokens": 400_000}),
    "two steps": ("gpt", {"steps": [{}, {"name": "more", "pretrain": {"steps": 5}}]}),
    "seconds": ("gpt", {"search.seconds": 400.0}),
    "word2vec": ("word2vec", {"search.seconds": 200.0}),
}


# Of these each has all that is in one or two of the others.
SLOW = {"random", "halving"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_a_search_killed_at_ten_moments_ends_as_one_that_was_not(
    plain: dict[str, Any], tmp_path: Path, case: str
) -> None:
    kind, changes = CASES[case]
    recipe = of(plain, kind, **changes)
    whole, killed = Cluster(recipe), Cluster(recipe)
    assert whole.work(seed=0)
    draw = random.Random(case)
    for seed in range(10):
        killed.work(seed, most=draw.randint(1, 3))
    assert killed.work(seed=10)
    expected = whole.record(tmp_path / "whole")
    assert outcome(killed.record(tmp_path / "killed")) == outcome(expected)
    assert set(killed.finished) == set(whole.finished)
    assert len(expected.trials) > 2
    assert len(expected.seeds) == 2
    farthest = [each for each in expected.trials if len(each.runs) == len(expected.best.runs)]
    assert expected.best.score == min(each.score or 9.0 for each in farthest)
    if kind == "word2vec":
        return  # its length is not that of steps, so a budget leaves it alone
    for unit in {"tokens", "seconds"} & {key.removeprefix("search.") for key in changes}:
        spent = getattr(expected, unit)
        assert spent == pytest.approx(changes[f"search.{unit}"], rel=0.05)


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gpt", {"search.space": {"finetune.epochs": SPACE[SIZE]}}, "expected a dotted key of"),
        ("gpt", {"search.space": {"model.layers": SPACE[SIZE]}}, "search.space.model.layers"),
        (
            "gpt",
            {"search.space": {"tokenizer.vocab_size": {"kind": "choice", "values": [100, 200]}}},
            "bits_per_byte",
        ),
        (
            "word2vec",
            {"search.space": {"model.subsample": SPACE[RATE]}},
            "measure to {kind: word_list",
        ),
        ("glove", {"search.space": {"pretrain.learning_rate": SPACE[RATE]}}, "it learns from"),
        ("ngram", {"search.space": {"model.order": ORDERS}, **LIST}, "no vectors of words"),
        ("gpt", {"search.tokens": 10, "search.seconds": 10}, "both set"),
        ("gpt", {"search.halving": {}}, "warmup_stable_decay"),
        ("gpt", {**HALVING, "search.seconds": 10}, "halving stops trials"),
        ("gpt", {"search.trials": None}, "their number"),
        (
            "gpt",
            {
                "search.tokens": 10**6,
                "search.space": {"pretrain.steps": {"kind": "choice", "values": [10, 20]}},
            },
            "its share of search.tokens",
        ),
    ],
)
def test_what_would_not_compare_is_refused(
    plain: dict[str, Any], kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        growing(of(plain, kind, **changes))
    assert said in str(error.value)


def test_the_list_that_the_page_reports_chooses_nothing(
    plain: dict[str, Any], tmp_path: Path
) -> None:
    rows = [f"word{n}\tother{n}\t{n}.5" for n in range(8)]
    (tmp_path / "reported.txt").write_text("\n".join(rows))
    # The same pairs turned round, in another order and a part of a longer list.
    turned = ["\t".join((row.split("\t")[1], row.split("\t")[0], "1")) for row in rows[::-1]]
    (tmp_path / "copied.txt").write_text("\n".join([*turned, "other\twords\t3"]))
    (tmp_path / "own.txt").write_text("\n".join(row.replace("word", "term") for row in rows))
    reported = {"words": {"kind": "similarity", "path": str(tmp_path / "reported.txt")}}

    def chosen_by(name: str) -> Grow:
        measure = {"kind": "word_list", "path": str(tmp_path / name)}
        variants = {"vectors": {"search.measure": measure}}  # of a ladder, one has its own
        return growing(of(plain, "word2vec", measure=reported, variants=variants))

    with pytest.raises(ConfigError, match=r"8 of 9 pairs of copied.txt are in measure.words"):
        chosen_by("copied.txt")
    # As RG-65 holds all of MC-30.
    longer = [*rows, *(f"more{n}\tothers{n}\t1" for n in range(20))]
    (tmp_path / "longer.txt").write_text("\n".join(longer))
    with pytest.raises(ConfigError, match=r"8 of 8 pairs of reported.txt are in the list that"):
        chosen_by("longer.txt")
    assert any(stage.name == "measure" for stage in chosen_by("own.txt")({}, {}).stages)


def test_failed_trials_are_recorded_and_do_not_win(plain: dict[str, Any], tmp_path: Path) -> None:
    cluster = Cluster(of(plain), fails=3e-3)
    assert cluster.work(seed=0)
    summary = cluster.record(tmp_path)
    failed = [trial for trial in summary.trials if trial.score is None]
    assert failed
    assert all(trial.values[RATE] < 3e-3 for trial in failed)
    assert {trial.error for trial in failed} == {"it diverged"}
    assert summary.best not in failed
    assert max(summary.scores) == summary.scores[failed[0].number]


def test_a_search_without_any_score_says_why(plain: dict[str, Any]) -> None:
    cluster = Cluster(of(plain), fails=1.0)
    assert cluster.work(seed=0)
    known = growing(cluster.recipe)({}, cluster.failed)
    assert "all 6 trials failed, the first with: it diverged" in known.missing
    assert not any(stage.name == "search" for stage in known.stages)


def test_the_recipe_goes_on_with_the_best(plain: dict[str, Any]) -> None:
    variants = {"tuned": {}, "other": {"search": None}}
    cluster = Cluster(of(plain, variants=variants))
    recipes: list[Recipe] = []

    def make(recipe: Recipe) -> list[Stage]:
        recipes.append(recipe)
        return chain(recipe)

    assert cluster.work(seed=0)
    grow = grow_stages(cluster.recipe, make, chain(cluster.recipe))
    assert grow is not None
    grow(cluster.finished, {})
    (tuned,) = recipes
    best = tuned.variants["tuned"]
    assert set(best) == set(SPACE)
    assert tuned.variants["other"] == {"search": None}
    assert {title: stage.name for title, stage in tuned.searches.items()} == {
        "search/tuned": "search"
    }


@given(scores=st.lists(st.floats(-10, 10), min_size=1, max_size=6), higher=st.booleans())
def test_the_expected_best_is_the_mean_over_all_ways_to_draw(
    scores: list[float], higher: bool
) -> None:
    best = max if higher else min
    assert expected_best(scores, higher) == pytest.approx(
        [fmean(map(best, combinations(scores, n))) for n in range(1, len(scores) + 1)], abs=1e-9
    )


def test_what_is_finished_is_found_again(plain: dict[str, Any], tmp_path: Path) -> None:
    """From the records alone: the plan of a driver that comes later, and the tuned recipe."""
    recipe = of(plain, root=str(tmp_path))
    with pytest.raises(ConfigError, match="its search has not ended"):
        apply_searches(recipe)
    cluster = Cluster(recipe)
    cluster.work(seed=0)
    stages = growing(recipe)(cluster.finished, {}).stages
    titles = {stage.fingerprint: stage.display_name for stage in stages}
    root = Folder.at(tmp_path)
    for stage in stages:
        folder = artifacts.find_folder(root, stage.name, recipe.name, stage.fingerprint)
        end_stage(folder, stage, recipe.name, cluster.finished[stage.fingerprint].record["summary"])
    rows = plan(chain, recipe)
    assert {row.stage.fingerprint: row.stage.display_name for row in rows} == titles
    assert all(row.artifact for row in rows)
    (best,) = (stage for stage in stages if stage.display_name == "pretrain")
    assert pretrain_stages(apply_searches(recipe))["pretrain"].fingerprint == best.fingerprint
