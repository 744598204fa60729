"""What the numbers say, in words: verdicts, and the sentences on top of the page.

A verdict follows from an interval and from nothing else: an interval that holds 0 resolves nothing,
however large its middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rungwise.artifact import Artifact
from rungwise.evaluation.statistics import paired_difference
from rungwise.report.formats import compact, number, points_with_interval
from rungwise.report.terms import Terms

# A loss over some thousand masked tokens is known to about 0.03 nats; three times that is no noise.
_HARDLY_NATS = 0.1
_LABELS_NAMED = 4


@dataclass(frozen=True)
class Verdict:
    """Whether pretraining helped, with the sentence that says by how much."""

    name: Literal["helped", "did not help", "unresolved"]
    sentence: str


def verdict(difference: Mapping[str, float]) -> Verdict:
    """From the paired difference of test accuracy, with pretraining minus without."""
    measured = f"{points_with_interval(difference)} points of test accuracy"
    if difference["low"] > 0:
        return Verdict("helped", f"Pretraining helped: {measured}.")
    if difference["high"] < 0:
        return Verdict(
            "did not help", f"Pretraining did not help, it made the classifier worse: {measured}."
        )
    return Verdict(
        "unresolved",
        f"Unresolved: {measured}. The interval holds 0, so with {difference['count']} seeds this "
        "run cannot tell whether pretraining helps.",
    )


def relative_error_reduction(old: float, new: float) -> float | None:
    """(new - old) / (1 - old) of two accuracies: the part of the errors that is gone.

    None if there was no error to reduce.
    """
    return None if old >= 1 else (new - old) / (1 - old)


def use_of_context(loss: float, unigram_entropy: float) -> str:
    """How the loss stands to a guess that knows the frequencies of tokens and no context."""
    gain = unigram_entropy - loss
    if gain < 0:
        return f"{-gain:.2f} nats above what a guess without context costs"
    if gain < _HARDLY_NATS:
        return f"only {gain:.2f} nats below what a guess without context costs"
    return f"{gain:.2f} nats below what a guess without context costs"


def what_was_trained(inputs: Mapping[str, Artifact], terms: Terms) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain, corpus = inputs["pretrain"].summary, inputs["corpus"]
    model = pretrain["model"]
    return (
        f"A {terms.model} of {compact(pretrain['parameters'])} parameters "
        f"({model['num_layers']} layers, hidden size {model['hidden_size']}) was pretrained for "
        f"{number(pretrain['steps'])} steps on {compact(pretrain['tokens'])} tokens, "
        f"{pretrain['epochs']:.1f} passes over {what_text(corpus)}."
    )


def what_text(corpus: Artifact) -> str:
    """The training text in words: how much, and from where."""
    summary = corpus.summary
    labels = list(summary["labels"])
    kinds = {source["kind"] for source in corpus.record["config"]["sources"]}
    named = ", ".join(labels[:_LABELS_NAMED])
    more = f" and {len(labels) - _LABELS_NAMED} more" if len(labels) > _LABELS_NAMED else ""
    whence = "documentation of Python packages" if kinds == {"pydocs"} else "text"
    return (
        f"{number(summary['documents']['train'])} documents "
        f"({compact(summary['words']['train'])} words) of {whence}: {named}{more}"
    )


def what_was_compared(inputs: Mapping[str, Artifact]) -> str:
    """One sentence: the task, and what stands against what."""
    task = inputs["task"].summary
    evaluate = inputs["evaluate"].summary
    seeds = len(evaluate["seeds"])
    against = ", next to the same network started from random weights"
    return (
        f"It was then fine-tuned to tell which of {len(task['labels'])} sources a paragraph comes "
        f"from, given {number(task['examples']['train'])} labelled examples"
        f"{against if 'difference' in evaluate else ''}, with {seeds} seeds."
    )


def comparison(evaluate: Artifact) -> dict[str, Any] | None:
    """With pretraining minus without, for each metric; None unless both were evaluated."""
    summary = evaluate.summary
    if "difference" not in summary:
        return None
    systems = summary["systems"]
    old, new = (systems[name]["accuracy"]["mean"] for name in ("random", "pretrained"))
    scores = {
        name: [row["test"]["macro_f1"] for row in summary["rows"] if row["initialisation"] == name]
        for name in ("pretrained", "random")
    }
    macro_f1 = paired_difference(scores["pretrained"], scores["random"])
    return {
        "accuracy": summary["difference"],
        "macro_f1": {"mean": macro_f1.mean, "low": macro_f1.low, "high": macro_f1.high},
        "verdict": verdict(summary["difference"]),
        "error_reduction": relative_error_reduction(old, new),
        "old": old,
        "new": new,
    }


def headline(inputs: Mapping[str, Artifact], terms: Terms) -> str:
    """The line of the terminal: the verdict, or where there is none the loss."""
    if "evaluate" in inputs:
        found = comparison(inputs["evaluate"])
        if found is None:
            return inputs["evaluate"].summary["headline"]
        gap = found["accuracy"]
        return (
            f"pretraining: {found['verdict'].name}  {100 * gap['mean']:+.1f} points "
            f"[{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}], {gap['count']} seeds"
        )
    final = inputs["pretrain"].summary["final"]
    entropy = inputs["instances"].summary["unigram_entropy"]
    return f"validation {terms.key} {final[terms.loss_key]:.3f} (unigram {entropy:.2f})"
