"""Report stage: one self-contained HTML page about a run, its plots as PNG and its tables as CSV.

    records of earlier stages ──> sections/ ──┐
    model ──> examples                      ──┴──> page.py ──> report.html, *.png, *.csv

Everything on the page comes from records and files of earlier stages; only the examples are
computed here. Sections of stages that the workflow lacks are left out.
"""

import math
from collections.abc import Mapping

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.report.page import Page, Section, write_page
from rungwise.report.sections import budgets, errors, findings, origin, table, tuning
from rungwise.report.sections.comparison import (
    BoardRow,
    count_pretrainings,
    judge_tasks,
    selections,
    write_comparison,
)
from rungwise.report.sections.examples import Baseline, gather_examples, write_examples
from rungwise.report.sections.pretraining import write_loss, write_speed
from rungwise.report.sections.variants import (
    VariantComparison,
    gather_comparison,
    gather_sweeps,
    select_stage,
)
from rungwise.report.stage import REPORT_PAGE, ReportConfig, ReportSummary
from rungwise.tokenizer import TokenizerSummary, load_tokenizer
from rungwise.training.initial import INITIAL
from rungwise.training.summary import PretrainSummary


def write_report(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain, comparison = PretrainSummary.of(inputs["pretrain"]), gather_comparison(inputs)
    objective = pretrain.model.objective(pretrain.objective)
    examples = gather_examples(
        inputs["pretrain"],
        inputs.get("instances"),
        load_tokenizer(inputs["tokenizer"].folder),
        config.fill_in_examples,
        config.continuations,
        config.neighbours,
        config.seed,
    )
    board = judge_tasks(comparison) if comparison else None
    learnt = findings.describe_learning(pretrain, objective)
    verdict = board.sentence if board else ""
    verdicts = [verdict] if verdict else findings.describe_scores(comparison)
    tasks = comparison.tasks if comparison else ()
    wins = [findings.describe_rival(task) for task in tasks if task.rival_wins]
    losses = [findings.describe_rival(task) for task in tasks if len(tasks) == 1 and not wins]
    looks = comparison.looks if comparison else {}
    names = comparison.variants if comparison else ()
    searches = tuning.gather_searches(inputs, looks, {})
    selected = selections(*comparison.tasks) if comparison else []
    several = len(select_stage(inputs, "pretrain")) > 1
    registered, recipe = origin.list_registered(inputs), origin.recipe_text(context.recipe)
    trained = findings.describe_training(inputs)
    page = Page(
        kind="report",
        file=REPORT_PAGE,
        workflow=origin.workflow(inputs),
        headline=findings.headline(inputs, objective, comparison),
        lede=[*wins, *verdicts, *filter(None, losses)] or ([learnt] if learnt else []),
        standing=board.name if board and not wins else "",
        sections=[
            _write_result(inputs, pretrain, examples.baseline, comparison, board),
            write_comparison(comparison),
            errors.write_errors(inputs),
            table.write_table(inputs, comparison),
            budgets.write_budgets(comparison, were_swept=bool(selected)),
            budgets.write_mix(comparison),
            tuning.write_tuning(
                searches,
                gather_sweeps(inputs, looks) if comparison else (),
                names=names,
                lost=[row["lost"] for row in selected],
            ),
            write_loss(
                pretrain,
                examples.baseline,
                first=names[0] if several and names else "",
                from_weights=INITIAL in inputs["pretrain"].record["inputs"],
                chosen=any(each.summary.on_held_out for each in searches),
            ),
            *write_examples(
                examples,
                pretrain,
                inputs.get("instances"),
                TokenizerSummary.of(inputs["tokenizer"]).kind,
            ),
            origin.write_use(inputs, registered, f"{trained} {verdict}".strip()),
            write_speed(pretrain),
            origin.write_origin(inputs, recipe, registered, pretrain),
        ],
    )
    return write_page(page, config.title, inputs, recipe, output)


def _write_result(
    inputs: Mapping[str, Artifact],
    pretrain: PretrainSummary,
    baseline: Baseline | None,
    comparison: VariantComparison | None,
    board: BoardRow | None,
) -> Section:
    objective = pretrain.model.objective(pretrain.objective)
    tasks = comparison.tasks if comparison else ()
    fields = {
        "trained": findings.describe_training(inputs),
        "compared": findings.describe_comparison(comparison) if comparison else "",
        "comparison": comparison,
        "board": board,
        "objective": objective,
        "pretrain": pretrain,
        "final": pretrain.final,
        "run": pretrain.gradient,
        "baseline": baseline,
        "ln_vocabulary": math.log(pretrain.vocab_size),
        "learnt": findings.describe_learning(pretrain, objective),
        "luck": findings.describe_luck(len(tasks[0].evaluation.seeds)) if tasks else "",
        "pretrainings": count_pretrainings(comparison) if comparison else 1,
    }
    return Section("result", "Result", fields)
