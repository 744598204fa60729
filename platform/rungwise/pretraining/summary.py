"""The summary of a pretraining: what every way of fitting tells, and what only steps by gradient
have, such as curves."""

from __future__ import annotations

from typing import Literal

from rungwise.core.summary import Part, Summary
from rungwise.models.config import ModelConfig

Row = dict[str, int | float]  # of a curve: step, tokens, and metrics by name


class BeganWith(Part):
    """The finished run whose weights this one began with (initial.py)."""

    fingerprint: str
    label: str
    objective: str
    fresh: tuple[str, ...]
    carried: tuple[str, ...]


class Attempt(Part):
    """A start of the workers: from which step, and on how many."""

    step: int
    workers: int


class Prolonged(Part):
    """The finished run with whose state a run began, and the step of that (prolonging.py)."""

    fingerprint: str
    label: str
    step: int


class ReadLength(Part):
    """From which step on instances of this many tokens are read."""

    from_step: int
    sequence_length: int


class SourceRead(Part):
    """How much was read of one source, and how often that is."""

    source: str
    instances: int
    tokens: int
    epochs: float


class GradientRun(Part):
    """Facts that only a fit by gradient has.

    `data` is the hash of all instances read up to a step, at logged steps. `throughput` holds rates
    over all attempts, without start-up and validation.
    """

    steps: int
    history: tuple[Row, ...]
    validation: tuple[Row, ...]
    timings: tuple[Row, ...]
    data: tuple[tuple[int, str], ...]
    data_hash: str
    skipped_steps: tuple[int, ...]
    spikes: tuple[int, ...]
    outlier_steps: tuple[int, ...] = ()
    prolonged: tuple[Prolonged, ...] = ()
    attempts: tuple[Attempt, ...]
    stopped_early: bool
    device: str
    bfloat16: bool
    parallel: str
    lengths: tuple[ReadLength, ...]
    sources: tuple[SourceRead, ...]
    flops_per_token: float
    flops_rule: str
    throughput: dict[str, int | float]

    @property
    def length_changes(self) -> tuple[ReadLength, ...]:
        """Where the sequence length changed; none if it had one value throughout."""
        return self.lengths[1:]


class PretrainSummary(Summary):
    """A pretrained model. `final` are the metrics of the last validation, `unigram_entropy` is that
    of the held-out tokens in nats, `seconds` are those of the fit itself."""

    fitting: Literal["gradient", "counts", "asynchronous", "cooccurrence"]
    model: ModelConfig
    objective: str
    parameters: int
    vocab_size: int
    tokens: int
    epochs: float
    unigram_entropy: float
    final: dict[str, int | float]
    seconds: float
    began_with: BeganWith | None = None
    gradient: GradientRun | None = None

    @property
    def flops(self) -> float | None:
        """The operations of the whole fit by the counting rule; None where it counts none."""
        return None if self.gradient is None else self.gradient.flops_per_token * self.tokens
