"""Settings for a text and a time: `Family.suggest` returns keys of the blocks `model` and
`pretrain` with dots, of which a recipe may change any.

The papers' settings are for billions of words. A small text is read more often, in more and smaller
steps, and a rare pair of words counts for more. The rules are rough ones of benchmarks/tuning.py
(docs/results/tuning.md), which also says at which sizes they were tried.
"""

from typing import Any, NamedTuple

LITTLE = 10_000_000  # tokens of a text or a run that are few
_OPERATIONS = 4e10  # of a model, a second of a core with bfloat16
_LEAST_OPERATIONS = (
    3e6  # a token: a model of fewer, with classes of words, spends its time elsewhere
)
_LEAST_STEPS = 300
_ROWS_OF_MORE = 32  # at the least, of a longer run
ROW, MASKED = 64, 0.3  # tokens of a row, and the share of them that is masked


class Size(NamedTuple):
    """The tokens to train on, those of the vocabulary, the seconds on so many cores, and the
    documents, if known."""

    tokens: int
    vocabulary: int
    seconds: float
    workers: int = 1
    documents: int | None = None


class Steps(NamedTuple):
    """Steps of Muon that suit a family on a little text."""

    rate: float
    rows: int = 8  # of a step
    # over a text: more than four teach little where every token is predicted (Muennighoff et al.
    # 2023, arXiv:2305.16264), and on one short book make the held-out loss rise
    passes: int = 4


def suggest_steps(size: Size, operations: float, steps: Steps) -> dict[str, Any]:
    """Suggest steps for a model of so many operations a token: as many as the seconds are enough
    for, and as its passes over the text."""
    affordable = size.seconds * size.workers * _OPERATIONS / max(operations, _LEAST_OPERATIONS)
    tokens = min(affordable, steps.passes * size.tokens)
    rows = steps.rows if tokens < LITTLE else max(steps.rows, _ROWS_OF_MORE)
    number = round(tokens / (rows * ROW) / 100) * 100
    return {
        "pretrain.steps": max(_LEAST_STEPS, number),
        "pretrain.global_batch_size": rows,
        "pretrain.optimizer.learning_rate": steps.rate,
    }


def suggest_passes(size: Size, a_second: float, most: float) -> int:
    """The passes over the text that the seconds are enough for at so many tokens each on a core, at
    least 1 and at most `most`."""
    return max(1, round(min(most, size.seconds * size.workers * a_second / max(1, size.tokens))))
