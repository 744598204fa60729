"""Ladder stage: one self-contained HTML page about all rungs, its plots as PNG and tables as CSV.

    pretrain, measure of each rung ──> rungs.py ──┐
    claims ──> claims.py ─────────────────────────┼──> templates/ladder.html.j2 ──> ladder.html
    evaluate, table ──> compared.py ──────────────┘                                *.png, *.csv

Everything comes from records and files of earlier stages; nothing is measured here. What a ladder
did not measure has no section. Published numbers are in separate columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.evaluation.comparison import published
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.report import budget_plots, comparison, formats, origin, style, tables
from rungwise.report.compared import Compared, gather, of_stage
from rungwise.report.environment import environment
from rungwise.report.ladder import claims, plots_history, plots_layers, rows
from rungwise.report.ladder.rungs import (
    PAIRS,
    Column,
    Rung,
    columns,
    history,
    looks_of,
    passed_over,
    rungs_of,
    suites_of,
)
from rungwise.report.page import ReportSummary
from rungwise.tokenizer import TokenizerSummary

PAGE = "ladder.html"
_WORDS = 4  # at most, whose senses are drawn
_STAGES_SHOWN = 20


class LadderConfig(Config):
    """The title of the page, and each rung by name with the title of what it was asked."""

    title: str | None  # the label of the run if unset
    measured: dict[str, str]


@dataclass(frozen=True)
class Content:
    """Everything the page shows, read from the stages once."""

    inputs: Mapping[str, Artifact]
    rungs: Sequence[Rung]
    columns: Sequence[Column]
    judged: ClaimsSummary
    compared: Compared | None
    table: TableSummary | None
    orders: list[rows.Row]
    gains: list[rows.Row]
    layers: list[rows.Row]
    mixes: list[rows.Row]
    maps: Mapping[str, Mapping[str, Mapping[str, Any]]]
    sentences: list[rows.Row]
    neighbours: list[rows.Row]
    others: list[rows.Row]


def write_ladder(
    config: LadderConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them.

    Inputs: every stage of the experiment by its title, and claims.
    """
    content = read(config, inputs)
    plots = draw(content)
    csv = {f"{name}.csv": csv_bytes(each) for name, each in _tables(content).items()}
    recipe = origin.recipe_text(context.recipe)
    verdict = claims.sentence(content.judged.claims)
    page = render(content, config.title, verdict, plots, recipe)
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    return ReportSummary(page=PAGE, show=tuple(files), headline=verdict)


LADDER = StageType("ladder", 1, write_ladder, ReportSummary)


def read(config: LadderConfig, inputs: Mapping[str, Artifact]) -> Content:
    """Collect the content from the records and files of the stages."""
    rungs, compared = rungs_of(inputs, config.measured), gather(inputs)
    if compared is not None:
        compared = replace(compared, looks=looks_of(rungs, compared.variants))
    (judged,) = of_stage(inputs, "claims").values()
    table = next(iter(of_stage(inputs, "table").values()), None)
    return Content(
        inputs=inputs,
        rungs=rungs,
        columns=columns(rungs, compared),
        judged=ClaimsSummary.of(judged),
        compared=compared,
        table=None if table is None else TableSummary.of(table),
        orders=rows.orders(rungs),
        gains=rows.gains(compared),
        layers=rows.layers(rungs),
        mixes=rows.mixes(rungs),
        maps=dict(list(rows.maps(rungs).items())[:_WORDS]),
        sentences=rows.sentences(rungs),
        neighbours=rows.neighbours(rungs),
        others=rows.others(rungs),
    )


def draw(content: Content) -> dict[str, bytes]:
    """Every plot that has data, as PNG, by file name."""
    rungs, compared = content.rungs, content.compared
    plots: dict[str, bytes | None] = {}
    # Perplexity is bits per byte in another unit.
    if drawn := [column for column in content.columns if column.metric != "perplexity"]:
        plots["year"] = plots_history.by_year(rungs, drawn)
        trained = {rung.name: rung.pretrain for rung in rungs}
        flops = {name: each.flops for name, each in trained.items() if each.flops}
        parameters = {name: each.parameters for name, each in trained.items()}
        plots["operations"] = plots_history.by_size(rungs, drawn, "operations (FLOP)", flops)
        plots["parameters"] = plots_history.by_size(rungs, drawn, "parameters", parameters)
    plots["while_learning"] = plots_history.while_learning(rungs)
    for word, maps in content.maps.items():
        plots[f"senses-{word}"] = plots_layers.senses(maps)
    if content.layers:
        plots["layers"] = plots_layers.layers(content.layers, rungs)
    if content.mixes:
        plots["layer_mixes"] = plots_layers.mixes(content.mixes, rungs)
    if compared and compared.has_budgets:
        plots["budgets"] = budget_plots.budgets(compared)
    if compared and budget_plots.mixed(compared):
        plots["mix"] = budget_plots.mix(compared)
    return {f"{name}.png": plot for name, plot in plots.items() if plot is not None}


def render(
    content: Content, title: str | None, verdict: str, plots: Mapping[str, bytes], recipe: str
) -> str:
    """The page as HTML."""
    inputs, rungs = content.inputs, content.rungs
    last = list(inputs.values())[-1]
    corpus = CorpusSummary.of(inputs["corpus"])
    fields = vars(content) | {
        "judged": content.judged.claims,
        "sentences": list(_cells(content.sentences, "word", "number").values()),
        "others": _cells(content.others, "suite", "part", "metric"),
    }
    template = environment().get_template("ladder.html.j2")
    return template.render(
        **fields,
        board=claims,
        comparison=comparison,
        origin=origin,
        style=style,
        title=title or last.label,
        lede=f"{verdict[0].upper()}{verdict[1:]}.",
        budget=_budget(content, corpus),
        pairs=_pairs(rungs),
        passed_over=passed_over(rungs),
        same_weights={rung.name: rung.also for rung in rungs if rung.also},
        sentence_rungs=_with_rows(rungs, content.sentences),
        other_rungs=_with_rows(rungs, content.others),
        near_words=[row for row in content.neighbours if "sentence" not in row],
        near_sentences=[row for row in content.neighbours if "sentence" in row],
        glove_word=published.GLOVE_WORD,
        glove=published.GLOVE_NEIGHBOURS,
        orders_source=published.ORDERS.source,
        gains_source=published.TABLES["T2"].source,
        published_gains=rows.published_gains(),
        corpus=corpus,
        read_from=describe_sources(inputs["corpus"]),
        registered=[],
        run=None,
        stages=tables.stages(inputs),
        stages_shown=_STAGES_SHOWN,
        plots=plots,
        built=last.record["finished"],
        root=origin.root_of(last),
        recipe=recipe,
    )


def _budget(content: Content, corpus: CorpusSummary) -> str:
    """The corpus and the training budget in one line."""
    trained = [rung.pretrain for rung in content.rungs]
    sizes = TokenizerSummary.of(content.inputs["tokenizer"]).vocab_size
    read = sorted({each.tokens for each in trained})
    tokens = " to ".join(dict.fromkeys(formats.compact(each) for each in (read[0], read[-1])))
    seconds = sum(artifact.record["seconds"] for artifact in content.inputs.values())
    return (
        f"{formats.number(corpus.documents.train)} documents "
        f"({corpus.amount(formats.compact)}) for training, "
        f"{formats.number(corpus.documents.validation)} held out; vocabulary "
        f"{formats.number(sizes)}; {len(trained)} rungs, {tokens} tokens each; "
        f"{formats.duration(seconds)} in all stages together."
    )


def _pairs(rungs: Sequence[Rung]) -> list[dict[str, Any]]:
    """The tables of minimal pairs: by phenomenon and overall, ours and published."""
    made = []
    for suite in suites_of(rungs, PAIRS):
        asked = [rung for rung in rungs if suite in rung.suites(PAIRS)]
        phenomena: dict[str, dict[str, float]] = {}
        for rung in asked:
            for row in rung.measure.scores:
                if (row.suite, row.part) == (suite, rows.HALF) and row.group is not None:
                    phenomena.setdefault(row.group, {})[rung.name] = row.value
        whole = {
            part: {
                rung.name: score
                for rung in asked
                if (score := rung.measure.value(suite, "accuracy", part))
            }
            for part in (rows.HALF, rows.TO_GOOD, rows.TIES)
        }
        theirs = rows.published_pairs(asked, suite)
        made.append(
            {"name": suite, "rungs": asked, "phenomena": phenomena, "whole": whole}
            | {"published": theirs}
        )
    return made


def _cells(found: Sequence[rows.Row], *keys: str) -> dict[tuple[Any, ...], dict[str, rows.Row]]:
    """Rows by the values of `keys`, then by rung."""
    cells: dict[tuple[Any, ...], dict[str, rows.Row]] = {}
    for row in found:
        cells.setdefault(tuple(row[key] for key in keys), {})[row["rung"]] = row
    return cells


def _with_rows(rungs: Sequence[Rung], found: Sequence[rows.Row]) -> list[Rung]:
    names = {row["rung"] for row in found}
    return [rung for rung in rungs if rung.name in names]


def _tables(content: Content) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows of every table on the page."""
    judged, compared, table = content.judged.claims, content.compared, content.table
    made: dict[str, Sequence[Mapping[str, Any]]] = {
        "ladder": list(history(content.rungs, content.columns)),
        "claims": [
            {"claim": claim.id, "claim_verdict": claim.verdict, **row.model_dump(mode="json")}
            for claim in judged
            for row in claim.comparisons
        ],
        "minimal_pairs": rows.minimal_pairs(content.rungs),
        "orders": content.orders,
        "gains": content.gains,
        "senses": [
            {"word": word, "rung": rung, "layer": each["layer"], **point}
            for word, maps in content.maps.items()
            for rung, each in maps.items()
            for point in each["points"]
        ],
        "sentences": content.sentences,
        "neighbours": content.neighbours,
        "layers": content.layers,
        "layer_mixes": content.mixes,
        "others": content.others,
        "stages": tables.stages(content.inputs),
    }
    if table:
        made["table"] = [row.model_dump() for row in table.scores]
        made["table_differences"] = [row.model_dump() for row in table.differences]
    if compared:
        made["mix"] = tables.mixes(compared)
        made["budgets"] = tables.budgets(compared) if compared.has_budgets else []
    return {name: each for name, each in made.items() if each}
