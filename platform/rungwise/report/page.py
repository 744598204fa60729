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
from rungwise.core.storage import Folder
from rungwise.evaluation import fill_in, spelling, surprise
from rungwise.evaluation import generation as continuations
from rungwise.instances.kinds import config_of
from rungwise.instances.masked import MaskedConfig
from rungwise.models.objectives import Objective
from rungwise.pretraining.pretrained import config_of as config_of_pretrained
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
    rebuild,
    speed,
    speed_plots,
    style,
    sweep_plots,
    tables,
)
from rungwise.report.compared import Compared, gather, input_of, of_stage
from rungwise.report.examples import Examples
from rungwise.tokenizer import load as load_tokenizer

PAGE = "report.html"
_OF_A_TRIAL = (
    *("trial", "variant", "title", "task", "state", "error", "winner", "stopped_early"),
    *("epochs_run", "epochs_asked", "score", "loss", "seconds"),
)
_STAGES_DRAWN = 20  # more are drawn by kind


class ReportConfig(Config):
    """What the page is called, and its examples, of which each kind of model has its own."""

    title: str | None = None  # the label of the run if unset
    fill_in_examples: int = Field(default=8, ge=0, le=48)
    continuations: int = Field(default=4, ge=0, le=16)
    seed: int = Field(default=0, ge=0)  # draws the examples


def run(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain = inputs["pretrain"]
    objective = config_of_pretrained(pretrain).objective
    found = examples.gather(
        pretrain,
        inputs["instances"],
        load_tokenizer(inputs["tokenizer"].folder),
        config.fill_in_examples,
        config.continuations,
        config.seed,
    )
    compared = gather(inputs)
    plots = draw(inputs, objective, found, compared)
    csv = {name: tables.csv_bytes(rows) for name, rows in _tables(inputs, found, compared).items()}
    recipe = origin.recipe_text(rebuild.recipe(inputs, config.model_dump(mode="json")))
    page = render(config, inputs, objective, plots, found, compared, recipe)
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    headline = findings.headline(inputs, objective, compared)
    return {"page": PAGE, "show": list(files), "headline": headline}


def draw(
    inputs: Mapping[str, Artifact], objective: Objective, found: Examples, compared: Compared | None
) -> dict[str, bytes]:
    """Every plot that the stages at hand allow, as PNG."""
    pretrain, instances = inputs["pretrain"], inputs["instances"]
    entropy = instances.summary["unigram_entropy"]
    plots = {"loss.png": pretraining_plots.loss(pretrain, entropy, objective.tokens)}
    if objective.pair:
        plots["pair.png"] = pretraining_plots.pair(pretrain, objective.pair)
    if compared:
        plots |= _compared_plots(compared)
    sweeps = of_stage(inputs, "sweep")
    if sweeps:
        plots["sweep.png"] = sweep_plots.scatter(sweeps)
        plots["sweep_parallel.png"] = sweep_plots.parallel(sweeps)
        plots["sweep_curves.png"] = sweep_plots.curves(sweeps)
        if varied := sweep_plots.schedules(sweeps):
            plots["sweep_schedules.png"] = varied
    if found.shown:
        plots["instance.png"] = pictures.instance(found.shown)
        plots["lengths.png"] = pretraining_plots.lengths(instances)
    if found.passage:
        plots["passage.png"] = pictures.passage(found.passage)
    if found.reach:
        plots["context.png"] = pretraining_plots.context(found.reach, entropy)
    if found.filled:
        plots["fill_in.png"] = pictures.blanks(found.filled)
    plots["speed.png"] = speed_plots.tokens_per_second(pretrain)
    plots["shares.png"] = speed_plots.shares(pretrain)
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
    found: Examples,
    compared: Compared | None,
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
    pretrain, instances = inputs["pretrain"].summary, inputs["instances"]
    read = config_of(instances)
    last = list(inputs.values())[-1]
    sweeps = of_stage(inputs, "sweep")
    return environment.get_template("page.html.j2").render(
        title=config.title or last.label,
        inputs=inputs,
        objective=objective,
        plots=plots,
        built=last.record["finished"],
        trained=findings.what_was_trained(inputs),
        num_pretrained=len(of_stage(inputs, "pretrain")),
        compared=compared,
        **(_compared_facts(compared) if compared else {}),
        table=inputs["table"].summary if "table" in inputs else None,
        sweeps=sweeps,
        trials=tables.trials(sweeps) if sweeps else [],
        swept_columns=_swept_columns,
        registered=_registered(inputs),
        context_use=findings.use_of_context(
            pretrain["final"][objective.tokens.loss_key], instances.summary["unigram_entropy"]
        ),
        ln_vocabulary=math.log(pretrain["vocab_size"]),
        ln_2=math.log(2),
        masking=read.masking if isinstance(read, MaskedConfig) else None,
        minimum_letters=spelling.MINIMUM_LETTERS,
        top=fill_in.TOP,
        levels=surprise.LEVELS,
        temperature=continuations.TEMPERATURE,
        attempts=speed.attempts(pretrain),
        speed_facts=speed.facts(pretrain),
        how=speed.how(pretrain),
        mishaps=speed.mishaps(pretrain),
        stages=tables.stages(inputs),
        stages_shown=_STAGES_DRAWN,
        sources=origin.sources(inputs["corpus"]),
        dropped=origin.dropped(inputs["corpus"]),
        made_by=origin.made_by(inputs),
        workflow=origin.workflow(inputs),
        root=origin.root_of(last),
        recipe=recipe,
        **vars(found),
    )


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


def _registered(inputs: Mapping[str, Artifact]) -> list[tuple[Mapping[str, Any], Any]]:
    """Every registered model with the evaluation that it is from."""
    found = []
    for artifact in of_stage(inputs, "register").values():
        evaluate = input_of(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        found.append((artifact.summary, evaluate.summary))
    return found


def _tables(
    inputs: Mapping[str, Artifact], found: Examples, compared: Compared | None
) -> dict[str, list[dict[str, Any]]]:
    pretrain = inputs["pretrain"].summary
    rows = {
        "stages.csv": tables.stages(inputs),
        "training.csv": pretrain["history"],
        "validation.csv": pretrain["validation"],
        "speed.csv": pretrain["timings"],
    }
    sweeps = of_stage(inputs, "sweep")
    if sweeps:
        rows["trials.csv"] = tables.trials(sweeps)
    if compared:
        rows["seeds.csv"] = tables.seeds(compared)
        rows["differences.csv"] = tables.differences(compared)
        if compared.has_budgets:
            rows["budgets.csv"] = tables.budgets(compared)
        if budget_plots.mixed(compared):
            rows["mix.csv"] = tables.mixes(compared)
    if "table" in inputs:
        rows["table.csv"] = inputs["table"].summary["scores"]
        rows["table_differences.csv"] = inputs["table"].summary["differences"]
    if found.filled:
        rows["fill_in.csv"] = tables.fill_in(found.filled)
    if found.passage:
        rows["passage.csv"] = [vars(seen) for seen in found.passage.tokens]
    if found.reach:
        rows["context.csv"] = [vars(row) for row in found.reach]
    if found.continued:
        rows["continuations.csv"] = tables.continuations(found.continued)
    return rows


def _breakable(name: str) -> Markup:
    """A name that may go on in the next line after `_`, `-` and `.`."""
    return Markup(re.sub(r"([_.-])", r"\1<wbr>", str(escape(name))))


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
