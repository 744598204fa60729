"""Report stage: one self-contained HTML page about a run, its plots as PNG and its tables as CSV.

    records ──> findings, tables ──┐
    instances, model ──> examples ─┼──> templates/page.html.j2 ──> report.html, *.png, *.csv
    records ──> plots ─────────────┘

Everything on the page comes from the records and files of the stages before it; nothing is measured
anew but the examples. Pictures are inlined, so the page can be mailed. Sections of stages that the
workflow does not have are left out. Every text is escaped: documents hold HTML now and then.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape
from pydantic import Field

from rungwise.core.artifact import Artifact
from rungwise.core.config import Config
from rungwise.core.context import Context
from rungwise.core.stage import StageType
from rungwise.core.storage import Folder
from rungwise.core.summary import Summary
from rungwise.core.tables import csv_bytes
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation import fill_in, spelling, surprise
from rungwise.evaluation import generation as continuations
from rungwise.evaluation.summary import EvaluateSummary
from rungwise.evaluation.table import TableSummary
from rungwise.instances.kinds import config_of
from rungwise.instances.masked_batch import MaskedConfig
from rungwise.instances.summary import InstancesSummary
from rungwise.models.objectives import Objective
from rungwise.pretraining.summary import GradientRun, PretrainSummary
from rungwise.report import (
    budget_plots,
    comparison,
    comparison_plots,
    examples,
    findings,
    formats,
    origin,
    pictures,
    pretraining_plots,
    speed,
    speed_plots,
    style,
    sweep_plots,
    tables,
)
from rungwise.report.compared import Compared, Swept, gather, input_of, of_stage, sweeps_of
from rungwise.report.examples import Examples
from rungwise.serving.registry import RegisterSummary
from rungwise.tokenizer import TokenizerSummary
from rungwise.tokenizer import load as load_tokenizer

PAGE = "report.html"
_OF_A_TRIAL = (
    *("trial", "task", "variant", "state", "error", "winner", "stopped_early"),
    *("epochs_run", "epochs_asked", "score", "loss", "seconds"),
)
_STAGES_DRAWN = 20  # more are drawn by kind


class ReportConfig(Config):
    """The title of the page, and its examples, of which each kind of model has its own."""

    title: str | None = None  # the label of the run if unset
    fill_in_examples: int = Field(default=8, ge=0, le=48)
    continuations: int = Field(default=4, ge=0, le=16)
    seed: int = Field(default=0, ge=0)  # draws the examples


class ReportSummary(Summary):
    """The name of the page."""

    page: str


def write_report(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    objective = pretrain.model.objective(pretrain.objective)
    shown = examples.gather(
        inputs["pretrain"],
        inputs.get("instances"),
        load_tokenizer(inputs["tokenizer"].folder),
        config.fill_in_examples,
        config.continuations,
        config.seed,
    )
    compared = gather(inputs)
    sweeps = sweeps_of(inputs)
    plots = draw(inputs, objective, shown, compared, sweeps)
    rows = _tables(inputs, shown, compared, sweeps)
    csv = {name: csv_bytes(each) for name, each in rows.items()}
    recipe = origin.recipe_text(context.recipe)
    page = render(config, inputs, objective, plots, shown, compared, sweeps, recipe)
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    headline = findings.headline(inputs, objective, compared)
    return ReportSummary(page=PAGE, show=tuple(files), headline=headline)


REPORT = StageType("report", 3, write_report, ReportSummary)


def draw(
    inputs: Mapping[str, Artifact],
    objective: Objective,
    shown: Examples,
    compared: Compared | None,
    sweeps: Sequence[Swept],
) -> dict[str, bytes]:
    """Every plot that the stages at hand allow, as PNG."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    plots = {}
    if run := pretrain.gradient:
        plots["loss.png"] = pretraining_plots.loss(pretrain, run, objective.tokens)
        if objective.pair:
            plots["pair.png"] = pretraining_plots.pair(run, objective.pair)
    if compared:
        plots |= _compared_plots(compared)
    if sweeps:
        plots["sweep.png"] = sweep_plots.scatter(sweeps)
        plots["sweep_parallel.png"] = sweep_plots.parallel(sweeps)
        plots["sweep_curves.png"] = sweep_plots.curves(sweeps)
        if varied := sweep_plots.schedules(sweeps):
            plots["sweep_schedules.png"] = varied
    if shown.shown:
        plots["instance.png"] = pictures.instance(shown.shown)
        instances = InstancesSummary.of(inputs["instances"])
        plots["lengths.png"] = pretraining_plots.lengths(instances)
    if shown.passage:
        plots["passage.png"] = pictures.passage(shown.passage)
    if shown.reach:
        plots["context.png"] = pretraining_plots.context(shown.reach, pretrain.unigram_entropy)
    if shown.filled:
        plots["fill_in.png"] = pictures.blanks(shown.filled)
    if run := pretrain.gradient:
        plots["speed.png"] = speed_plots.tokens_per_second(run)
        plots["shares.png"] = speed_plots.shares(run)
    plots["stages.png"] = pretraining_plots.stages(tables.seconds(inputs, _STAGES_DRAWN))
    return plots


def _compared_plots(compared: Compared) -> dict[str, bytes]:
    plots = {}
    for task in compared.tasks:
        plots[f"scores-{task.name}.png"] = comparison_plots.scores(task)
        if len(compared.variants) > 1:
            plots[f"differences-{task.name}.png"] = comparison_plots.differences(task)
    if compared.has_budgets:
        plots["budgets.png"] = budget_plots.budgets(compared)
    if budget_plots.mixed(compared):
        plots["mix.png"] = budget_plots.mix(compared)
    return plots


def render(
    config: ReportConfig,
    inputs: Mapping[str, Artifact],
    objective: Objective,
    plots: Mapping[str, bytes],
    shown: Examples,
    compared: Compared | None,
    sweeps: Sequence[Swept],
    recipe: str,
) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rungwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": formats.percent,
        "points": formats.points,
        "small_percent": formats.small_percent,
        "signed": formats.signed,
        "number": formats.number,
        "compact": formats.compact,
        "duration": formats.duration,
        "setting": formats.setting,
        "score": formats.score,
        "interval": formats.interval,
        "gap": formats.points_with_interval,
        "gap_interval": formats.points_interval,
        "p_value": formats.p_value,
        "metric_name": formats.metric_name,
        "breakable": _breakable,
        "data_uri": _data_uri,
    }
    pretrain = PretrainSummary.of(inputs["pretrain"])
    run, instances = pretrain.gradient, inputs.get("instances")
    read = config_of(instances) if instances else None
    last = list(inputs.values())[-1]
    return environment.get_template("page.html.j2").render(
        title=config.title or last.label,
        pretrain=pretrain,
        run=run,
        instances=InstancesSummary.of(instances) if instances else None,
        corpus=CorpusSummary.of(inputs["corpus"]),
        pieces=TokenizerSummary.of(inputs["tokenizer"]).kind == "wordpiece",
        objective=objective,
        plots=plots,
        built=last.record["finished"],
        trained=findings.what_was_trained(inputs),
        num_pretrained=len(of_stage(inputs, "pretrain")),
        compared=compared,
        **(_compared_facts(compared) if compared else {}),
        table=_table(inputs),
        sweeps=sweeps,
        trials=tables.trials(sweeps) if sweeps else [],
        swept_columns=_swept_columns,
        registered=_registered(inputs),
        context_use=findings.use_of_context(
            pretrain.final[objective.tokens.loss_key], pretrain.unigram_entropy
        ),
        ln_vocabulary=math.log(pretrain.vocab_size),
        ln_2=math.log(2),
        masking=read.masking if isinstance(read, MaskedConfig) else None,
        minimum_letters=spelling.MINIMUM_LETTERS,
        top=fill_in.TOP,
        levels=surprise.LEVELS,
        temperature=continuations.TEMPERATURE,
        **(_run_facts(run, pretrain.tokens) if run else {}),
        stages=tables.stages(inputs),
        stages_shown=_STAGES_DRAWN,
        sources=origin.sources(inputs["corpus"]),
        dropped=origin.dropped(inputs["corpus"]),
        made_by=origin.made_by(inputs),
        workflow=origin.workflow(inputs),
        root=origin.root_of(last),
        recipe=recipe,
        **vars(shown),
    )


def _run_facts(run: GradientRun, tokens: int) -> dict[str, Any]:
    return {
        "attempts": speed.attempts(run),
        "speed_facts": speed.facts(run, tokens),
        "how": speed.how(run),
        "mishaps": speed.mishaps(run),
    }


def _compared_facts(compared: Compared) -> dict[str, Any]:
    return {
        "lede": findings.what_was_compared(compared),
        "asked": findings.what_is_asked,
        "board": comparison.board(compared),
        "costs": comparison.costs(compared),
        "settings": comparison.settings,
        "selections": comparison.selections,
        "chosen": [row for task in compared.tasks for row in comparison.selections(task)],
        "cells": comparison.cells,
        "steps": comparison.steps,
        "verdict": findings.verdict,
        "series": style.series,
    }


def _swept_columns(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the trials that are settings and stand under their own names."""
    names = dict.fromkeys(key for trial in trials for key in trial)
    return [name for name in names if name not in _OF_A_TRIAL and "/" not in name]


def _registered(
    inputs: Mapping[str, Artifact],
) -> list[tuple[RegisterSummary, EvaluateSummary]]:
    """Every registered model with the evaluation that it is from."""
    registered = []
    for artifact in of_stage(inputs, "register").values():
        evaluate = input_of(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        registered.append((RegisterSummary.of(artifact), EvaluateSummary.of(evaluate)))
    return registered


def _table(inputs: Mapping[str, Artifact]) -> TableSummary | None:
    return next((TableSummary.of(table) for table in of_stage(inputs, "table").values()), None)


def _tables(
    inputs: Mapping[str, Artifact],
    shown: Examples,
    compared: Compared | None,
    sweeps: Sequence[Swept],
) -> dict[str, Sequence[Mapping[str, Any]]]:
    rows: dict[str, Sequence[Mapping[str, Any]]] = {"stages.csv": tables.stages(inputs)}
    if run := PretrainSummary.of(inputs["pretrain"]).gradient:
        rows["training.csv"] = run.history
        rows["validation.csv"] = run.validation
        rows["speed.csv"] = run.timings
    if sweeps:
        rows["trials.csv"] = tables.trials(sweeps)
    if compared:
        rows["seeds.csv"] = tables.seeds(compared)
        rows["differences.csv"] = tables.differences(compared)
        if compared.has_budgets:
            rows["budgets.csv"] = tables.budgets(compared)
        if budget_plots.mixed(compared):
            rows["mix.csv"] = tables.mixes(compared)
    if table := _table(inputs):
        rows["table.csv"] = [row.model_dump() for row in table.scores]
        rows["table_differences.csv"] = [row.model_dump() for row in table.differences]
    if shown.filled:
        rows["fill_in.csv"] = tables.fill_in(shown.filled)
    if shown.passage:
        rows["passage.csv"] = [vars(seen) for seen in shown.passage.tokens]
    if shown.reach:
        rows["context.csv"] = [vars(row) for row in shown.reach]
    if shown.continued:
        rows["continuations.csv"] = tables.continuations(shown.continued)
    return rows


def _breakable(name: str) -> Markup:
    """A name that may go on in the next line after `_`, `-` and `.`."""
    return Markup(re.sub(r"([_.-])", r"\1<wbr>", str(escape(name))))


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
