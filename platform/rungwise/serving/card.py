"""The card of a registered model in Markdown: intended use, scores, training text."""

import html
import re
import shlex
from collections.abc import Mapping, Sequence

from rungwise.core.configuration.secrecy import redact
from rungwise.core.stages.artifact import Artifact, Inputs, chain
from rungwise.corpus.summary import CORPORA, CORPUS, CorpusSummary, describe_sources
from rungwise.evaluation.comparison.errors import run_sums
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import combine, leave_one_out
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo, TaskSummary
from rungwise.tasks.scoring.metrics import metric_range
from rungwise.training.summary import PretrainSummary

_MOST_LETTERS = 5000  # of a description in MLflow's tables; PostgreSQL refuses more
NAME = "card.md"


Licences = Mapping[str, Sequence[str | None]]  # of each corpus's sources, by its fingerprint


def write_task_card(name: str, inputs: Inputs, licences: Licences) -> str:
    """The card of the model that an evaluation kept. Inputs: evaluate, its task, and the pretrain
    artifact that the model started from. 95 % intervals are over test examples for this model and
    for rivals, over seeds for a variant."""
    evaluation, task = EvaluateSummary.of(inputs["evaluate"]), TaskSummary.of(inputs["task"])
    model, metric, info = evaluation.chosen, evaluation.metric, task.info
    kind = task_kind(info)
    runs = run_sums(inputs["evaluate"], inputs["task"])
    sums = runs[model.variant, model.seed][None]  # (1, N, k), per test example
    error = leave_one_out(sums, lambda totals: kind.value(totals)[:, 0])
    value = float(kind.value(sums.sum(axis=1))[0])
    estimate = combine(value, [], [error], sums.shape[1]).estimate(*metric_range(metric))
    scores = {f"**this model** ({model.variant}, seed {model.seed})": estimate}
    for title, variant in evaluation.variants.items():
        origin = ", from random weights" if variant.pretraining is None else ""
        scores[f"{title}{origin}"] = variant.estimates[metric]
    for rival in evaluation.rivals.values():
        scores[f"{rival.name}, without pretraining"] = rival.estimate
    trivial = {f"{rule} (trivial baseline)": value for rule, value in evaluation.trivial().items()}
    examples = task.examples
    one = kind.positive if metric == "f1" else ""
    positive = f"; f1 is that of {escape(one)}" if one else ""
    labels = f" ({', '.join(map(escape, info.labels))}{positive})" if info.labels else ""
    lines = [
        f"Task {evaluation.task}: {kind.goal}{labels}. Fine-tuned on {examples.train:,} examples, "
        f"selected on {examples.validation:,} validation examples. "
        "Intended use: text like that of the task; nothing was measured on other text.",
        "",
        f"| {metric}, {examples.test:,} test examples | score | 95 % interval |",
        "|---|---|---|",
        *(
            f"| {key} | {each.mean:.4f} | {each.low:.4f} to {each.high:.4f} |"
            for key, each in scores.items()
        ),
        *(f"| {key} | {value:.4f} | |" for key, value in trivial.items()),
    ]
    return _join_card(name, lines, inputs, licences)


def write_pretrain_card(name: str, inputs: Inputs, licences: Licences) -> str:
    """The card of a pretrained model. Inputs: pretrain, and measure if the model was measured."""
    summary = PretrainSummary.of(inputs["pretrain"])
    objective = summary.model.objective(summary.objective)
    lines = [
        f"{summary.model.page_name(objective)} ({summary.model.describe()}), "
        f"{summary.parameters:,} parameters, pretrained with the objective {summary.objective} on "
        f"{summary.tokens:,} tokens. Intended use: text like that of its corpora, directly or for "
        "fine-tuning; nothing was measured on other text.",
        "",
        "| held-out text | value |",
        "|---|---|",
        *(f"| {key} | {value:,.4g} |" for key, value in summary.final.items()),
        f"| loss of guessing by frequency (nats per token) | {summary.unigram_loss:.4g} |",
    ]
    return _join_card(name, lines, inputs, licences)


def _join_card(name: str, lines: list[str], inputs: Inputs, licences: Licences) -> str:
    """Join `lines`, the measurements and sources of its pretraining, and how to rebuild it."""
    if measure := inputs.get("measure"):
        lines += ["", "| pretrained model | value | 95 % interval | items |", "|---|---|---|---|"]
        for each in MeasureSummary.of(measure).scores:
            if each.group is None:
                what = " ".join(filter(None, (each.suite, each.part, each.metric)))
                interval = f"{each.estimate.low:.4g} to {each.estimate.high:.4g}"
                lines.append(f"| {what} | {each.value:.4g} | {interval} | {each.count:,} |")
    model = inputs.get("evaluate", inputs["pretrain"])
    sources = list_sources(inputs["pretrain"], licences)
    items = [f"- {escape(redact(line))}; licence: {escape(licence)}" for line, licence in sources]
    command = redact(f"rungwise rebuild {shlex.quote(model.folder.uri)} --into FOLDER")
    advice = f"Rebuild it and compare byte by byte: `{command}`"
    text = [f"# {escape(name)}", "", *lines, "", "Pretrained on", "", *items, "", advice, ""]
    return "\n".join(text)


def recorded_licences(pretrain: Artifact) -> Licences:
    """The licences of the texts as the recipes had them that built the corpora of `pretrain`."""
    licences: dict[str, list[str | None]] = {}
    for corpus in (each for each in chain(pretrain) if each.stage == CORPUS.name):
        block = (corpus.record.get("recipe") or {}).get("corpus") or {}
        licences[corpus.fingerprint] = [each.get("licence") for each in block.get("sources", ())]
    return licences


def list_sources(pretrain: Artifact, licences: Licences) -> list[tuple[str, str]]:
    """A line and a licence for each source of each corpus that the weights were trained on."""
    sources = []
    for corpus in (each for each in chain(pretrain) if each.stage in CORPORA):
        amount = CorpusSummary.of(corpus).amount()
        lines = describe_sources(corpus)
        names = licences.get(corpus.fingerprint) or [None] * len(lines)
        for line, licence in zip(lines, names, strict=True):
            place = f"{line} ({amount}, corpus {corpus.fingerprint})"
            sources.append((place, licence or "not stated"))
    return sources


def link_page(experiment_id: str, run_id: str, file: str) -> str:
    """A link, on any page of MLflow's UI, to a file among the artifacts of a run."""
    path = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{file}"
    return f"[{file}]({path}?workflowType=machine_learning)"


def fit_description(before: str, card: str, after: str) -> str:
    """`before`, as many lines of the card as MLflow's description has room for, and `after`."""
    room = _MOST_LETTERS - len(before) - len(after)
    if len(card) > room:
        rest = f"\n\nThe rest is in {NAME}, beside the model.\n"
        card = card[: room - len(rest)].rpartition("\n")[0] + rest
    return before + card + after


def list_uses(model: str, root: str, info: TaskInfo) -> str:
    """The commands that use a registered model of the registry of `root`."""
    kind, content = task_kind(info), "one text per line"
    if not kind.is_one_text:
        content = f"a table or JSON Lines with {', '.join(kind.columns)}"
    arguments, server = shlex.join([model, "--root", root]), serve_command(model)
    uses = [
        f"- predictions, {content}: `rungwise predict {arguments} --input FILE`",
        f"- over HTTP, with the registry in MLFLOW_TRACKING_URI: `{server}`",
        f"- provenance: `rungwise why {arguments}`",
    ]
    return "\n".join(uses)


def serve_command(model: str) -> str:
    """MLflow's command that answers with a registered model over HTTP."""
    return f"mlflow models serve -m {shlex.quote(model)} --env-manager local --port 5001"


def escape(text: str) -> str:
    """Text as it is, in Markdown and HTML: names of labels and files come from anywhere."""
    escaped = re.sub(r"[\\`*\[\]|~]", r"\\\g<0>", html.escape(text, quote=False))
    return " ".join(escaped.split())
