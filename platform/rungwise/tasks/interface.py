"""One interface to the seven kinds of tasks: examples to items, logits to predictions to scores.

`encode` makes the model's inputs, `decode` turns its outputs into predictions, and `score` (from
scores.py) measures them. `outputs` are logits, one float array per item:

    classification  (C,)         C labels
    multilabel      (C,)
    regression      ()
    tagging         (words, C)   the words of the item
    span            (T, 2)       start and end logits of every token of the row
    choice          (options,)
    generation      (tokens,)    not logits, but the ids that were written
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from scipy.special import expit, softmax
from tokenizers import Tokenizer

from rungwise.tasks.kinds import answers, choices, generation, multilabel, sentences, spans, tagging
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.scoring.scores import score

__all__ = ["calibrate", "decode", "encode", "probabilities", "score"]


def encode(
    examples: Sequence[Any],
    info: TaskInfo,
    tokenizer: Tokenizer,
    frame: Frame,
    *,
    pairs: sentences.Pairs = "joined",
    windows: bool = False,
    stride: int = 64,
    max_question_tokens: int = 64,
    max_answer_tokens: int = 30,
) -> list[Item]:
    """Encode `examples`, in their order, as one or more items each.

    `pairs` gives pairs one row, two with the texts in either order, or a row for each text. With
    `windows` a long text gives several items, as the context of a question always does; `stride` is
    the distance in tokens between them. Raises DataError, naming the example, for a target that the
    task does not have.
    """
    match info.kind:
        case "classification" | "multilabel" | "regression":
            return sentences.encode(
                examples,
                info,
                tokenizer,
                frame,
                pairs=pairs,
                windows=windows,
                stride=stride,
            )
        case "tagging":
            return tagging.encode(examples, info, tokenizer, frame)
        case "span":
            return spans.encode(examples, tokenizer, frame, stride, max_question_tokens)
        case "choice":
            return choices.encode(examples, tokenizer, frame)
        case "generation":
            return generation.encode(examples, tokenizer, frame, max_answer_tokens)


def decode(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    examples: Sequence[Any],
    info: TaskInfo,
    calibration: Mapping[str, float],
    *,
    max_answer_tokens: int = 30,
    legal_tags: bool = False,
    tokenizer: Tokenizer | None = None,
) -> list[dict[str, Any]]:
    """Predict each example from the outputs of its items, as plain data:

    classification  {"label", "probability"}
    multilabel      {"labels", "probabilities"}
    regression      {"score"}
    tagging         {"tags"}
    span            {"text", "start", "end", "no_answer_score"}
    choice          {"option", "probabilities"}
    generation      {"text"}, decoded by `tokenizer`
    """
    match info.kind:
        case "classification" | "regression":
            return sentences.decode(outputs, items, info)
        case "multilabel":
            return multilabel.decode(outputs, items, info, calibration)
        case "tagging":
            return tagging.decode(outputs, items, len(examples), info, legal_tags)
        case "span":
            return answers.decode(outputs, items, examples, calibration, max_answer_tokens)
        case "choice":
            return choices.decode(outputs, items, len(examples))
        case "generation":
            assert tokenizer is not None, "tokens are spelled by their tokenizer"
            return generation.decode(outputs, tokenizer)


def probabilities(
    outputs: Sequence[NDArray[Any]], items: Sequence[Item], count: int, info: TaskInfo
) -> list[Any]:
    """Return the probabilities of all labels or options of each example; a list per word for tags.

    None for each example of a kind without them: regression, span and generation.
    """
    match info.kind:
        case "regression" | "span" | "generation":
            return [None] * count
        case "multilabel":
            return [expit(logits).tolist() for logits in sentences.pooled(outputs, items)]
        case "tagging":
            each = tagging.joined(outputs, items, count, info)
        case "classification" | "choice":
            each = sentences.pooled(outputs, items)
    return [softmax(logits, axis=-1).tolist() for logits in each]


def calibrate(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    examples: Sequence[Any],
    info: TaskInfo,
    *,
    max_answer_tokens: int = 30,
) -> dict[str, float]:
    """Calibrate `decode` on the validation split.

    Returns {"null_threshold": logits} for spans if some question has no answer,
    {"label_threshold": probability} for multilabel, else {}.
    """
    match info.kind:
        case "multilabel":
            return multilabel.calibrate(outputs, items, examples, info)
        case "span":
            return answers.calibrate(outputs, items, examples, info, max_answer_tokens)
        case _:
            return {}
