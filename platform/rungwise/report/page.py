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
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from pydantic import Field

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.instances.kinds import masked_config_of
from rungwise.report import (
    comparison_plots,
    fill_in,
    findings,
    formats,
    held_out,
    origin,
    pictures,
    pretraining_plots,
    style,
    sweep_plots,
    tables,
)
from rungwise.report.fill_in import Filled
from rungwise.report.specimen import Specimen, specimen, token_text
from rungwise.storage import Folder
from rungwise.tokenizer import load as load_tokenizer
from rungwise.training.loop import PretrainConfig

PAGE = "report.html"


class ReportConfig(Config):
    """What the page is called, and its examples."""

    title: str | None = None  # the label of the run if unset
    fill_in_examples: int = Field(default=8, ge=0, le=48)
    seed: int = Field(default=0, ge=0)  # draws the examples


def run(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    instances, pretrain = inputs["instances"], inputs["pretrain"]
    settings = PretrainConfig.model_validate(pretrain.record["config"]["pretrain"])
    tokenizer = load_tokenizer(inputs["tokenizer"].folder)
    reader = held_out.first_held_out(instances, held_out.MOST_INSTANCES)
    validated = min(settings.validation_instances, held_out.MOST_INSTANCES, len(reader))
    shown = specimen(reader, tokenizer, settings.seed)
    frequent, share = held_out.most_frequent_share(reader, validated, settings.seed)
    filled = _filled(config, inputs, reader, tokenizer)

    plots = draw(inputs, shown, filled)
    csv = {name: tables.csv_bytes(rows) for name, rows in _tables(inputs, filled).items()}
    recipe = origin.recipe_text(origin.recipe(inputs, config.model_dump(mode="json")))
    page = render(
        config,
        inputs,
        plots,
        {
            "shown": shown,
            "filled": filled,
            "recipe": recipe,
            "baseline": {
                "token": token_text(tokenizer, frequent),
                "share": share,
                "instances": validated,
            },
        },
    )
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    return {"page": PAGE, "show": list(files), "headline": findings.headline(inputs)}


def draw(
    inputs: Mapping[str, Artifact], shown: Specimen, filled: Sequence[Filled]
) -> dict[str, bytes]:
    """Every plot that the stages at hand allow, as PNG."""
    pretrain, instances = inputs["pretrain"], inputs["instances"]
    plots = {"loss.png": pretraining_plots.loss(pretrain, instances.summary["unigram_entropy"])}
    if "nsp_loss" in pretrain.summary["final"]:
        plots["next_sentence.png"] = pretraining_plots.next_sentence(pretrain)
    if "evaluate" in inputs:
        evaluate = inputs["evaluate"]
        plots["with_without.png"] = comparison_plots.with_without(evaluate)
        if "difference" in evaluate.summary:
            plots["difference.png"] = comparison_plots.difference(evaluate)
    if "sweep" in inputs:
        plots["sweep.png"] = sweep_plots.scatter(inputs["sweep"])
        plots["sweep_curves.png"] = sweep_plots.curves(inputs["sweep"])
    plots["instance.png"] = pictures.instance(shown)
    plots["lengths.png"] = pretraining_plots.lengths(instances)
    if filled:
        plots["fill_in.png"] = pictures.blanks(filled)
    seconds = {name: found.record["seconds"] for name, found in inputs.items()}
    plots["stages.png"] = pretraining_plots.stages(seconds)
    return plots


def render(
    config: ReportConfig,
    inputs: Mapping[str, Artifact],
    plots: Mapping[str, bytes],
    examples: Mapping[str, Any],
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
        "signed": formats.signed,
        "number": formats.number,
        "compact": formats.compact,
        "duration": formats.duration,
        "setting": formats.setting,
        "estimate": formats.share_with_interval,
        "gap": formats.points_with_interval,
        "data_uri": _data_uri,
    }
    pretrain, instances = inputs["pretrain"].summary, inputs["instances"].summary
    last = list(inputs.values())[-1]
    return environment.get_template("page.html.j2").render(
        title=config.title or last.label,
        inputs=inputs,
        plots=plots,
        names=style.SYSTEM_NAMES,
        built=last.record["finished"],
        trained=findings.what_was_trained(inputs),
        compared=findings.what_was_compared(inputs) if _compares(inputs) else None,
        comparison=findings.comparison(inputs["evaluate"]) if _compares(inputs) else None,
        context_use=findings.use_of_context(
            pretrain["final"]["mlm_loss"], instances["unigram_entropy"]
        ),
        ln_vocabulary=math.log(pretrain["vocab_size"]),
        ln_2=math.log(2),
        masking=masked_config_of(inputs["instances"]).masking,
        minimum_letters=fill_in.MINIMUM_LETTERS,
        top=fill_in.TOP,
        stages=tables.stages(inputs),
        trials=tables.trials(inputs["sweep"]) if "sweep" in inputs else [],
        swept=tables.swept_keys(inputs["sweep"]) if "sweep" in inputs else [],
        sources=origin.sources(inputs["corpus"]),
        dropped=origin.dropped(inputs["corpus"]),
        made_by=origin.made_by(inputs),
        workflow=origin.workflow(inputs),
        root=origin.root_of(last),
        **examples,
    )


def _compares(inputs: Mapping[str, Artifact]) -> bool:
    return {"task", "sweep", "evaluate"} <= inputs.keys()


def _filled(
    config: ReportConfig, inputs: Mapping[str, Artifact], reader: Any, tokenizer: Any
) -> list[Filled]:
    kind = inputs["tokenizer"].summary["kind"]
    blanks = fill_in.choose(reader, tokenizer, kind, config.fill_in_examples, config.seed)
    return fill_in.fill(fill_in.load_model(inputs["pretrain"]), tokenizer, blanks) if blanks else []


def _tables(
    inputs: Mapping[str, Artifact], filled: Sequence[Filled]
) -> dict[str, list[dict[str, Any]]]:
    pretrain = inputs["pretrain"].summary
    found = {
        "stages.csv": tables.stages(inputs),
        "training.csv": pretrain["history"],
        "validation.csv": pretrain["validation"],
    }
    if "sweep" in inputs:
        found["trials.csv"] = tables.trials(inputs["sweep"])
    if "evaluate" in inputs:
        found["seeds.csv"] = tables.seeds(inputs["evaluate"])
    if filled:
        found["fill_in.csv"] = tables.fill_in(filled)
    return found


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
