"""Report stage: one self-contained HTML page about a run, its plots as PNG and its tables as CSV.

    records ──> findings, tables ──┐
    instances, model ──> examples ─┼──> templates/page.html.j2 ──> report.html, *.png, *.csv
    records ──> plots ─────────────┘

Everything on the page comes from records and files of earlier stages; only the examples are
computed here. Plots are inlined, so the page can be mailed. Sections of stages that the workflow
lacks are left out. All text is escaped, since documents may contain HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.evaluation.page import fill_in, generation, spelling, surprise
from rungwise.instances.kinds import config_of
from rungwise.instances.masked_batch import MaskedConfig
from rungwise.instances.summary import InstancesSummary
from rungwise.models.losses.objectives import Objective
from rungwise.pretraining.initial import INITIAL
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report import (
    budget_plots,
    comparison,
    comparison_plots,
    erring,
    examples,
    findings,
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
from rungwise.report.environment import environment
from rungwise.report.examples import Examples
from rungwise.serving.registry import RegisterSummary
from rungwise.tokenizer import TokenizerSummary, load_tokenizer

PAGE = "report.html"
_STAGES_DRAWN = 20  # at most; more are drawn by kind


class ReportConfig(Config):
    """The title of the page, and how many examples it shows; which kind depends on the model."""

    title: str | None = None  # null: the label of the run
    fill_in_examples: int = Field(default=8, ge=0, le=48)  # hidden words that the model guesses
    continuations: int = Field(default=4, ge=0, le=16)  # prompts that the model continues
    neighbours: int = Field(default=8, ge=0, le=48)  # words shown with their nearest words
    seed: int = Field(default=0, ge=0)  # draws the examples


class ReportSummary(Summary):
    """The name of the page."""

    page: str


@dataclass(frozen=True)
class Content:
    """Everything the page shows, read from the stages of a run once."""

    inputs: Mapping[str, Artifact]
    pretrain: PretrainSummary
    objective: Objective
    examples: Examples
    compared: Compared | None
    table: TableSummary | None
    sweeps: Sequence[Swept]
    erring: Sequence[erring.Erring] = ()


def write_report(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    table = next(iter(of_stage(inputs, "table").values()), None)
    compared = gather(inputs)
    content = Content(
        inputs=inputs,
        pretrain=pretrain,
        objective=pretrain.model.objective(pretrain.objective),
        examples=examples.gather(
            inputs["pretrain"],
            inputs.get("instances"),
            load_tokenizer(inputs["tokenizer"].folder),
            config.fill_in_examples,
            config.continuations,
            config.neighbours,
            config.seed,
        ),
        compared=compared,
        table=None if table is None else TableSummary.of(table),
        sweeps=sweeps_of(inputs, compared.looks) if compared else (),
        erring=erring.gather(inputs),
    )
    plots = draw(content)
    csv = {f"{name}.csv": csv_bytes(rows) for name, rows in _tables(content).items()}
    recipe = origin.recipe_text(context.recipe)
    page = render(content, config.title, plots, recipe)
    files = {PAGE: page.encode("utf-8"), **plots, **csv, origin.RECIPE: recipe.encode("utf-8")}
    for name, data in files.items():
        output.write_bytes(name, data)
    headline = findings.headline(inputs, content.objective, content.compared)
    return ReportSummary(page=PAGE, show=tuple(files), headline=headline)


REPORT = StageType("report", 5, write_report, ReportSummary)


def draw(content: Content) -> dict[str, bytes]:
    """Every plot that these stages allow, as PNG, by file name."""
    pretrain, shown, sweeps = content.pretrain, content.examples, content.sweeps
    plots = {}
    if run := pretrain.gradient:
        plots["loss"] = pretraining_plots.loss(pretrain, run, content.objective.tokens)
        if content.objective.pair:
            plots["pair"] = pretraining_plots.pair(run, content.objective.pair)
    if compared := content.compared:
        for task in compared.tasks:
            plots[f"scores-{task.name}"] = comparison_plots.scores(task, compared.looks)
            if task.against_first:
                differences = comparison_plots.differences(task, compared.looks)
                plots[f"differences-{task.name}"] = differences
        if compared.has_budgets:
            plots["budgets"] = budget_plots.budgets(compared)
        if budget_plots.mixed(compared):
            plots["mix"] = budget_plots.mix(compared)
    for each in content.erring:
        if each.errors.reliability:
            plots[f"reliability-{each.task}"] = erring.reliability(each)
    if sweeps:
        plots["sweep"] = sweep_plots.scatter(sweeps)
        plots["sweep_parallel"] = sweep_plots.parallel(sweeps)
        plots["sweep_curves"] = sweep_plots.curves(sweeps)
        if varied := sweep_plots.schedules(sweeps):
            plots["sweep_schedules"] = varied
    if shown.shown:
        plots["instance"] = pictures.instance(shown.shown)
        instances = InstancesSummary.of(content.inputs["instances"])
        plots["lengths"] = pretraining_plots.lengths(instances)
    if shown.passage:
        plots["passage"] = pictures.passage(shown.passage)
    if shown.reach:
        plots["context"] = pretraining_plots.context(shown.reach, pretrain.unigram_entropy)
    if shown.filled:
        plots["fill_in"] = pictures.blanks(shown.filled)
    if run:
        plots["speed"] = speed_plots.tokens_per_second(run)
        plots["shares"] = speed_plots.shares(run)
    plots["stages"] = pretraining_plots.stages(tables.seconds(content.inputs, _STAGES_DRAWN))
    return {f"{name}.png": picture for name, picture in plots.items()}


def render(content: Content, title: str | None, plots: Mapping[str, bytes], recipe: str) -> str:
    """The page as HTML; `title` defaults to the label of the run."""
    inputs, instances = content.inputs, content.inputs.get("instances")
    read = config_of(instances) if instances else None
    last = list(inputs.values())[-1]
    # Modules whose functions the templates call.
    modules = (comparison, findings, origin, speed, style, tables)
    template = environment().get_template("page.html.j2")
    return template.render(
        **{module.__name__.rpartition(".")[2]: module for module in modules},
        **vars(content),
        **vars(content.examples),
        title=title or last.label,
        run=content.pretrain.gradient,
        instances=InstancesSummary.of(instances) if instances else None,
        corpus=CorpusSummary.of(inputs["corpus"]),
        read_from=describe_sources(inputs["corpus"]),
        tokenizer=TokenizerSummary.of(inputs["tokenizer"]),
        masking=read.masking if isinstance(read, MaskedConfig) else None,
        num_pretrained=len(of_stage(inputs, "pretrain")),
        registered=_registered(inputs),
        erring_tables=[f"{name}.csv" for name in erring.rows(content.erring)],
        trials=tables.trials(content.sweeps),
        stages=tables.stages(inputs),
        stages_shown=_STAGES_DRAWN,
        plots=plots,
        built=last.record["finished"],
        root=origin.root_of(last),
        recipe=recipe,
        from_weights=INITIAL in inputs["pretrain"].record["inputs"],
        ln_vocabulary=math.log(content.pretrain.vocab_size),
        ln_2=math.log(2),
        minimum_letters=spelling.MINIMUM_LETTERS,
        top=fill_in.TOP,
        levels=surprise.LEVELS,
        temperature=generation.TEMPERATURE,
    )


def _registered(inputs: Mapping[str, Artifact]) -> list[tuple[RegisterSummary, EvaluateSummary]]:
    """Every registered model with its evaluation."""
    registered = []
    for artifact in of_stage(inputs, "register").values():
        evaluate = input_of(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        registered.append((RegisterSummary.of(artifact), EvaluateSummary.of(evaluate)))
    return registered


def _tables(content: Content) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows of every table that these stages allow."""
    examples, compared, table = content.examples, content.compared, content.table
    rows: dict[str, Sequence[Mapping[str, Any]]] = {"stages": tables.stages(content.inputs)}
    if run := content.pretrain.gradient:
        rows |= {"training": run.history, "validation": run.validation, "speed": run.timings}
    if compared:
        rows["seeds"] = tables.seeds(compared)
        rows["differences"] = tables.differences(compared)
        if compared.has_budgets:
            rows["budgets"] = tables.budgets(compared)
    rows |= erring.rows(content.erring)
    if table:
        rows["table"] = [row.model_dump() for row in table.scores]
        rows["table_differences"] = [row.model_dump() for row in table.differences]
    shown = {
        "trials": tables.trials(content.sweeps),
        "mix": tables.mixes(compared) if compared else [],
        "noise": tables.noise(compared) if compared else [],
        "fill_in": tables.fill_in(examples.filled),
        "passage": [vars(seen) for seen in examples.passage.tokens] if examples.passage else [],
        "context": [vars(row) for row in examples.reach],
        "continuations": tables.continuations(examples.continued),
        "neighbours": tables.neighbours(examples.neighbours),
    }
    return rows | {name: each for name, each in shown.items() if each}
