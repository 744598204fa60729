"""Promotion of a registered version to an alias: the checks before it, and the way back.

A version gets the alias if the artifacts behind it are unchanged, the served files are those that
were evaluated or pretrained and give the same answers, it is better than guessing, rivals without
pretraining and random weights as far as they were compared, and it is not worse than the holder on
the same test examples or held-out documents: the 95 % interval of the difference must reach 0 or
above. A tag of the version names the previous holder.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rungwise.core.errors import DataError, UserError
from rungwise.core.stages.artifact import Artifact, chain, find_input, list_artifacts
from rungwise.core.stages.context import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import Estimate, paired_bootstrap
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.items import Items, contrast
from rungwise.evaluation.suites.perplexity import PerplexitySuite
from rungwise.finetune import DESCRIPTION
from rungwise.serving.card import NAME as CARD
from rungwise.serving.predictor import FILES, Predictor, load_predictor, require_artifact
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary, Text, read_examples
from rungwise.tokenizer import FILE as TOKENIZER
from rungwise.training.initial import find_tokens
from rungwise.training.pretrained import find_tokenizer
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL

_ITEMS = 64  # test examples for the served model; held-out documents for both
_TOLERANCE = 1e-4  # of predicted numbers, computed in other batches than before


def find_faults(model: Artifact, served: Folder) -> list[str]:
    """Reasons against a version whose files are in `served`, one line each; `model` is the
    evaluation or pretraining that it comes from."""
    faults = [fault for artifact in chain(model) for fault in _check(artifact.verify)]
    faults += find_changed_copies(model, served)
    summary = EvaluateSummary if model.stage == "evaluate" else PretrainSummary
    if not faults and (caution := summary.of(model).caution):
        return [caution]
    return faults or _find_changed_answers(model, served)


def find_changed_copies(model: Artifact, served: Folder) -> list[str]:
    """Where the registry's copy in `served` differs from `model`, one line each."""
    names = dict.fromkeys(FILES, model)
    if model.stage == "pretrain":
        names = {MODEL: model, TOKENIZER: find_tokenizer(model)}
    changes = [
        f"the registry's {served.path(name)} is not that of {artifact.folder.uri}"
        for name, artifact in names.items()
        if served.sha256(name) != artifact.record["files"][name]["sha256"]
    ]
    cards = _list_card_digests(model)
    if cards and (not served.exists(CARD) or served.sha256(CARD) not in cards):
        changes.append(f"the registry's {served.path(CARD)} is not that of the register stage")
    return changes or _check(lambda: require_artifact(served).verify())


def _list_card_digests(model: Artifact) -> list[str]:
    """The digests of the cards that were registered with `model`; none if those stages are gone."""
    root = Folder.at(model.folder.uri.rsplit("/", 2)[0])
    return [
        each.record["files"][CARD]["sha256"]
        for each in list_artifacts(root, "register")
        if each.record["inputs"].get(model.stage, {}).get("fingerprint") == model.fingerprint
    ]


def _check(verify: Callable[[], None]) -> list[str]:
    try:
        verify()
    except DataError as error:
        return [str(error)]
    return []


def _find_changed_answers(model: Artifact, served: Folder) -> list[str]:
    if model.stage == "pretrain":
        predictor = load_predictor(served)
        texts, before = json.loads(served.read_bytes(DESCRIPTION))["answered"]
        examples = [Text(repr(text), text) for text in texts]
        answers = predictor(examples)
    else:
        predictor = Predictor.load(served, quiet=True)
        name = task_kind(predictor.info).answer
        examples = read_examples(find_input(model, "task"), "test")[:_ITEMS]
        answers = [each[name] for each in predictor(examples)]
        before = [row["prediction"] for row in errors.select_predictions(model)]
    return [
        f"{example.where}: the served model says {now!r}, the artifact {once!r}"
        for example, now, once in zip(examples, answers, before, strict=False)
        if not _is_same(now, once)
    ][:1]


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return all(_is_same(value, before[name]) for name, value in now.items())
    if np.size(now) and np.asarray(now).dtype.kind == "f":
        return np.allclose(now, before, rtol=_TOLERANCE, atol=_TOLERANCE)
    return now == before


def compare_models(first: Artifact, second: Artifact) -> Estimate | None:
    """How much better the first model is than the second: evaluations by their metric on the same
    test examples, pretrainings in bits per byte on the same held-out documents; None if a
    pretraining gives texts no probability.

    Raises DataError if their tasks or corpora differ, or only one has pseudo-likelihoods.
    """
    both = (first, second)
    if first.stage == "evaluate":
        task, _ = _check_common("task", [find_input(each, "task") for each in both])
        info = TaskSummary.of(task).info
        sums = [errors.sum_metric(each, task) for each in both]
        gain = paired_bootstrap(*sums, value=task_kind(info).value, seed=0)
        return Estimate(gain.difference, gain.low, gain.high, sums[0].shape[1])
    _check_common("corpus", [find_input(find_tokens(each), "corpus") for each in both])
    bits = [_measure_bits(each) for each in both]
    if any(each is None for each in bits):
        return None
    first_bits, second_bits = (each for each in bits if each is not None)
    if first_bits.part != second_bits.part:
        raise DataError(
            "cannot compare: one of the two versions has pseudo-likelihoods, the other likelihoods"
        )
    return contrast([(1.0, [second_bits]), (-1.0, [first_bits])]).estimate()


def _check_common(what: str, inputs: list[Artifact]) -> list[Artifact]:
    if inputs[0].digest != inputs[1].digest:
        raise DataError(
            f"the holder answered the {what} {inputs[1].fingerprint}, this version "
            f"{inputs[0].fingerprint}: no example is known to be common; evaluate both on one"
        )
    return inputs


def _measure_bits(pretrain: Artifact) -> Items | None:
    """Its bits per byte of held-out documents; None if it gives texts no probability."""
    tokens = find_tokens(pretrain)
    tokenizer, corpus = (find_input(tokens, name) for name in ("tokenizer", "corpus"))
    rung = Rung(pretrain, tokens, tokenizer, corpus, SilentReporter())
    suite = PerplexitySuite(documents=_ITEMS)
    if not suite.serves(rung):
        return None
    return next(each for each in suite.measure(rung, "").items if each.metric == "bits_per_byte")


def find_holder(client: Any, name: str, alias: str) -> str | None:
    """The version that has the alias, None if there is none."""
    aliases: Mapping[str, Any] = client.get_registered_model(name).aliases
    return None if (number := aliases.get(alias)) is None else str(number)


def set_alias(client: Any, name: str, alias: str, number: str) -> None:
    """Set the alias of a version, and note which one had it."""
    before = find_holder(client, name, alias)
    if before not in (None, number):
        client.set_model_version_tag(name, number, _previous_tag(alias), before)
    client.set_registered_model_alias(name, alias, number)


def restore_alias(client: Any, name: str, alias: str) -> str:
    """Move the alias back to its previous holder, and return that version. Raises UserError if
    there is none."""
    now = find_holder(client, name, alias)
    tags = {} if now is None else client.get_model_version(name, now).tags
    if (before := tags.get(_previous_tag(alias))) is None:
        raise UserError(
            f"{name}: no version had the alias {alias} before {now}; nothing is changed"
        )
    client.set_registered_model_alias(name, alias, before)
    return before


def _previous_tag(alias: str) -> str:
    return f"rungwise.before.{alias}"
