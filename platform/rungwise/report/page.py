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
from collections.abc import Mapping
from typing import Any

import jinja2
from pydantic import Field

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.instances.kinds import config_of
from rungwise.instances.masked import MaskedConfig
from rungwise.report import (
    comparison_plots,
    continuations,
    examples,
    fill_in,
    findings,
    formats,
    origin,
    pictures,
    pretraining_plots,
    speed,
    speed_plots,
    spelling,
    style,
    surprise,
    sweep_plots,
    tables,
)
from rungwise.report.examples import Examples
from rungwise.report.terms import Terms, terms_of
from rungwise.storage import Folder
from rungwise.tokenizer import load as load_tokenizer
from rungwise.training.loop import PretrainConfig

PAGE = "report.html"


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
    settings = PretrainConfig.model_validate(pretrain.record["config"]["pretrain"])
    terms = terms_of(settings.objective.kind)
    found = examples.gather(
        pretrain,
        inputs["instances"],
        load_tokenizer(inputs["tokenizer"].folder),
        config.fill_in_examples,
        config.continuations,
        config.seed,
    )
    plots = draw(inputs, terms, found)
    csv = {name: tables.csv_bytes(rows) for name, rows in _tables(inputs, found).items()}
    recipe = origin.recipe_text(origin.recipe(inputs, config.model_dump(mode="json")))
    page = render(config, inputs, terms, plots, found, recipe)
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    return {"page": PAGE, "show": list(files), "headline": findings.headline(inputs, terms)}


def draw(inputs: Mapping[str, Artifact], terms: Terms, found: Examples) -> dict[str, bytes]:
    """Every plot that the stages at hand allow, as PNG."""
    pretrain, instances = inputs["pretrain"], inputs["instances"]
    entropy = instances.summary["unigram_entropy"]
    plots = {"loss.png": pretraining_plots.loss(pretrain, entropy, terms)}
    if terms.pair:
        plots["pair.png"] = pretraining_plots.pair(pretrain, terms.pair)
    if "evaluate" in inputs:
        evaluate = inputs["evaluate"]
        plots["with_without.png"] = comparison_plots.with_without(evaluate)
        if "difference" in evaluate.summary:
            plots["difference.png"] = comparison_plots.difference(evaluate)
    if "sweep" in inputs:
        plots["sweep.png"] = sweep_plots.scatter(inputs["sweep"])
        plots["sweep_curves.png"] = sweep_plots.curves(inputs["sweep"])
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
    seconds = {name: stage.record["seconds"] for name, stage in inputs.items()}
    plots["stages.png"] = pretraining_plots.stages(seconds)
    return plots


def render(
    config: ReportConfig,
    inputs: Mapping[str, Artifact],
    terms: Terms,
    plots: Mapping[str, bytes],
    found: Examples,
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
        "estimate": formats.share_with_interval,
        "gap": formats.points_with_interval,
        "data_uri": _data_uri,
    }
    pretrain, instances = inputs["pretrain"].summary, inputs["instances"]
    read = config_of(instances)
    last = list(inputs.values())[-1]
    return environment.get_template("page.html.j2").render(
        title=config.title or last.label,
        inputs=inputs,
        terms=terms,
        plots=plots,
        names=style.SYSTEM_NAMES,
        built=last.record["finished"],
        trained=findings.what_was_trained(inputs, terms),
        compared=findings.what_was_compared(inputs) if _compares(inputs) else None,
        comparison=findings.comparison(inputs["evaluate"]) if _compares(inputs) else None,
        context_use=findings.use_of_context(
            pretrain["final"][terms.loss_key], instances.summary["unigram_entropy"]
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
        trials=tables.trials(inputs["sweep"]) if "sweep" in inputs else [],
        swept=tables.swept_keys(inputs["sweep"]) if "sweep" in inputs else [],
        sources=origin.sources(inputs["corpus"]),
        dropped=origin.dropped(inputs["corpus"]),
        made_by=origin.made_by(inputs),
        workflow=origin.workflow(inputs),
        root=origin.root_of(last),
        recipe=recipe,
        **vars(found),
    )


def _compares(inputs: Mapping[str, Artifact]) -> bool:
    return {"task", "sweep", "evaluate"} <= inputs.keys()


def _tables(inputs: Mapping[str, Artifact], found: Examples) -> dict[str, list[dict[str, Any]]]:
    pretrain = inputs["pretrain"].summary
    rows = {
        "stages.csv": tables.stages(inputs),
        "training.csv": pretrain["history"],
        "validation.csv": pretrain["validation"],
        "speed.csv": pretrain["timings"],
    }
    if "sweep" in inputs:
        rows["trials.csv"] = tables.trials(inputs["sweep"])
    if "evaluate" in inputs:
        rows["seeds.csv"] = tables.seeds(inputs["evaluate"])
    if found.filled:
        rows["fill_in.csv"] = tables.fill_in(found.filled)
    if found.passage:
        rows["passage.csv"] = [vars(seen) for seen in found.passage.tokens]
    if found.reach:
        rows["context.csv"] = [vars(row) for row in found.reach]
    if found.continued:
        rows["continuations.csv"] = tables.continuations(found.continued)
    return rows


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
