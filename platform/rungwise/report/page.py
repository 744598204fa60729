"""Report stage: one self-contained HTML page about a run, its plots as PNG and its tables as CSV.

    records ──> sections/ ──┐
    model ──> examples ─────┼──> templates/page.html.j2 ──> report.html, *.png, *.csv
    records ──> plots/ ─────┘

Everything on the page comes from records and files of earlier stages; only the examples are
computed here. Plots are inlined, so the page can be mailed. Sections of stages that the workflow
lacks are left out. All text is escaped, since documents may contain HTML.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.evaluation.page import fill_in, generation, spelling
from rungwise.instances.kinds import read_kind
from rungwise.instances.summary import InstancesSummary
from rungwise.models.losses.objectives import Objective
from rungwise.pretraining.initial import INITIAL
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report.plots import budgets, comparison, pretraining, sweeps
from rungwise.report.sections import findings, origin, speed, tables
from rungwise.report.sections.errors import TaskErrors, error_tables, gather_errors
from rungwise.report.sections.examples import Examples, gather_examples
from rungwise.report.sections.searches import (
    Tuned,
    describe_untuned,
    draw_searches,
    gather_searches,
    search_rows,
)
from rungwise.report.sections.variants import (
    Comparison,
    VariantSweep,
    gather_comparison,
    gather_sweeps,
    input_artifact,
    select_stage,
)
from rungwise.report.stage import REPORT_PAGE, ReportConfig, ReportSummary
from rungwise.report.writing import render_template, write_files
from rungwise.serving.stage import RegisterSummary
from rungwise.tokenizer import TokenizerSummary, load_tokenizer


@dataclass(frozen=True)
class Content:
    """Everything the page shows, read from the stages of a run once."""

    inputs: Mapping[str, Artifact]
    pretrain: PretrainSummary
    objective: Objective
    examples: Examples
    comparison: Comparison | None
    table: TableSummary | None
    sweeps: Sequence[VariantSweep]
    searches: Sequence[Tuned]
    errors: Sequence[TaskErrors]


def write_report(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    table = next(iter(select_stage(inputs, "table").values()), None)
    comparison = gather_comparison(inputs)
    content = Content(
        inputs=inputs,
        pretrain=pretrain,
        objective=pretrain.model.objective(pretrain.objective),
        examples=gather_examples(
            inputs["pretrain"],
            inputs.get("instances"),
            load_tokenizer(inputs["tokenizer"].folder),
            config.fill_in_examples,
            config.continuations,
            config.neighbours,
            config.seed,
        ),
        comparison=comparison,
        table=None if table is None else TableSummary.of(table),
        sweeps=gather_sweeps(inputs, comparison.looks) if comparison else (),
        searches=gather_searches(inputs, comparison.looks if comparison else {}),
        errors=gather_errors(inputs),
    )
    plots = draw_plots(content)
    recipe = origin.recipe_text(context.recipe)
    page = REPORT_PAGE, render_page(content, config.title, plots, recipe)
    headline = findings.headline(inputs, content.objective, content.comparison)
    return write_files(output, page, plots, csv_tables(content), recipe, headline)


def draw_plots(content: Content) -> dict[str, bytes]:
    """Every plot that these stages allow, as PNG, by file name."""
    pretrain, examples = content.pretrain, content.examples
    plots = {}
    if run := pretrain.gradient:
        plots["loss"] = pretraining.draw_loss(pretrain, run, content.objective)
        if content.objective.pair:
            plots["pair"] = pretraining.draw_pair_task(run, content.objective.pair)
        plots["speed"] = pretraining.draw_tokens_per_second(run)
    if results := content.comparison:
        for task in results.tasks:
            plots[f"scores-{task.name}"] = comparison.draw_scores(task, results.looks)
            if task.against_first:
                differences = comparison.draw_differences(task, results.looks)
                plots[f"differences-{task.name}"] = differences
        plots |= budgets.draw_all(results)
    for each in content.errors:
        if each.analysis.reliability:
            plots[f"reliability-{each.task}"] = comparison.draw_reliability(each)
    if content.sweeps:
        plots["sweep_curves"] = sweeps.draw_curves(content.sweeps)
    if content.searches:
        plots |= draw_searches(content.searches)
    if examples.specimen:
        instances = InstancesSummary.of(content.inputs["instances"])
        plots["lengths"] = pretraining.draw_lengths(instances)
    return {f"{name}.png": picture for name, picture in plots.items()}


def render_page(
    content: Content, title: str | None, plots: Mapping[str, bytes], recipe: str
) -> str:
    """The page as HTML; `title` defaults to the label of the run."""
    inputs, instances = content.inputs, content.inputs.get("instances")
    summary = InstancesSummary.of(instances) if instances else None
    tasks = content.comparison.tasks if content.comparison else ()
    return render_template(
        "page.html.j2",
        title=title,
        plots=plots,
        recipe=recipe,
        **vars(content),
        **vars(content.examples),
        findings=findings,
        verdicts_after={},
        speed=speed,
        luck=findings.describe_luck(len(tasks[0].evaluation.seeds)) if tasks else "",
        pretrainings=max(
            (t.evaluation.pretrainings(name) for t in tasks for name in t.evaluation.variants),
            default=1,
        ),
        run=content.pretrain.gradient,
        instances=summary,
        tokenizer=TokenizerSummary.of(inputs["tokenizer"]),
        figures=read_kind(instances).figures(summary.statistics) if instances and summary else [],
        num_pretrained=len(select_stage(inputs, "pretrain")),
        registered=_registered_models(inputs),
        error_files=[f"{name}.csv" for name in error_tables(content.errors)],
        seconds=tables.stage_seconds(inputs),
        starting_seconds=tables.starting_seconds(inputs),
        from_weights=INITIAL in inputs["pretrain"].record["inputs"],
        ln_vocabulary=math.log(content.pretrain.vocab_size),
        ln_2=math.log(2),
        minimum_letters=spelling.MINIMUM_LETTERS,
        top=fill_in.TOP,
        temperature=generation.TEMPERATURE,
        untuned=describe_untuned(
            content.searches, content.comparison.variants if content.comparison else ()
        ),
    )


def _registered_models(
    inputs: Mapping[str, Artifact],
) -> list[tuple[RegisterSummary, EvaluateSummary]]:
    """Every registered model with its evaluation."""
    models = []
    for artifact in select_stage(inputs, "register").values():
        evaluate = input_artifact(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        models.append((RegisterSummary.of(artifact), EvaluateSummary.of(evaluate)))
    return models


def csv_tables(content: Content) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows of every table that these stages allow, by file name without `.csv`."""
    examples, comparison, table = content.examples, content.comparison, content.table
    rows: dict[str, Sequence[Mapping[str, Any]]] = {"stages": tables.stages(content.inputs)}
    if run := content.pretrain.gradient:
        rows |= {"training": run.history, "validation": run.validation, "speed": run.timings}
    if comparison:
        rows["seeds"] = tables.seeds(comparison)
        rows["differences"] = tables.differences(comparison)
        rows["budgets"] = tables.budgets(comparison) if comparison.has_budgets else []
        rows["mix"] = tables.layer_weights(comparison)
        rows["noise"] = tables.noise(comparison)
    if table:
        rows["table"] = [score.model_dump() for score in table.scores]
        rows["table_differences"] = [row.model_dump() for row in table.differences]
    rows |= error_tables(content.errors) | {
        "trials": tables.trials(content.sweeps),
        "searches": search_rows(content.searches),
        "fill_in": tables.guesses(examples.blanks),
        "continuations": tables.continuations(examples.continuations),
        "neighbours": tables.neighbours(examples.neighbours),
    }
    return {name: each for name, each in rows.items() if each}
