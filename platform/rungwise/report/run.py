"""Report stage: one page about a run, from records and files of earlier stages; only the examples
of the model are computed here. And its sections about pretraining: losses, speed, examples."""

import math
from dataclasses import replace

from rungwise.core.errors import format_count, list_first
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation import examples
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.capabilities import BlankLogits, NextTokenLogits, WordVectors
from rungwise.report import comparison as sections
from rungwise.report import findings, formats, style
from rungwise.report.formats import number
from rungwise.report.page import READING, Page, Section, list_registered, write_page
from rungwise.report.stage import ReportConfig, ReportSummary
from rungwise.tokenizer import load_tokenizer, special_ids
from rungwise.training.initial import INITIAL
from rungwise.training.pretrained import load_model
from rungwise.training.summary import GradientRun, PretrainSummary

_MOST_STEPS = 12
_PARALLEL = {
    "ddp": "each with the whole model (DDP)",
    "fsdp": "each with a shard of the model (FSDP2)",
    "hybrid": "in groups that share one copy of the model (hybrid sharding)",
}


def write_report(
    config: ReportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    comparison, variants = findings.gather_comparison(inputs), findings.name_variants(inputs)
    looks = {variants.get(name, name): look for name, look in comparison.looks.items()}
    comparison = replace(findings.rename_variants(comparison, variants), looks=looks)
    objective = pretrain.model.objective(pretrain.objective)
    verdict, standing = findings.judge_tasks(comparison)
    learnt = findings.describe_learning(pretrain, objective)
    tasks, names = comparison.tasks, comparison.variants
    wins = [findings.describe_rival(task) for task in tasks if task.rival_wins]
    losses = [findings.describe_rival(task) for task in tasks if len(tasks) == 1 and not wins]
    verdicts = [verdict] if verdict else findings.describe_scores(comparison)
    guesses = findings.describe_guesses(pretrain, objective)
    searches = sections.gather_searches(inputs, looks, variants)
    luck = findings.describe_luck(len(tasks[0].evaluation.seeds)) if tasks else ""
    reading = {"comparison": comparison, "searches": searches, "luck": luck, "claims": ()}
    training = {
        "objective": objective,
        "pretrain": pretrain,
        "final": pretrain.final,
        "run": pretrain.gradient,
        "at_random": math.log(pretrain.vocab_size),
    }
    result = {
        "trained": findings.describe_training(inputs),
        "comparison": comparison,
        "judge": findings.judge,
        "learnt": learnt if objective.predicts_text else "",
    }
    loss = speed = None  # without steps
    if run := pretrain.gradient:
        trained = findings.select_stage(inputs, "pretrain")
        fields = {
            "by_frequency": _begins_at_frequencies(pretrain, run, inputs["pretrain"], objective),
            "first": names[0] if names and len(trained) > 1 else "",
            "from_weights": INITIAL in inputs["pretrain"].record["inputs"],
            "chosen": any(each.summary.on_held_out for each in searches),  # as the best of several
        }
        plots = {"loss": draw_loss(pretrain, run, objective)}
        csv = {"training": run.history, "validation": run.validation}
        loss = Section("loss", "Pretraining loss", training | fields, plots, csv)
        sentences = {"setup": _describe_setup(run), "mishaps": _describe_mishaps(run)}
        speed = Section("speed", "Speed", training | sentences)
    page = Page(
        kind="report",
        workflow="finetune" if tasks else "pretrain",
        lede=[*wins, *verdicts, *filter(None, losses)] or [*guesses, learnt],
        standing="" if wins else standing,
        sections=[
            Section("result", "Result", training | result),
            sections.write_comparison(comparison),
            sections.write_errors(inputs, variants),
            sections.write_table(inputs, comparison, variants),
            sections.write_budgets(comparison),
            sections.write_mix(comparison),
            sections.write_tuning(searches, sections.gather_sweeps(inputs, variants), names=names),
            loss,
            write_examples(config, inputs, pretrain, objective),
            speed,
            Section("reading", READING, reading) if tasks or searches else None,
        ],
        registered=findings.rename_variants(tuple(list_registered(inputs)), variants),
        tokens=pretrain.tokens,
    )
    return write_page(page, config.title, inputs, context.recipe, output)


def _begins_at_frequencies(
    pretrain: PretrainSummary, run: GradientRun, artifact: Artifact, objective: Objective
) -> bool:
    """Whether the first loss is that of frequencies, where an output bias may begin, and not that
    of a model to which all tokens are equally likely."""
    if artifact.record["config"]["pretrain"]["output_bias"] != "frequencies":
        return False
    first = run.validation[0][objective.tokens.loss_key]
    return abs(first - pretrain.unigram_loss) < abs(first - math.log(pretrain.vocab_size))


def draw_loss(pretrain: PretrainSummary, run: GradientRun, objective: Objective) -> bytes:
    """Training and validation loss against tokens, and the learning rate below; if the objective
    predicts text, with lines at ln V and the unigram loss."""
    tokens, key = objective.tokens, objective.tokens.loss_key
    figure = style.new_figure(style.WIDE, 5.2)
    axes, rates = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    title = f"Validation {tokens.name} loss: from {run.validation[0][key]:.2f} to "
    title += f"{pretrain.final[key]:.2f} nats"
    if objective.predicts_text:
        title += f"; by frequency alone {pretrain.unigram_loss:.2f}"
        for level, colour, label in (
            (math.log(pretrain.vocab_size), formats.PURPLE, "ln V: all tokens equally likely"),
            (pretrain.unigram_loss, formats.GREEN, "by frequency alone, without context"),
        ):
            label = f"{label} = {level:.2f}"
            axes.axhline(level, color=colour, linestyle=style.DASHED, linewidth=1.5, label=label)
    history, validation = (
        ([row["tokens"] / 1e6 for row in rows], [row[key] for row in rows])
        for rows in (run.history, run.validation)
    )
    label = "training (mean since the previous point)"
    axes.plot(*history, color=formats.SKY, linewidth=1.4, label=label)
    axes.plot(*validation, color=formats.BLUE, linewidth=1.8, marker="o", label="validation")
    style.dress(axes, title, y=f"{tokens.name} loss (nats)")
    axes.margins(x=0.02)
    learning_rates = [row["learning_rate"] for row in run.history]
    rates.plot(history[0], learning_rates, color=formats.ORANGE, linewidth=1.6)
    rates.set_ylim(0, 1.15 * max(learning_rates))
    style.dress(rates, x="tokens read (millions)", y="learning rate")
    style.add_legend_below(figure, [axes])
    return style.png(figure)


def _describe_setup(run: GradientRun) -> str:
    workers = run.attempts[-1].workers
    precision = "bfloat16 matrix products" if run.bfloat16 else "float32"
    if workers == 1:
        return f"One worker ({run.device}), {precision}."
    return f"{workers} workers ({run.device} each), {_PARALLEL[run.parallel]}, {precision}."


def _describe_mishaps(run: GradientRun) -> list[str]:
    """Sentences on skipped steps and starts again (even if there were none)."""
    names = list_first(map(number, run.skipped_steps), _MOST_STEPS)
    skipped = f"{len(run.skipped_steps)} (step {names})" if names else "none"
    sentences = [f"Steps skipped because their gradient was not finite: {skipped}."]
    sentences += [
        f"It was interrupted, and resumed from the checkpoint of step {number(start.step)} with "
        f"{format_count(start.workers, 'worker')}."
        for start in run.attempts[1:]
    ] or ["The run was never resumed from a checkpoint."]
    sentences += [
        f"The run continued {before.label}-{before.fingerprint} from step {number(before.step)}; "
        "both have the steps up to there in common."
        for before in run.prolonged
    ]
    if run.stopped_early:
        sentences.append(
            f"The run ended at step {number(run.steps)}, before the end of its schedule: a "
            "budget was used up, or the validation loss stopped falling."
        )
    return sentences


def write_examples(
    config: ReportConfig, inputs: Inputs, pretrain: PretrainSummary, objective: Objective
) -> Section | None:
    """The section of examples of the kind that the model's capabilities allow, drawn with the seed
    of `config`; None if there are none."""
    tokenizer = load_tokenizer(inputs["tokenizer"].folder)
    model = load_model(inputs["pretrain"], special_ids(tokenizer))
    texts, seed = examples.draw_texts(inputs["corpus"], config.seed), config.seed
    letters = {"minimum_letters": examples.MINIMUM_LETTERS}
    if isinstance(model, BlankLogits):
        gaps = examples.fill_gaps(model, tokenizer, texts, config.fill_in_examples, seed)
        fields = {"gaps": gaps, "pretrain": pretrain, "top": examples.TOP, **letters}
        return Section("blanks", "Fill in the blank", fields) if gaps else None
    if isinstance(model, NextTokenLogits) and not objective.masks:
        continued = examples.continue_beginnings(
            model, tokenizer, texts, config.continuations, seed
        )
        fields = {
            "continuations": continued,
            "temperature": examples.TEMPERATURE,
            "longest_prompt": examples.LONGEST_PROMPT,
            "most_new": examples.MOST_NEW,
        }
        return Section("continuations", "Continuations", fields) if continued else None
    if isinstance(model, WordVectors) and not objective.predicts_text:
        near = examples.draw_neighbours(model, tokenizer, texts, config.neighbours, seed)
        fields = {"neighbours": near, **letters}
        return Section("neighbours", "Nearest words", fields) if near else None
    return None
