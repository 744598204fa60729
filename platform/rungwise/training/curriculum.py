"""Which instances each step reads: short ones first, and longer ones for the last part of a run.

Attention costs the square of the length, so the paper trains 90 % of the steps on 128 tokens and
the last 10 % on 512, to learn the positions beyond (Devlin et al. 2019, arXiv:1810.04805, appendix
A.2). Model, moments and the learning rate's way go on over the change. The phase of a step follows
from its number alone, so that a resumed run knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rungwise.models.objectives import Batch
from rungwise.training.feed import StepBatch


@dataclass(frozen=True)
class Phase:
    """Steps that read one set of instances."""

    first_step: int
    sequence_length: int
    step: Callable[[int], StepBatch]  # of a step of the run
    validation: Callable[[], list[Batch]]  # the same instances each time
    tokens_per_byte: float | None = None  # of held-out text that is predicted token by token
    flops_per_token: float | None = None
    lanes: range | None = None  # this worker's, where the model carries a state (lanes.py)


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    """The phase that `step` belongs to."""
    return next(phase for phase in reversed(phases) if phase.first_step <= max(step, 0))


def first_longer_step(steps: int, longer_share: float | None) -> int:
    """The first step of `steps` that reads longer instances; `steps` if none does."""
    return steps - round(steps * (longer_share or 0.0))
