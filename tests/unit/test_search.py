"""Searches over pretraining: fake stages end in any order and are killed, and the search is one."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.search.record import SearchSummary
from rungwise.evaluation.search.running import run_search
from rungwise.pipeline.growth import Grow
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.searching import grow_stages
from rungwise.pipeline.stages import pretrain_stages
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.training.config import GradientConfig
from tests.conftest import small_recipe, write_corpus

RATE = "pretrain.optimizer.learning_rate"
SIZE = "pretrain.global_batch_size"
SPACE = {
    RATE: {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    SIZE: {"kind": "choice", "values": [8, 16, 32]},
}
PLATEAU = {"kind": "warmup_stable_decay", "warmup_steps": 2}
OPTUNA = {"search.search": {"kind": "optuna"}}
HALVING = {"search.scheduler": {"kind": "halving"}, "pretrain.optimizer.schedule": PLATEAU}
SOURCES = {"word2vec": "asynchronous", "glove": "cooccurrence", "ngram": "counts"}
TEXT_TOKENS = 10_000


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("search")
    corpus = write_corpus(folder / "text", documents=3)
    blocks = small_recipe(
        folder / "root",
        corpus,
        instances={"kind": "causal", "sequence_length": 32},
        search={"trials": 8, "space": SPACE},
    )
    blocks["model"] |= {"kind": "gpt"}
    return blocks


def of(plain: dict[str, Any], kind: str = "gpt", **changes: Any) -> Recipe:
    if kind != "gpt":
        plain = plain | {"model": {"kind": kind}, "pretrain": {"kind": SOURCES[kind]}}
        space = {"pretrain.learning_rate": SPACE[RATE]}
        plain["search"] = {"trials": 6, "space": space if kind == "word2vec" else {}}
    return validate(Recipe, with_overrides(plain, changes))


def chain(recipe: Recipe) -> list[Stage]:
    return list(pretrain_stages(recipe).values())


def growing(recipe: Recipe) -> Grow:
    grow = grow_stages(recipe, chain, chain(recipe))
    assert grow is not None
    return grow


class Cluster:
    """Ends stages as a cluster might, two at once in an order that `seed` draws. Scores and costs
    follow from their settings. `fails` says which settings do."""

    def __init__(self, recipe: Recipe, fails: float = 0.0) -> None:
        self.recipe, self.fails = recipe, fails
        self.finished: dict[str, Artifact] = {}
        self.begun: dict[str, int] = {}

    def work(self, seed: int, most: int | None = None) -> bool:
        """Go on until the end, or until so many stages have ended: killed then, with two begun."""
        grow, draw, failed = growing(self.recipe), random.Random(seed), {}
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
            self.begun[stage.fingerprint] = self.begun.get(stage.fingerprint, 0) + 1
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
            summary = summarise(config)
        record = {
            "summary": summary,
            "facts": stage.facts,
            "config": stage.config.model_dump(mode="json"),
        }
        self.finished[stage.fingerprint] = Artifact(
            stage.name, stage.fingerprint, Folder.at("/nowhere"), record
        )
        return ""

    def record(self, tmp_path: Path) -> SearchSummary:
        """What the search stage records of all that has ended."""
        failed = self._failed()
        stages = growing(self.recipe)(self.finished, failed).stages
        (stage,) = (each for each in stages if each.name == "search")
        inputs = {name: self.finished[each.fingerprint] for name, each in stage.inputs.items()}
        return run_search(stage.config, inputs, Folder.at(tmp_path), Context())  # pyright: ignore[reportArgumentType]

    def _failed(self) -> dict[str, str]:
        failed: dict[str, str] = {}
        grow = growing(self.recipe)
        for _ in range(len(self.finished) + 1):
            known = grow(self.finished, failed).stages
            failed = {
                stage.fingerprint: "it diverged"
                for stage in known
                if stage.name == "pretrain" and stage.fingerprint not in self.finished
            }
        return failed


def summarise(config: PretrainStageConfig) -> dict[str, Any]:
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
    return {
        "fitting": settings.kind,
        "model": config.model.model_dump(mode="json"),
        "objective": objective.name,
        "parameters": 1,
        "vocab_size": 200,
        "tokens": tokens,
        "epochs": float(epochs),
        "unigram_entropy": 5.0,
        "final": {objective.tokens.loss_key: loss, "bits_per_byte": loss},
        "seconds": seconds,
        "headline": "",
    }


def outcome(summary: SearchSummary) -> tuple[Any, ...]:
    """The trials, their scores and the winner, with the scores of its seeds."""
    trials = [(each.number, each.values, each.score, len(each.runs)) for each in summary.trials]
    return trials, summary.best.number, [run.score for run in summary.seeds]


CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "random": ("gpt", {}),
    "grid": (
        "gpt",
        {
            "search.search": {"kind": "grid"},
            "search.trials": None,
            "search.space": {SIZE: SPACE[SIZE]},
        },
    ),
    "optuna": ("gpt", OPTUNA),
    "halving": ("gpt", HALVING),
    "tokens": ("gpt", {"search.tokens": 400_000}),
    "seconds": ("gpt", {"search.seconds": 400.0}),
    "word2vec seconds": ("word2vec", {"search.seconds": 200.0}),
    "word2vec tokens": ("word2vec", {"search.tokens": 100 * TEXT_TOKENS}),
}


@pytest.mark.parametrize("case", CASES)
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
    scores = [each.score for each in expected.trials if len(each.runs) == len(expected.best.runs)]
    assert expected.best.score == min(scores)


@pytest.mark.parametrize(
    ("case", "unit"),
    [
        ("tokens", "tokens"),
        ("seconds", "seconds"),
        ("word2vec seconds", "seconds"),
        ("word2vec tokens", "tokens"),
    ],
)
def test_trials_spend_their_budget(
    plain: dict[str, Any], tmp_path: Path, case: str, unit: str
) -> None:
    kind, changes = CASES[case]
    cluster = Cluster(of(plain, kind, **changes))
    cluster.work(seed=0)
    spent = getattr(cluster.record(tmp_path), unit)
    assert spent == pytest.approx(changes[f"search.{unit}"], rel=0.05)
