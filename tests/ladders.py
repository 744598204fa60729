"""A ladder as its stages would leave it: five rungs that nobody trained, asked by many suites.

ngram2, ngram3 ── counted      lstm, gpt ── exact      bert ── pseudo-likelihoods
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.claims import ClaimResult, ClaimsSummary, ComparisonResult
from rungwise.evaluation.pretrainings import SearchSummary, SearchTrial
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites import items as items_of
from rungwise.evaluation.suites.base import Suite
from rungwise.evaluation.suites.items import ITEMS, Items, MeasureSummary, score_items
from rungwise.instances.texts import CausalConfig
from rungwise.models.config import model_config
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import fitting_kind
from rungwise.training.summary import PretrainSummary
from tests.report_experiments import Experiment, MadeTask
from tests.report_pages import (
    Recorder,
    corpus_summary,
    gradient_run,
    pretrain_summary,
    tokenizer_summary,
)

EVIL = "<img src=x onerror=alert(1)>"
SMALL = {"num_layers": 2, "num_heads": 2, "hidden_size": 16, "intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", **SMALL},  # the newest first: the page sorts
    "gpt": {"kind": "gpt", **SMALL},
    "lstm": {"kind": "lstm", "hidden_size": 16, "num_layers": 1},
    "ngram3": {"kind": "ngram", "order": 3},
    "ngram2": {"kind": "ngram", "order": 2},
}
# Nats of a document of 100 tokens and 400 bytes.
NATS = {"ngram2": 520.0, "ngram3": 500.0, "lstm": 470.0, "gpt": 480.0, "bert": 300.0}
KEYS: dict[str, dict[str, Any]] = {
    "similarity": {"path": ["pairs"]},
    "senses": {"path": ["words"]},
    "probe": {"train": ["a"], "test": ["b"], "format": {"kind": "conllu", "tags": "upos"}},
}
ROWS = [{"step": step, "tokens": 100 * step, "loss": 6.0} for step in (0, 10, 20)]
CODE_LENGTHS = [{**row, "bits_per_byte": 3.0 - row["step"] / 20} for row in ROWS]


def perplexity_only(root: Path, suite: str = "perplexity", **toys: Suite) -> Experiment:
    """A ladder that was asked for perplexity alone, by a suite of this name, and by `toys`."""
    return _ladder(root, {suite: "perplexity"}, toys)


def whole(root: Path) -> Experiment:
    """Suites of all kinds, two tasks with a label budget, and claims of every verdict."""
    kinds = ("perplexity", "minimal_pairs", "similarity", "senses", "polysemy", "probe")
    made = _ladder(root, {f"my_{kind}": kind for kind in kinds})
    variants = ("bert", "gpt", "lstm", "random")
    for number, task in enumerate(("sst", "mrpc")):
        scores = {
            budget: {
                variant: [0.9 - 0.05 * place - 0.1 * few + 0.01 * seed for seed in range(3)]
                for place, variant in enumerate(variants)
            }
            for few, budget in enumerate((None, 40))
        }
        mix = {"bert": 3} if number else {}
        made.task(task, MadeTask("classification", scores, mix=mix), swept=False)
    made.table({("gpt", "sst"): -1.0})
    return made


def claims(made: Experiment, verdicts: Mapping[str, str], part: str | None = None) -> None:
    """The claims stage, each claim by its id with a verdict; `part` is that of its title."""
    values = {
        "confirmed": (0.5, 0.4, 0.6),
        "contradicted": (-0.03, -0.05, -0.01),
        "undecided": (0.01, -0.02, 0.04),
    }
    judged = []
    for number, (name, verdict) in enumerate(verdicts.items()):
        value, low, high = values.get(verdict, (None, None, None))
        log = verdict == "confirmed"
        of, scale = ("perplexity", "log") if log else ("tasks", "plain")
        compared = ComparisonResult.model_validate(
            {"of": of, "metric": of if log else None, "scale": scale, "threshold": 0.0}
            | {"terms": {"gpt": 1.0, "lstm": -1.0}, "pretrainings": 1, "verdict": verdict}
            | {"value": value, "low": low, "high": high}
            | {"missing": () if value is not None else ("rnn", EVIL)}
        )
        claim: dict[str, Any] = {"id": name, "verdict": verdict, "says": f"Claim {number} <b>."}
        claim |= {"plainly": f"Plain claim {number}.", "contradicted_by": "its opposite"}
        claim |= {"p": value and 0.001, "p_holm": value and 0.004}
        judged.append(ClaimResult(comparisons=(compared,), **claim))
    averages = {}
    for name, score in {"bert": 0.91, "gpt": 0.86, "lstm": 0.81}.items():
        averages[name] = Estimate(score, score - 0.02, score + 0.02, 500)
    tasks = "evaluate/sst" in made.made
    summary = ClaimsSummary(
        claims=tuple(judged),
        averages=averages if tasks else {},
        seeds=3 if tasks else None,
        headline="claims <done>",
    )
    made.add(Title("claims", part=part), {}, summary)


def search(made: Experiment, rung: str, losses: Sequence[float]) -> None:
    """The search of a rung, with a trial of each loss."""
    known: dict[str, Any] = {"state": "finished", "runs": (), "seconds": 1.0, "tokens": 10}
    trials = [
        SearchTrial(number=number, values={"pretrain.steps": number}, score=loss, error="", **known)
        for number, loss in enumerate(losses)
    ]
    summary = SearchSummary.model_validate(
        {"variant": rung, "measure": "validation_loss", "metric": "loss", "budget": None}
        | {"label": "validation loss", "higher_is_better": False, "on_held_out": True}
        | {"exchangeable": True, "seeds": (), "seconds": 2.0, "tokens": 20, "headline": "search"}
        | {"trials": tuple(trials), "best": trials[losses.index(min(losses))]}
    )
    made.add(Title("search", variant=rung), {}, summary)


def _ladder(root: Path, kinds: dict[str, str], toys: Mapping[str, Suite] = {}) -> Experiment:
    recorder = Recorder(Folder.at(root))
    recorder.add("corpus", {"sources": [{"kind": "text", "paths": ["a"]}]}, corpus_summary())
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(300)}))
    recorder.add("tokenizer", {}, tokenizer_summary(tokenizer, "wordpiece"))
    recorder.add("tokens", {}, TokensSummary.model_construct(headline="tokens"))
    read = CausalConfig(sequence_length=8).model_dump(mode="json")
    recorder.add("instances", read, TokensSummary.model_construct(headline="instances"))
    first, *others = MODELS
    recorder.add("pretrain", {}, _pretrained(first))
    made = Experiment(recorder.made)
    made.variants([first, *others, "random"], untrained=["random"])
    for name in MODELS:
        title = str(Title("pretrain", variant=None if name == first else name))
        made.made[title] = _pretrained(name).replace_summary(made.made[title])
        _measured(made, name, made.made[title], kinds, toys)
    return made


def _pretrained(name: str) -> PretrainSummary:
    model = model_config(MODELS[name])
    run = gradient_run(ROWS if name == "bert" else CODE_LENGTHS)
    summary = pretrain_summary(model, model.objectives[0].name, {"loss": 5.0}, run)
    counted = fitting_kind(model) == "counts"
    changes = {"fitting": "counts", "gradient": None} if counted else {}
    return summary.model_copy(update={"parameters": 12345 + len(name), **changes})


def _measured(
    made: Experiment,
    name: str,
    pretrain: Artifact,
    kinds: dict[str, str],
    toys: Mapping[str, Suite],
) -> None:
    titled = None if name == next(iter(MODELS)) else name
    items, passed = _answers(name, kinds)
    for suite, toy in toys.items():
        items += toy.measure(cast(Any, None), suite)
    suites = {suite: {"kind": kind} | KEYS.get(kind, {}) for suite, kind in kinds.items()}
    suites |= {suite: {"kind": toy.kind} for suite, toy in toys.items()}
    made.add(
        Title("measure", variant=titled),
        {"suites": suites},
        MeasureSummary(
            scores=tuple(score for each in items for score in score_items([each])),
            passed_over=passed,
            seconds={},
            headline="measure",
        ),
        {"pretrain": pretrain, "tokenizer": made.made["tokenizer"]},
    )
    folder = made.made[str(Title("measure", variant=titled))].folder
    folder.write_bytes(ITEMS, items_of.encode_items(items))


def _answers(name: str, kinds: dict[str, str]) -> tuple[list[Items], dict[str, str]]:
    rng = np.random.default_rng(len(name))
    counted, pseudo = name.startswith("ngram"), name == "bert"
    nats = NATS[name] + np.arange(6.0) * 4
    items: list[Items] = []
    passed: dict[str, str] = {}

    def shares(suite: str, part: str, share: float, groups: list[str] | None = None) -> None:
        names = [str(number) for number in range(48)]
        credit = (rng.random(48) < share).astype(float)
        each = [groups[n % len(groups)] if groups else "" for n in range(48)]
        items.append(Items.of_credit(suite, part, names, each, credit))

    for suite, kind in kinds.items():
        of_states = kind in ("similarity", "senses", "polysemy", "probe")
        if of_states and counted:
            passed[suite] = "word vectors"
        elif kind == "perplexity":
            part = "pseudo" if pseudo else ""
            for metric, unit in (("perplexity", 100.0), ("bits_per_byte", 400.0)):
                numbers = np.stack([nats, np.full(6, unit)], axis=1)
                names = [str(n) for n in range(6)]
                items.append(Items(suite, metric, names, [""] * 6, numbers, part))
        elif kind == "minimal_pairs":
            for part, share in (("", 0.7), ("ties_to_good", 0.75), ("ties", 0.1)):
                shares(suite, part, share, ["binding", EVIL, "quantifiers"])
        elif kind == "similarity":
            for part, count in (("simlex", 30), ("wordsim", 12)):
                numbers = np.stack([rng.random(count), rng.random(count)], axis=1)
                names = [str(n) for n in range(count)]
                items.append(Items(suite, "correlation", names, [""] * count, numbers, part))
        else:
            _layered(suite, kind, shares)
    return items, passed


def _layered(suite: str, kind: str, shares: Any) -> None:
    rules = {"senses": ("nearest ", "linear "), "probe": ("linear ",), "polysemy": ("",)}
    for rule in rules[kind]:
        for layer in range(3):
            shares(suite, f"{rule}layer {layer}", 0.6 + 0.1 * layer)
    if kind == "polysemy":
        return
    shares(suite, "most frequent", 0.5)
    shares(suite, "linear mix", 0.9)
