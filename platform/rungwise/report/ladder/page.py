"""Ladder stage: one self-contained HTML page about all rungs, its plots as PNG and tables as CSV.

    pretrain, measure of each rung ──> rungs.py, rows.py ──┐
    claims ──> claims.py ──────────────────────────────────┼──> templates/ladder.html.j2
    evaluate, table ──> sections/variants.py ──────────────┘    ──> ladder.html, *.png, *.csv

Everything comes from records and files of earlier stages; nothing is measured here. What a ladder
did not measure has no section. Published numbers are in separate columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.comparison import published
from rungwise.evaluation.comparison.claims import ClaimsSummary, claim_rows
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.report import formats
from rungwise.report.ladder import claims, rows
from rungwise.report.ladder import plots as ladder_plots
from rungwise.report.ladder.picture import draw_ladder, picture_columns
from rungwise.report.ladder.ranking import Ranking, rank_rungs
from rungwise.report.ladder.rows import LayerScore, LayerShare
from rungwise.report.ladder.rungs import (
    PAIRS,
    Column,
    Rung,
    gather_columns,
    gather_rungs,
    history_rows,
    skipped_suites,
    suite_names,
    variant_looks,
)
from rungwise.report.plots import budgets
from rungwise.report.sections import findings, origin, tables
from rungwise.report.sections.searches import (
    Tuned,
    changed_verdicts,
    describe_untuned,
    draw_searches,
    gather_searches,
    list_untuned,
    search_rows,
)
from rungwise.report.sections.tables import Row
from rungwise.report.sections.variants import Comparison, gather_comparison, select_stage
from rungwise.report.stage import LADDER_PAGE, LadderConfig, ReportSummary
from rungwise.report.writing import render_template, write_files
from rungwise.tokenizer import TokenizerSummary


@dataclass(frozen=True)
class Content:
    """Everything the page shows, read from the stages once."""

    inputs: Mapping[str, Artifact]
    rungs: Sequence[Rung]
    columns: Sequence[Column]
    ranking: Ranking | None
    claims: ClaimsSummary
    comparison: Comparison | None
    table: TableSummary | None
    orders: list[Row]
    gains: list[Row]
    layers: list[LayerScore]
    mixes: list[LayerShare]
    sentences: list[Row]
    others: list[Row]
    searches: list[Tuned]
    verdicts_after: dict[str, dict[str, str]]


def write_ladder(
    config: LadderConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them.

    Inputs: every stage of the experiment by its title, and claims.
    """
    content = gather_content(config, inputs)
    plots = draw_plots(content)
    recipe = origin.recipe_text(context.recipe)
    page = LADDER_PAGE, render_page(content, config.title, plots, recipe)
    return write_files(output, page, plots, csv_tables(content), recipe, write_headline(content))


def write_headline(content: Content) -> str:
    """The line in the terminal: the ranking, and the verdicts if any claim was tested."""
    parts = [content.ranking.headline()] if content.ranking else []
    if claims.select_tested(content.claims.claims):
        parts.append(claims.count_verdicts(content.claims.claims))
    return "; ".join(parts) or "no rung has a score"


def gather_content(config: LadderConfig, inputs: Mapping[str, Artifact]) -> Content:
    """Collect the content from the records and files of the stages."""
    rungs, comparison = gather_rungs(inputs, config.measured), gather_comparison(inputs)
    if comparison is not None:
        comparison = replace(comparison, looks=variant_looks(rungs, comparison.variants))
    verdicts = ClaimsSummary.of(inputs["claims"])
    table = next(iter(select_stage(inputs, "table").values()), None)
    columns = []
    for column in gather_columns(
        rungs, verdicts.averages, len(comparison.tasks) if comparison else 0
    ):
        values, source = rows.published_scores(rungs, column)
        columns.append(replace(column, published=values, source=source))
    return Content(
        inputs=inputs,
        rungs=rungs,
        columns=columns,
        ranking=rank_rungs(rungs, columns, verdicts.averages),
        claims=verdicts,
        comparison=comparison,
        table=None if table is None else TableSummary.of(table),
        orders=rows.orders(rungs),
        gains=rows.gains(comparison),
        layers=rows.layer_scores(rungs),
        mixes=rows.layer_shares(rungs),
        sentences=rows.sentences(rungs),
        others=rows.others(rungs),
        searches=gather_searches(inputs, {rung.name: rung.look for rung in rungs}),
        verdicts_after=changed_verdicts(inputs, config.claims_after),
    )


def draw_plots(content: Content) -> dict[str, bytes]:
    """Every plot that has data, as PNG, by file name."""
    rungs, comparison = content.rungs, content.comparison
    learnt = picture_columns(content.columns)
    plots: dict[str, bytes | None] = {
        "ladder": draw_ladder(rungs, learnt),
        "ladder-narrow": draw_ladder(rungs, learnt, narrow=True),
    }
    # Perplexity is bits per byte in another unit.
    if columns := [column for column in content.columns if column.metric != "perplexity"]:
        models = {rung.name: rung.pretrain for rung in rungs}
        flops = {name: model.flops for name, model in models.items() if model.flops}
        parameters = {name: model.parameters for name, model in models.items()}
        for name, axis, sizes in (
            ("operations", "operations (FLOP)", flops),
            ("parameters", "parameters", parameters),
        ):
            plots[name] = ladder_plots.draw_by_size(rungs, columns, axis, sizes)
    plots["while_learning"] = ladder_plots.draw_learning_curves(rungs)
    if content.layers:
        plots["layers"] = ladder_plots.draw_layers(content.layers, rungs)
    if content.mixes:
        plots["layer_mixes"] = ladder_plots.draw_mixes(content.mixes, rungs)
    if comparison:
        plots |= budgets.draw_all(comparison)
    if content.searches:
        plots |= draw_searches(content.searches)
    return {f"{name}.png": plot for name, plot in plots.items() if plot is not None}


def render_page(
    content: Content, title: str | None, plots: Mapping[str, bytes], recipe: str
) -> str:
    """The page as HTML; `title` defaults to the label of the run."""
    rungs = content.rungs
    fields = vars(content) | {
        "tested": claims.select_tested(content.claims.claims),
        "untested": [each for each in content.claims.claims if each.verdict == "not tested"],
        "sentences": list(_group_by_rung(content.sentences, "word", "number").values()),
        "others": _group_by_rung(content.others, "suite", "part", "metric"),
    }
    return render_template(
        "ladder.html.j2",
        title=title,
        plots=plots,
        recipe=recipe,
        **fields,
        effects=claims,
        luck=_describe_luck(content.claims),
        lede=_write_lede(content),
        learnt=picture_columns(content.columns),
        reference=list(dict.fromkeys(name for each in content.columns for name in each.published)),
        floors=list(dict.fromkeys(name for each in content.columns for name in each.floors)),
        budget=_describe_budget(content),
        pairs=[_pair_table(rungs, suite) for suite in suite_names(rungs, PAIRS)],
        skipped=skipped_suites(rungs),
        same_weights={rung.name: rung.also for rung in rungs if rung.also},
        sentence_rungs=_rungs_with_rows(rungs, content.sentences),
        other_rungs=_rungs_with_rows(rungs, content.others),
        orders_source=published.RESULTS.orders.source,
        gains_source=published.TABLES["T2"].source,
        published_gains=rows.published_gains(),
        registered=[],
        untuned=describe_untuned(content.searches, [rung.name for rung in rungs]),
        untuned_in=list_untuned(content.searches, content.claims),
        run=None,
    )


def _describe_luck(summary: ClaimsSummary) -> str:
    once = any(claim.pretrainings == 1 for claim in summary.claims)
    return findings.describe_luck(summary.seeds) if summary.seeds and once else ""


def _write_lede(content: Content) -> list[str]:
    """The verdict in words: the ranking, and how many claims hold."""
    lede = [content.ranking.sentence()] if content.ranking else []
    if claims.select_tested(content.claims.claims):
        text = claims.count_verdicts(content.claims.claims)
        lede.append(f"{text[0].upper()}{text[1:]}.")
    return lede


def _describe_budget(content: Content) -> str:
    """The size at which everything on the page holds: corpus and training budget, in one line."""
    corpus = CorpusSummary.of(content.inputs["corpus"])
    counts = sorted({rung.pretrain.tokens for rung in content.rungs})
    vocab_size = TokenizerSummary.of(content.inputs["tokenizer"]).vocab_size
    tokens = " to ".join(dict.fromkeys(map(formats.compact, (counts[0], counts[-1]))))
    seconds = sum(artifact.record["seconds"] for artifact in content.inputs.values())
    return (
        f"All of this holds at this size: {formats.number(corpus.documents.train)} documents "
        f"({corpus.amount(formats.compact)}) for training, "
        f"{formats.number(corpus.documents.validation)} held out; vocabulary "
        f"{formats.number(vocab_size)}; {len(content.rungs)} rungs, {tokens} tokens each; "
        f"{formats.duration(seconds)} in all stages together."
    )


def _pair_table(all_rungs: Sequence[Rung], suite: str) -> dict[str, Any]:
    """The table of one suite of minimal pairs: by phenomenon and overall, ours and published."""
    rungs = [rung for rung in all_rungs if suite in rung.suites(PAIRS)]
    phenomena: dict[str, dict[str, float]] = {}
    for rung in rungs:
        for score in rung.measure.scores:
            if (score.suite, score.part) == (suite, rows.HALF) and score.group is not None:
                phenomena.setdefault(score.group, {})[rung.name] = score.value
    totals = {
        part: {
            rung.name: score
            for rung in rungs
            if (score := rung.measure.value(suite, "accuracy", part))
        }
        for part in (rows.HALF, rows.TO_GOOD, rows.TIES)
    }
    return {
        "name": suite,
        "rungs": rungs,
        "phenomena": phenomena,
        "totals": totals,
        "published": rows.published_pairs(rungs, suite),
        "published_totals": rows.published_totals(rungs, suite),
    }


def _group_by_rung(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Rows by the values of `keys`, then by rung."""
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), {})[row["rung"]] = row
    return groups


def _rungs_with_rows(rungs: Sequence[Rung], rows: Sequence[Row]) -> list[Rung]:
    names = {row["rung"] for row in rows}
    return [rung for rung in rungs if rung.name in names]


def csv_tables(content: Content) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows of every table on the page, by file name without `.csv`."""
    comparison, table = content.comparison, content.table
    csv: dict[str, Sequence[Mapping[str, Any]]] = {
        "ladder": list(history_rows(content.rungs, content.columns)),
        "claims": claim_rows(content.claims.claims),
        "minimal_pairs": rows.minimal_pairs(content.rungs),
        "orders": content.orders,
        "gains": content.gains,
        "sentences": content.sentences,
        "layers": list(map(vars, content.layers)),
        "layer_mixes": list(map(vars, content.mixes)),
        "others": content.others,
        "searches": search_rows(content.searches),
        "stages": tables.stages(content.inputs),
    }
    if table:
        csv["table"] = [score.model_dump() for score in table.scores]
        csv["table_differences"] = [row.model_dump() for row in table.differences]
    if comparison:
        csv["mix"] = tables.layer_weights(comparison)
        csv["budgets"] = tables.budgets(comparison) if comparison.has_budgets else []
    return {name: each for name, each in csv.items() if each}
