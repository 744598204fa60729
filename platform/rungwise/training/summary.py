"""The summary of a pretraining: what every kind of fitting reports, and what only fitting by
gradient has, such as curves."""

from rungwise.core.stages.artifact import Summary, SummaryPart
from rungwise.models.config import ModelConfig
from rungwise.models.losses.objectives import Origin

_NOTHING_LEARNT_NATS = 0.05
Row = dict[str, int | float]  # of a curve: step, tokens, and metrics by name


class BeganWith(SummaryPart):
    """The finished run whose weights this one started from (initial.py)."""

    fingerprint: str
    label: str
    objective: str
    fresh: tuple[str, ...]
    carried: tuple[str, ...]


class Attempt(SummaryPart):
    """A start of the workers: at which step, and how many."""

    step: int
    workers: int


class Prolonged(SummaryPart):
    """The finished run from whose checkpoint this one continued, and its step (stage.py)."""

    fingerprint: str
    label: str
    step: int


class ReadLength(SummaryPart):
    """From which step on instances of this length are read."""

    from_step: int
    sequence_length: int


class GradientRun(SummaryPart):
    """Facts that only a fit by gradient has. `data` is the hash of all instances read so far, at
    logged steps. `throughput` holds rates over all attempts, without start-up and validation."""

    steps: int
    history: tuple[Row, ...]
    validation: tuple[Row, ...]
    timings: tuple[Row, ...]
    data: tuple[tuple[int, str], ...]
    data_hash: str
    skipped_steps: tuple[int, ...]
    prolonged: tuple[Prolonged, ...] = ()
    attempts: tuple[Attempt, ...]
    stopped_early: bool
    device: str
    bfloat16: bool
    parallel: str
    lengths: tuple[ReadLength, ...]
    flops_per_token: float
    flops_rule: str
    throughput: dict[str, int | float]


class PretrainSummary(Summary):
    """A pretrained model. `final` are the metrics of the last validation, `unigram_loss` is that
    of the tokens (tokenizer/token_stage.py), `seconds` is the duration of the fit itself, counting
    included, over all attempts up to what each had saved."""

    fitting: str  # the kind of `pretrain`
    model: ModelConfig
    objective: str
    parameters: int
    vocab_size: int
    tokens: int
    epochs: float
    unigram_loss: float
    final: dict[str, int | float]
    seconds: float
    began_with: BeganWith | None = None
    gradient: GradientRun | None = None

    @property
    def origin(self) -> Origin:
        """The model's place in history."""
        return self.model.origin(self.model.objective(self.objective))

    @property
    def caution(self) -> str:
        """A validation loss, in nats, that is no better than guessing by token frequencies."""
        objective = self.model.objective(self.objective)
        if not objective.predicts_text:
            return ""
        loss = self.final[objective.tokens.loss_key]
        if loss <= self.unigram_loss - _NOTHING_LEARNT_NATS:
            return ""
        guess = (
            f"the validation loss {loss:.2f} is that of guessing by how often each token occurs "
            f"({self.unigram_loss:.2f})"
        )
        if self.gradient is None:
            return guess
        return f"nothing is learnt yet: {guess}; raise pretrain.steps or the learning rate"

    @property
    def flops(self) -> float | None:
        """The operations of the whole fit by the counting rule; None if they are not counted."""
        return None if self.gradient is None else self.gradient.flops_per_token * self.tokens
