"""Report stage: one page about a run, from records and files of earlier stages; only the examples
of the model are computed here."""

import math

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.examples import gather_examples
from rungwise.report import findings, origin, tuning
from rungwise.report.comparison import (
    selections,
    write_budgets,
    write_comparison,
    write_mix,
    write_table,
)
from rungwise.report.errors import write_errors
from rungwise.report.page import Page, Section, write_page
from rungwise.report.pretraining import write_examples, write_loss, write_speed
from rungwise.report.stage import REPORT_PAGE, ReportConfig, ReportSummary
from rungwise.report.variants import gather_comparison, select_stage
from rungwise.tokenizer import load_tokenizer
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
    verdict, standing = findings.judge_tasks(comparison)
    learnt = findings.describe_learning(pretrain, objective)
    tasks = comparison.tasks if comparison else ()
    wins = [findings.describe_rival(task) for task in tasks if task.rival_wins]
    losses = [findings.describe_rival(task) for task in tasks if len(tasks) == 1 and not wins]
    verdicts = [verdict] if verdict else findings.describe_scores(comparison)
    looks = comparison.looks if comparison else {}
    names = comparison.variants if comparison else ()
    searches = tuning.gather_searches(inputs, looks, {})
    selected = selections(*tasks)
    registered, recipe = origin.list_registered(inputs), origin.recipe_text(context.recipe)
    workflow = "finetune" if comparison else "pretrain"
    several = len(select_stage(inputs, "pretrain")) > 1
    result = {
        "trained": findings.describe_training(inputs),
        "comparison": comparison,
        "judge": findings.judge,
        "objective": objective,
        "pretrain": pretrain,
        "final": pretrain.final,
        "run": pretrain.gradient,
        "baseline": examples.baseline,
        "ln_vocabulary": math.log(pretrain.vocab_size),
        "learnt": learnt if objective.predicts_text else "",
        "luck": findings.describe_luck(len(tasks[0].evaluation.seeds)) if tasks else "",
    }
    page = Page(
        kind="report",
        file=REPORT_PAGE,
        workflow=workflow,
        lede=[*wins, *verdicts, *filter(None, losses)] or [learnt],
        standing="" if wins else standing,
        sections=[
            Section("result", "Result", result),
            write_comparison(comparison),
            write_errors(inputs),
            write_table(inputs, comparison, {}),
            write_budgets(comparison),
            write_mix(comparison),
            tuning.write_tuning(
                searches,
                tuning.gather_sweeps(inputs),
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
            *write_examples(examples, pretrain, inputs.get("instances")),
            write_speed(pretrain),
            origin.write_origin(inputs, recipe, workflow, registered, pretrain),
        ],
    )
    return write_page(page, config.title, inputs, recipe, output)
