"""The interface of a model family: a config with the sizes, derived from `Family`, and the modules
it builds, in one file. The platform uses families only through it.

`Family.suggest` returns rough rules of benchmarks/tuning.py (docs/results/tuning.md).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.core.configuration.config import Config
from rungwise.core.errors import BlockError, ConfigError, format_count
from rungwise.core.tokens import SpecialIds
from rungwise.models.counterpart import Counterpart
from rungwise.models.device import shapes_only
from rungwise.models.losses.objectives import Objective, Origin, member_names, mix
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.trained.language_models import CarryingModel
from rungwise.models.transformer.block import Activation, Layer, Norm
from rungwise.models.transformer.body import Body, OnBody, TokenOutput

LITTLE = 10_000_000  # tokens of a text or a run that are few
_OPERATIONS = 4e10  # of a model, a second of a core with bfloat16
# of a token: a model of fewer, with classes of words, spends its time elsewhere
_LEAST_OPERATIONS = 3e6
_LEAST_STEPS = 300
_ROWS_OF_MORE = 32  # at the least, of a longer run
ROW, MASKED = 64, 0.3  # tokens of a row, and the share of them that is masked


class Size(NamedTuple):
    """The text to train on, and the seconds of so many workers to train in."""

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
    """Suggest as many steps as the seconds allow at so many operations a token, and the passes."""
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
    """Return the passes for which the seconds are enough at so many tokens a second on a core."""
    return max(1, round(min(most, size.seconds * size.workers * a_second / max(1, size.tokens))))


class Family(Config):
    """A kind of model with its sizes; each subclass has a literal `kind` with its default. What a
    family leaves out raises ConfigError naming `model.kind`."""

    kind: Any
    year: ClassVar[int]  # of the paper, the place of the rung in history
    paper: ClassVar[str]  # `Devlin et al.`
    idea: ClassVar[str] = ""  # in plain words, for readers who do not know the field
    page: ClassVar[str]  # its name on the page, unless `page_name` makes one
    objectives: ClassVar[tuple[Objective, ...]]  # the first is the default
    suffixes: ClassVar[tuple[str, ...]] = ()  # of the files of other programs that it reads
    rates_texts: ClassVar[bool] = True  # whether a trained one gives the probability of a text
    mixes: ClassVar[bool] = False  # whether steps may take turns to train on several of them

    def origin(self, objective: Objective) -> Origin:
        return objective.origin or Origin(self.year, self.paper, self.idea)

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        """Return what it is in transformers; the first that fits a model is written."""
        return ()

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest row it reads; None if unbounded."""
        return None

    @property
    def compiles(self) -> bool:
        """Whether torch.compile takes its forward pass whole."""
        return True

    @property
    def starts_evenly(self) -> bool:
        """Whether random weights give all tokens about the same probability."""
        return True

    @property
    def depth(self) -> int:
        """Blocks whose activations backward needs, for the memory estimate."""
        return getattr(self, "num_layers", 1)

    @property
    def width(self) -> int:
        """Hidden units of a block, for the memory estimate."""
        return getattr(self, "hidden_size", 1)

    @abstractmethod
    def describe(self) -> str:
        """Describe its sizes: `2 layers, 2 heads, hidden size 128`."""

    def page_name(self, objective: Objective) -> str:
        """Return its name on the page, as it follows "a" or "an": `BERT`."""
        return self.page

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        """Build the objective's model with random weights."""
        self._lacks("weights that are learnt by gradient")

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        """Build the body to fine-tune with this `dropout`; `new_tokens` follow the vocabulary."""
        self._lacks("encoder to fine-tune")

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> object:
        """Wrap a trained module with the family's capabilities (capabilities.py)."""
        self._lacks("weights that are learnt by gradient")

    def carries_state(self, objective: Objective) -> bool:
        """Whether a row goes on with the state in which the row before has ended."""
        return False

    def suggest(self, size: Size) -> dict[str, Any]:
        """Return keys of `model` and `pretrain`, with dots, that suit this text and time."""
        return {}

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the floating-point operations per token of a training step, forward and backward: 6
        per weight of each matrix that multiplies the token (2 forward, 4 backward), and attention.
        V is the vocabulary, T the row length, M the masked tokens per row. Left out are look-ups,
        element-wise operations, the optimizer and recomputation. The last MLP counts at every
        position, although masked objectives compute it only where they predict."""
        self._lacks("count of operations")

    def objective(self, name: str | None) -> Objective:
        """Return the objective, the first for None, or a mixture. Raises ConfigError for others."""
        if name is None:
            return self.objectives[0]
        names = member_names(name)
        if self.mixes and len(names) > 1:
            if len({*names}) < len(names):
                raise ConfigError(f"pretrain.objective is {name}, which names an objective twice")
            return mix([self.objective(each) for each in names])
        for objective in self.objectives:
            if objective.name == name:
                return objective
        *others, last = (objective.name for objective in self.objectives)
        takes = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(
            f"pretrain.objective is {name}, but model.kind is {self.kind}, which takes {takes}",
            {"pretrain.objective": self.objectives[0].name},
        )

    def _lacks(self, what: str) -> NoReturn:
        raise ConfigError(f"model.kind is {self.kind}, which has no {what}; choose another kind")


class LayeredFamily(Family):
    """A family with states of tokens, to fine-tune and to probe."""

    suggested_steps: ClassVar[Steps | None] = None

    def suggest(self, size: Size) -> dict[str, Any]:
        if self.suggested_steps is None:
            return {}
        objective = self.objectives[0]
        masked = MASKED * ROW if objective.masks else ROW
        each = self.flops_per_token(size.vocabulary, ROW, objective, masked)
        return suggest_steps(size, each, self.suggested_steps)

    @abstractmethod
    def body(self, vocab_size: int, objective: Objective) -> Body:
        """Build the model without the parts that only pretraining needs, with random weights."""

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        config = self.model_copy(update={"dropout": dropout})
        body = config.body(vocab_size + new_tokens, objective)
        return LayeredEncoder(body, self.max_length, new_tokens)

    def output_weights(
        self, objective: Objective, vocab_size: int, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output matrix (V, D) and bias (V,) or None of a model with these tensors; for
        a model without a next-token output, the token table and None."""
        with shapes_only():
            model = self.build(vocab_size, objective)
        model.load_state_dict(tensors, assign=True)
        if isinstance(model, TokenOutput):
            return model.output_table(), model.word_bias()
        assert isinstance(model, OnBody)
        return model.body.word_table(), None

    def predicts_by_table(self, objective: Objective) -> bool:
        """Whether the logits of the next token are a state times the token table, without bias."""
        with shapes_only():
            model = self.build(1, objective)
        return (
            isinstance(model, TokenOutput)
            and model.output_table() is model.body.word_table()
            and model.word_bias() is None
        )


class StatefulFamily(LayeredFamily):
    """A family that goes on where the row before has ended. Its modules have the `state_shape` S of
    a row, whose state is zeros where a text begins, and return behind their two sums the state
    (B, S) after the last token."""

    @property
    def compiles(self) -> bool:
        return False  # recurrent layers are kernels of their own

    def carries_state(self, objective: Objective) -> bool:
        return "causal" in objective.reads  # rows of other kinds do not continue one another

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CarryingModel:
        return CarryingModel(model, self.max_length, *special.require("end"))


class TransformerFamily(LayeredFamily):
    """The sizes of a Transformer (block.py), by default those of BERT base and GPT-2."""

    suggested_steps: ClassVar[Steps | None] = Steps(5e-3)
    layer_norm_epsilon: ClassVar[float] = 1e-5
    activation: ClassVar[Activation] = "gelu_tanh"

    num_layers: int = Field(default=12, ge=1)
    num_heads: int = Field(default=12, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)  # width of the feed-forward layers
    max_position_embeddings: int = Field(default=512, ge=1)  # tokens of the longest row
    norm: Norm = "pre"  # layer norm after (post) or before (pre) each sublayer
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # standard deviation of the normal that random weights are drawn from
    initializer_range: float = Field(default=0.02, gt=0.0)

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        turns = self.layer(0).rotary_base is not None
        own = getattr(self, "head_size", None)  # the key of a family whose heads may have any size
        if own is not None:
            if turns and own % 2:
                raise BlockError(
                    "head_size must be even, since rotary positions turn pairs of units, found "
                    f"{own}",
                    {"head_size": own + 1},
                )
            return self
        factor = math.lcm(self.num_heads * (2 if turns else 1), self.width_factor)
        if self.hidden_size % factor:
            pairs = factor != self.num_heads
            whole = "2 x num_heads, since positions take units in pairs" if pairs else "num_heads"
            raise BlockError(
                f"hidden_size must be a multiple of {whole}, found hidden_size {self.hidden_size} "
                f"and num_heads {self.num_heads}",
                {"hidden_size": -(-self.hidden_size // factor) * factor},
            )
        return self

    @property
    def width_factor(self) -> int:
        """The number that hidden_size must be a multiple of, whatever the heads."""
        return 1

    def layer(self, number: int) -> Layer:
        """Return the options of block `number`, counted from 0."""
        return Layer(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            intermediate_size=self.intermediate_size,
            norm=self.norm,
            activation=self.activation,
            epsilon=self.layer_norm_epsilon,
            dropout=self.dropout,
            num_key_value_heads=self.num_heads,
            head_size=self.hidden_size // self.num_heads,
        )

    def blocks(self) -> list[Layer]:
        """Return the options of each block."""
        return [self.layer(number) for number in range(self.num_layers)]

    @property
    def max_length(self) -> int | None:
        return self.max_position_embeddings

    def describe(self) -> str:
        heads = format_count(self.num_heads, "head")
        return f"{format_count(self.num_layers, 'layer')}, {heads}, hidden size {self.hidden_size}"

    def stack_flops(self, T: int, causal: bool) -> int:
        """Return the share of one stack of blocks in `flops_per_token`; for plain layers

            6·L·(4·D² + 2·D·I) + 12·L·D·T

        with I the intermediate size. Causal attention counts half, because a causal kernel skips
        the future. Boundaries inside a row are ignored."""
        return sum(layer.flops(T, causal) for layer in self.blocks())
