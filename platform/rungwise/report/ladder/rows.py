"""Rows of the page's tables of minimal pairs, published results, layers and senses."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from statistics import fmean
from typing import Any

from rungwise.evaluation.comparison import published
from rungwise.evaluation.statistics import error_reduction, paired_difference, sign_agreement
from rungwise.evaluation.suites.items import Items, contrast
from rungwise.report.ladder.rungs import (
    PAIRS,
    PERPLEXITY,
    POLYSEMY,
    PROBE,
    SENSES,
    Column,
    Rung,
    suite_names,
)
from rungwise.report.sections.tables import Row
from rungwise.report.sections.variants import Comparison
from rungwise.tasks.scoring.metrics import metric_range

HALF, TO_GOOD, TIES = "", "ties_to_good", "ties"  # the parts of minimal pairs
SAME = 1e-6  # cosines closer than this count as equal, as with identical vectors


def minimal_pairs(rungs: Sequence[Rung]) -> list[Row]:
    """Every share by suite, rung, part and phenomenon (None for all pairs)."""
    return [
        {"rung": rung.name} | row.model_dump()
        for suite in suite_names(rungs, PAIRS)
        for rung in rungs
        for row in rung.measure.scores
        if row.suite == suite
    ]


def published_pairs(rungs: Sequence[Rung], suite: str) -> dict[str, dict[str, float]]:
    """Published accuracies {model: {phenomenon: mean of its paradigms}}, humans last; or {}."""
    table = {
        model: {phenomenon: fmean(values) for phenomenon, values in phenomena.items()}
        for model, phenomena in _published_paradigms(rungs, suite).items()
    }
    return table | {"human": published.RESULTS.blimp_human} if table else {}


def published_scores(rungs: Sequence[Rung], column: Column) -> tuple[dict[str, float], str]:
    """Published scores on the questions of a column, {model: value}, and their source; ({}, "") if
    there are none."""
    if column.suite in suite_names(rungs, PAIRS):
        totals = published_totals(rungs, column.suite) if not column.under else {}
        return totals, published.RESULTS.blimp_source if totals else ""
    for rung in rungs:
        for path in rung.paths(column.suite):
            known = published.RESULTS.sets.get(PurePath(path).name)
            if known is not None and column.metric in known.scores:
                return known.scores[column.metric], known.source
    return {}, ""


def published_totals(rungs: Sequence[Rung], suite: str) -> dict[str, float]:
    """Published accuracies over all paradigms, each with as many pairs: {model: mean}."""
    paradigms = _published_paradigms(rungs, suite)
    if not paradigms:
        return {}
    counts = {name: len(values) for name, values in next(iter(paradigms.values())).items()}
    human = published.RESULTS.blimp_human
    totals = {
        model: fmean(value for values in phenomena.values() for value in values)
        for model, phenomena in paradigms.items()
    }
    if counts.keys() <= human.keys():
        totals["human"] = fmean((human[name] for name in counts), counts.values())
    return totals


def _published_paradigms(rungs: Sequence[Rung], suite: str) -> dict[str, dict[str, list[float]]]:
    """{model: {phenomenon: accuracy on each of its paradigms}}; {} if the suite has none."""
    rows = next((file for rung in rungs if (file := rung.file(suite, "published.json"))), [])
    if not rows:
        return {}
    keys = [key for key, value in rows[0].items() if not isinstance(value, str)]
    models = published.RESULTS.blimp_models
    names = models if len(keys) == len(models) else keys
    table: dict[str, dict[str, list[float]]] = {}
    for key, name in zip(keys, names, strict=True):
        for row in rows:
            by_phenomenon = table.setdefault(name, {})
            by_phenomenon.setdefault(row["linguistics_term"], []).append(row[key])
    return table


def orders(rungs: Sequence[Rung]) -> list[Row]:
    """n-gram models by order, ours and published (T1), and whether each step in perplexity agrees
    in sign. Empty with fewer than two orders of ours."""
    by_order: dict[int, Rung] = {}
    for rung in rungs:
        order = getattr(rung.pretrain.model, "order", None)
        if rung.pretrain.fitting == "counts" and order is not None and rung.suites(PERPLEXITY):
            by_order.setdefault(order, rung)
    if len(by_order) < 2:
        return []
    table = published.RESULTS.orders
    rows: list[Row] = []
    before: tuple[float, list[Items]] | None = None
    for order in sorted({*by_order, *map(int, table.columns)}):
        reference, parameters = (
            table.value(row, str(order)) if str(order) in table.columns else None
            for row in ("perplexity", "parameters")
        )
        row: Row = {
            "order": order,
            "published_parameters": parameters,
            "published_perplexity": reference,
        }
        rows.append(row)
        rung = by_order.get(order)
        if rung is None:
            before = None
            continue
        suite = rung.suites(PERPLEXITY)[0]
        score = rung.measure.value(suite, "perplexity")
        assert score is not None, f"{rung.name} has no exact perplexity"
        row |= {"rung": rung.name, "parameters": rung.pretrain.parameters}
        row |= {"perplexity": score.value, "low": score.low, "high": score.high}
        items = rung.items((suite, "", "perplexity"))
        if before is not None:
            step = contrast([(1.0, items), (-1.0, before[1])], log=True)
            factors = (math.exp(each) for each in (step.mean, step.low, step.high))
            row |= dict(zip(("step", "step_low", "step_high"), factors, strict=True))
            if reference is not None:
                row["sign"] = sign_agreement(reference - before[0], step)
        before = None if reference is None else (reference, items)
    return rows


def gains(comparison: Comparison | None) -> list[Row]:
    """The gain of each variant over random weights on every task, and its relative error
    reduction, as in the column "relative" of T2."""
    rows: list[Row] = []
    for task in comparison.tasks if comparison else ():
        variants = task.evaluation.variants
        random = next((name for name, each in variants.items() if each.pretraining is None), None)
        if random is None:
            continue
        for name in variants:
            if name == random:
                continue
            new, old = task.evaluation.pair_scores(name, random)
            relative = error_reduction(fmean(old), fmean(new)) if fmean(old) < 1 else None
            rows.append(
                {
                    "task": task.name,
                    "metric": task.metric,
                    "variant": name,
                    "random_weights": fmean(old),
                    "score": fmean(new),
                    **asdict(paired_difference(new, old, metric_range(task.metric))),
                    "relative": relative,
                }
            )
    return rows


def published_gains() -> list[Row]:
    """T2 with its columns "absolute" and "relative" recomputed by their formulas."""
    table = published.TABLES["T2"]
    rows = []
    for task in table.columns:
        old, new = (table.value(row, task) for row in ("baseline", "+ELMo"))
        assert old is not None
        assert new is not None
        relative = error_reduction(old / 100, new / 100)
        rows.append({"task": task, "old": old, "new": new, "gain": new - old, "relative": relative})
    return rows


@dataclass(frozen=True)
class LayerScore:
    """A score of a suite on one layer; `layer` is None for rules without one, such as the most
    frequent answer and a learned mix."""

    suite: str
    rule: str
    rung: str
    layer: int | None
    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class LayerShare:
    """The share of a layer in the mix that a suite learned."""

    suite: str
    rung: str
    layer: int
    share: float


def layer_scores(rungs: Sequence[Rung]) -> list[LayerScore]:
    rows = []
    for suite in suite_names(rungs, *SENSES, PROBE, POLYSEMY):
        for rung in rungs:
            for score in rung.scores(suite):
                words, _, number = score.part.rpartition("layer ")
                layer = int(number) if number.isdecimal() else None
                rule = score.part if layer is None else words.strip()
                bounds = (score.value, score.low, score.high, score.count)
                rows.append(LayerScore(suite, rule, rung.name, layer, *bounds))
    return rows


def layer_shares(rungs: Sequence[Rung]) -> list[LayerShare]:
    return [
        LayerShare(suite, rung.name, layer, share)
        for suite, rung, mix in _suite_files(rungs, "mix.json", *SENSES, PROBE)
        for layer, share in enumerate(mix["shares"])
    ]


def _suite_files(
    rungs: Sequence[Rung], name: str, *kinds: str
) -> Iterator[tuple[str, Rung, dict[str, Any]]]:
    """Yield (suite, rung, data) for each file of this name that suites of these kinds wrote."""
    for suite in suite_names(rungs, *kinds):
        for rung in rungs:
            if data := rung.file(suite, name):
                yield suite, rung, data


def sentences(rungs: Sequence[Rung]) -> list[Row]:
    """The textbook's sentences: for each sentence and rung, the one whose word is nearest in the
    last layer. `credit` is 1 if it has the same sense, a fraction if several are equally near."""
    rows = []
    for _, rung, data in _suite_files(rungs, "pairs.json", POLYSEMY):
        for word, pairs in data.items():
            occurrences, cosines = pairs["occurrences"], pairs["cosines"][-1]
            senses = [each["sense"] for each in occurrences]
            for place, each in enumerate(occurrences):
                others = [n for n in range(len(occurrences)) if n != place]
                most = max(cosines[place][n] for n in others)
                nearest = [n for n in others if most - cosines[place][n] < SAME]
                same = [senses[n] == senses[place] for n in nearest]
                has_partner = senses.count(senses[place]) > 1
                rows.append(
                    {"word": word, "number": place + 1}
                    | {key: each[key] for key in ("sense", "text", "first", "end")}
                    | {
                        "rung": rung.name,
                        "nearest": nearest[0] + 1 if len(nearest) == 1 else None,
                        "cosine": most,
                        "credit": sum(same) / len(same) if has_partner else None,
                    }
                )
    return rows


def others(rungs: Sequence[Rung]) -> list[Row]:
    """Every value without a section of its own: word vectors, sentence vectors and so on."""
    elsewhere = (PERPLEXITY, PAIRS, *SENSES, POLYSEMY, PROBE)
    return [
        {"rung": rung.name} | score.model_dump(exclude={"group"})
        for suite in dict.fromkeys(name for rung in rungs for name in rung.kinds)
        for rung in rungs
        if rung.kinds.get(suite) not in elsewhere
        for score in rung.scores(suite)
    ]
