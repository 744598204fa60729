"""The blocks `model` and `pretrain` of a recipe: a family, and how its weights are fitted. A new
kind of fitting is a config that answers for itself, named once in the union `PretrainConfig`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from rungwise.core.configuration.canonical import canonical_json, plain
from rungwise.core.configuration.config import Config, block_kind, union_members, validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import BlockError, ConfigError
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context, ContinuableRun, LazyFunction, StageType, Trunk
from rungwise.core.storage.folder import Folder
from rungwise.models import fitting
from rungwise.models.config import ModelConfig
from rungwise.models.family import Family
from rungwise.models.fitting import Fitting
from rungwise.models.losses.objectives import Objective
from rungwise.training.checkpoint import CheckpointFiles, CheckpointRules
from rungwise.training.config import FitConfig, GradientConfig, GradientFit
from rungwise.training.summary import PretrainSummary

BESIDE = "beside"  # the input of a network that learns the residual of counts
VERSION = 10  # of the stage's output, checkpoints included


def _kind(block: Any) -> str | None:
    """The tag of a `pretrain` block, `gradient` by default."""
    return block.get("kind", "gradient") if isinstance(block, dict) else getattr(block, "kind", "")


class CountsConfig(Fitting):
    """Fitting by counting the text once."""

    fits: ClassVar[type] = fitting.CountedFamily
    fitter: ClassVar = LazyFunction("rungwise.training.ray.from_tokens:pretrain_by_counts")
    reads_tokens: ClassVar[bool] = True

    kind: Literal["counts"] = "counts"
    # take the n-grams of an ARPA file (SRILM, kenlm), whose words are the tokenizer's tokens
    initial: str | None = None

    @property
    def imported(self) -> str | None:
        return self.initial

    @property
    def watched(self) -> set[str]:
        """The file is an input of the stage, known by its bytes."""
        return {"initial"}


class _Passes(Fitting):
    """Keys of fitting by passes, over text or over cells. A run is repeatable to the bit on
    processors of one kind."""

    reads_tokens: ClassVar[bool] = True

    minimum_count: int = Field(default=5, ge=1)  # tokens that occur less often get vectors of zeros
    seed: int = Field(default=0, ge=0)


class AsynchronousConfig(_Passes):
    """Training on one word after the other, with a linearly falling learning rate.

    `replicas` models each read a share of the text, on any machine, and are averaged after every
    round. The result is repeatable, but differs from that of one model that reads everything: a
    word in only one share moves by that share's part of a step. The replicas and their average must
    fit into memory.
    """

    fits: ClassVar[type] = fitting.ReadingFamily
    fitter: ClassVar = LazyFunction("rungwise.training.ray.from_tokens:pretrain_asynchronously")

    kind: Literal["asynchronous"] = "asynchronous"
    epochs: int = Field(default=5, ge=1)
    learning_rate: float = Field(default=0.025, gt=0)
    minimum_rate: float = Field(default=1e-4, gt=0)  # learning rate at the end
    replicas: int = Field(default=1, ge=1)
    # averages per epoch; a killed run resumes from the last
    rounds_per_epoch: int = Field(default=1, ge=1)

    def length_key(self, model: Family) -> str:
        return "epochs"

    def passes(self, model: Family) -> int:
        return self.epochs

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.minimum_rate > self.learning_rate:
            raise BlockError(
                f"minimum_rate {self.minimum_rate} is above learning_rate {self.learning_rate}, "
                "which would rise to it",
                {"minimum_rate": self.learning_rate},
            )
        return self


class CooccurrenceConfig(_Passes):
    """From counts of co-occurring words, in the memory of one machine: epochs of AdaGrad over them,
    or, where the family is calculated at once, neither epochs nor a learning rate."""

    fits: ClassVar[type] = fitting.CooccurrenceFamily
    fitter: ClassVar = LazyFunction("rungwise.training.ray.from_tokens:pretrain_by_cooccurrence")
    holds_out: ClassVar[bool] = False

    kind: Literal["cooccurrence"] = "cooccurrence"
    # a killed run counts again and resumes from the last epoch; null: 25
    epochs: int | None = Field(default=None, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)  # null: 0.05

    def length_key(self, model: Family) -> str | None:
        is_solved = isinstance(model, fitting.SolvedFamily | fitting.RefiningFamily)
        return None if is_solved else "epochs"

    def passes(self, model: Family) -> int:
        return (self.epochs or 25) if self.length_key(model) else 1

    def takes_weights(self, model: Family) -> bool:
        return isinstance(model, fitting.RefiningFamily)

    def check(self, model: Family, compute: ComputeConfig) -> None:
        for key in ("epochs", "learning_rate"):
            if self.length_key(model) is None and getattr(self, key) is not None:
                raise ConfigError(
                    f"pretrain.{key} is {getattr(self, key)}, but model.kind is {model.kind}, "
                    "which is calculated at once; leave it out",
                    {f"pretrain.{key}": None},
                )


class InterpolationConfig(Fitting):
    """Fitting of a gate between a model of counts and a network: both are trained before it, and
    the gate on documents that neither has read. A network that learns the residual of counts reads
    one half of the others, beside counts of the other half: counts of the text that it reads would
    have seen every token that they are asked for."""

    fits: ClassVar[type] = fitting.MixingFamily
    fitter: ClassVar = LazyFunction("rungwise.training.ray.from_tokens:pretrain_by_interpolation")
    reads_tokens: ClassVar[bool] = True
    revision: ClassVar[int] = 1  # the gate reads the entropy of the counts

    kind: Literal["interpolation"] = "interpolation"
    counts: CountsConfig = CountsConfig()
    network: GradientConfig  # how the network is trained; its seed is the one below
    # share of the training documents that are left to the gate
    set_aside: float = Field(default=0.05, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @property
    def watched(self) -> set[str]:
        """The counts are an input of the stage."""
        return {"counts"}

    def length_key(self, model: Family) -> str:
        return "network.steps"

    def parts(self, model: Family) -> Mapping[str, fitting.MixturePart]:
        assert isinstance(model, fitting.MixingFamily)
        counts = with_objective(self.counts, model.counts)
        network = with_objective(self.network, model.network)
        network, share = network.model_copy(update={"seed": self.seed}), 1 - self.set_aside
        parts = {"counts": fitting.MixturePart(model.counts, counts, 0, share)}
        if not model.residual:
            return parts | {"network": fitting.MixturePart(model.network, network, 0, share)}
        network = network.model_copy(update={"output_bias": "zeros"})
        return parts | {
            BESIDE: fitting.MixturePart(model.counts, counts, share / 2, share),
            "network": fitting.MixturePart(model.network, network, 0, share / 2, BESIDE),
        }


PretrainConfig = Annotated[
    Annotated[CountsConfig, Tag("counts")]
    | Annotated[AsynchronousConfig, Tag("asynchronous")]
    | Annotated[CooccurrenceConfig, Tag("cooccurrence")]
    | Annotated[GradientConfig, Tag("gradient")]
    | Annotated[InterpolationConfig, Tag("interpolation")],
    Discriminator(_kind),
]
_BLOCKS: list[type[Fitting]] = union_members(PretrainConfig)
KINDS = {str(block_kind(block)): block for block in _BLOCKS}

FittingT = TypeVar("FittingT", bound=Fitting)


class PretrainStageConfig(Config):
    """The two blocks of a recipe that decide a pretrained model, the objective filled in.

    Raises ConfigError where the family takes another kind of `pretrain`, or has no such objective.
    """

    model: ModelConfig
    pretrain: PretrainConfig

    @field_validator("pretrain", mode="before")
    @classmethod
    def _of_the_kind_it_takes(cls, pretrain: Any, info: ValidationInfo) -> Any:
        return refuse_other_kind(pretrain, info.data.get("model"))

    @field_validator("pretrain", mode="after")
    @classmethod
    def _names_its_objective(cls, pretrain: PretrainConfig, info: ValidationInfo) -> PretrainConfig:
        model = info.data.get("model")
        return pretrain if model is None else with_objective(pretrain, model)

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        return self.model.objective(self.pretrain.objective)


AnyFit = PretrainStageConfig | FitConfig[Any]


def refuse_other_kind(pretrain: Any, model: Family | None) -> Any:
    """Return `pretrain`, which may be unvalidated. Raises ConfigError if the family does not take
    its kind, before any of that kind's keys are reported."""
    kind = _kind(pretrain)
    if model is not None and kind in KINDS and kind != (takes := fitting_kind(model)):
        raise ConfigError(
            f"pretrain.kind is {kind}, but model.kind is {model.kind}, which is fitted by {takes}",
            {"pretrain.kind": takes},
        )
    return pretrain


def fitting_kind(model: Family) -> str:
    """Return the kind of `pretrain` that fits a family: gradient, if no other does."""
    own = (kind for kind, block in KINDS.items() if block.fits is not Family)
    return next((kind for kind in own if isinstance(model, KINDS[kind].fits)), "gradient")


def with_objective(pretrain: FittingT, model: Family) -> FittingT:
    """`pretrain` with the family's first objective if it names none. Raises ConfigError if the
    family lacks the one it names."""
    return pretrain.model_copy(update={"objective": model.objective(pretrain.objective).name})


def check_rows(config: AnyFit, kind: str, length: int | None, block: str = "instances") -> None:
    """Raise ConfigError if the model cannot read this kind and length, named `block`."""
    objective, longest = config.objective, config.model.max_length
    if kind not in objective.reads:
        others = [each.name for each in config.model.objectives if kind in each.reads]
        raise ConfigError(
            f"pretrain.objective is {objective.name} and model.kind {config.model.kind}, which "
            f"reads {block}.kind {' or '.join(objective.reads)}, but {block}.kind is {kind}",
            {"pretrain.objective": others[0]} if others else {f"{block}.kind": objective.reads[0]},
        )
    if longest is not None and length is not None and length > longest:
        raise ConfigError(
            f"model.max_position_embeddings is {longest}, but {block}.sequence_length is {length}",
            {"model.max_position_embeddings": length},
        )


def require_gradient(config: AnyFit, purpose: str) -> GradientFit:
    """The config of a fit by gradient, for `purpose`. Raises ConfigError for another kind."""
    return FitConfig(config.model, config.pretrain.require_gradient(purpose))


def read_training_config(pretrain: Artifact) -> PretrainStageConfig:
    """The two blocks of the recipe that the artifact was trained with."""
    return validate(PretrainStageConfig, pretrain.record["config"])


def find_trunk(config: AnyFit, inputs: Mapping[str, str]) -> Trunk | None:
    """The settings and the number of the steps shared with longer runs: without what comes after
    them; None if none are. Inputs are fingerprints."""
    if not config.pretrain.shared_steps:
        return None
    blocks = plain(require_gradient(config, "steps").identity())
    for key in ("steps", "longer_share"):
        del blocks["pretrain"][key]
    schedule = blocks["pretrain"]["optimizer"]["schedule"]
    for key in ("decay_fraction", "final_fraction"):
        del schedule[key]
    before = {name: value for name, value in inputs.items() if name != "longer_instances"}
    return canonical_json({"config": blocks, "inputs": before}), config.pretrain.shared_steps


def find_earlier(
    config: AnyFit, inputs: Mapping[str, str], finished: Sequence[Artifact]
) -> ContinuableRun | None:
    """The finished run with a checkpoint of the most shared steps; inputs are fingerprints."""
    if (trunk := find_trunk(config, inputs)) is None:
        return None
    model = plain(config.model)
    earlier: dict[int, ContinuableRun] = {}
    for artifact in finished:
        facts = artifact.record["facts"]
        if facts["version"] != VERSION or facts["config"]["model"] != model:
            continue
        before = find_trunk(read_training_config(artifact), facts["inputs"])
        if before is None or before[0] != trunk[0]:
            continue
        # Not verified: `Checkpoints.resume` skips a damaged one for the one before.
        folder = Folder(artifact.folder.uri) / "checkpoints"
        files = CheckpointFiles(CheckpointRules(folder, 1))
        if steps := [step for step in files.steps() if step <= min(trunk[1], before[1])]:
            earlier[steps[-1]] = ContinuableRun(artifact, steps[-1])
    return earlier[max(earlier)] if earlier else None


def pretrain_model(
    config: PretrainStageConfig, inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Fit the model and write its files. Raises UserError if instances do not fit, or it fails."""
    fit = FitConfig(config.model, config.pretrain)
    return config.pretrain.fitter(fit, inputs, output, context)


PRETRAIN = StageType(
    "pretrain",
    VERSION,
    pretrain_model,
    PretrainSummary,
    identity=lambda config: FitConfig(config.model, config.pretrain).identity(),
    goes_on_from=find_earlier,
    trunk=find_trunk,
    resumes=True,
    trains_alone=lambda config, compute: config.pretrain.trains_alone(compute),
)
