"""Settings of fine-tuning: the recipe, how the encoder is adapted, and the layer on top of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import BlockError
from rungwise.tasks.kinds.items import Pairs, Pooling
from rungwise.tasks.kinds.kind import Reading

Initialisation = Literal["pretrained", "random"]


class FullAdaptation(Config):
    """All weights are trained, at one learning rate (Devlin et al. 2019, arXiv:1810.04805)."""

    kind: Literal["full"] = "full"


class FrozenAdaptation(Config):
    """The encoder is fixed; only what stands on it is trained."""

    kind: Literal["frozen"] = "frozen"


class DiscriminativeAdaptation(Config):
    """The highest layer learns at `learning_rate`, lower ones slower, embeddings as the lowest
    (Howard & Ruder 2018, arXiv:1801.06146)."""

    kind: Literal["discriminative"] = "discriminative"
    # Rate of a layer over that of the one above. Howard & Ruder: 1/2.6 for an LSTM of three layers;
    # 0.95 suits the many layers of a Transformer.
    decay: float = Field(default=0.95, gt=0, le=1)
    # train the head alone for so many epochs, then every so many one more layer, from the top;
    # null: all layers at once
    unfreeze_every_epochs: int | None = Field(default=None, ge=1)


class FeaturesAdaptation(Config):
    """The encoder is fixed, and a learned mix of its layers is read (Peters et al. 2018,
    arXiv:1802.05365), or they are side by side."""

    kind: Literal["features"] = "features"
    # layers to read, 0 the embeddings; a single one makes a probe of it
    layers: Literal["all"] | list[Annotated[int, Field(ge=0)]] = "all"
    # mix: their learned mean; join: side by side, as CoVe is read (McCann et al. 2017)
    combine: Literal["mix", "join"] = "mix"
    layer_norm: bool = False  # normalise each layer before mixing

    @model_validator(mode="after")
    def _some_once(self) -> Self:
        once = self.layers == "all" or len(set(self.layers)) == len(self.layers) > 0
        if not once:
            raise ValueError(f"layers must name at least one, each once, found {self.layers}")
        if self.layer_norm and self.combine == "join":
            raise ValueError("layer_norm is for a mix, but combine is join; leave it out")
        return self


class LinearTop(Config):
    """The head reads the states of the encoder directly."""

    kind: Literal["linear"] = "linear"


class BilstmTop(Config):
    """A randomly initialised BiLSTM between the encoder and the head. With vectors of its own it is
    a tagger by itself, which the states of the encoder join somewhere (TagLM, Peters et al. 2017,
    arXiv:1705.00108, section 2)."""

    kind: Literal["bilstm"] = "bilstm"
    hidden_size: int = Field(default=256, ge=1)  # of one direction
    num_layers: int = Field(default=1, ge=1)
    # size of token vectors of its own, which are trained; null: it reads only the encoder
    embedding_size: int | None = Field(default=None, ge=1)
    # its layer whose output the states of the encoder join, 0: the vectors; null: they do not
    states_after: int | None = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _reads_something(self) -> Self:
        if self.embedding_size is None and self.states_after != 0:
            raise ValueError(
                f"states_after is {self.states_after}, but the first layer reads nothing else than "
                "the encoder; set embedding_size, or states_after to 0"
            )
        if self.states_after is not None and self.states_after > self.num_layers:
            raise ValueError(
                f"states_after is {self.states_after}, but num_layers is {self.num_layers}; lower "
                "the first"
            )
        return self


Adaptation = Annotated[
    FullAdaptation | FrozenAdaptation | DiscriminativeAdaptation | FeaturesAdaptation,
    Field(discriminator="kind"),
]
Top = Annotated[LinearTop | BilstmTop, Field(discriminator="kind")]


class FinetuneConfig(Config):
    """Fine-tuning as in Devlin et al. 2019, appendix A.3. Their grid: learning rate 5e-5, 3e-5,
    2e-5; batch 16, 32; epochs 2 to 4."""

    initialisation: Initialisation = "pretrained"  # weights of the encoder at the start
    # load only so many layers, the lowest; null: all
    loaded_layers: int | None = Field(default=None, ge=0)
    adaptation: Adaptation = FullAdaptation()
    top: Top = LinearTop()
    # vector of a text, for tasks of texts and choice: first token, mean, last token, or the last,
    # the maximum and the mean side by side (Howard & Ruder 2018)
    pooling: Pooling = "cls"
    learning_rate: float = Field(default=5e-5, gt=0)
    # peak rate of all but the encoder; null: `learning_rate`
    head_learning_rate: float | None = Field(default=None, gt=0)
    # items per step; an item is an example, or one window of a long text
    batch_size: int = Field(default=32, ge=1)
    # read a batch in this many parts, for the same step in less memory
    accumulation: int = Field(default=1, ge=1)
    epochs: int = Field(default=3, ge=1)
    # keep the weights of the epoch that is best on validation; false: the last
    best_epoch: bool = False
    # linear: from 0 to the peak and back; slanted: from 1/32 of it and back (Howard & Ruder 2018)
    schedule: Literal["linear", "slanted"] = "linear"
    # share of the steps in which the rate rises to its peak
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    # also of the encoder, whatever pretraining had, as few examples are seen many times
    dropout: float = Field(default=0.1, ge=0, lt=1)
    # share of words dropped, at all their places in a batch (Dai & Le 2015)
    word_dropout: float = Field(default=0.0, ge=0, lt=1)
    # compute matrix products in bfloat16, where the device takes them natively
    bfloat16: bool = False
    sequence_length: int = Field(default=128, ge=3)  # tokens per row, special tokens included
    # of a recurrent encoder: it reads the whole row, gradients go back so many tokens (truncated
    # backpropagation through time); null: to the beginning
    gradient_length: int | None = Field(default=None, ge=1)
    # a pair of texts as one row, as two rows in either order whose vectors are added, or a row for
    # each text, whose vectors are compared
    pairs: Pairs = "joined"
    # balanced: weigh the loss of each class, or of having and lacking each label, by one over its
    # share of the training items
    class_weights: Literal["balanced"] | None = None
    windows: bool = False  # for tasks of texts: read a long text in windows; false: cut it
    # tokens from one window to the next, also in the context of a question
    stride: int = Field(default=64, ge=1)
    # longest answer to a question, or longest text written
    max_answer_tokens: int = Field(default=30, ge=1)
    # score which tag follows which, with a conditional random field
    crf: bool = False
    # weight of an added next-token loss; 0.5 in Radford et al. 2018, section 3.2
    auxiliary_language_model: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.initialisation == "random" and self.loaded_layers is not None:
            raise BlockError(
                f"loaded_layers is {self.loaded_layers}, but initialisation is random and loads "
                "nothing",
                {"loaded_layers": None},
            )
        if self.accumulation > self.batch_size:
            raise BlockError(
                f"accumulation is {self.accumulation}, but a batch has {self.batch_size} items to "
                "share out",
                {"accumulation": self.batch_size},
            )
        every = self.unfreeze_every_epochs
        if every is not None and every >= self.epochs:
            raise ValueError(
                f"adaptation.unfreeze_every_epochs is {every}, and in {self.epochs} epochs no "
                "layer would ever learn; it must be below epochs"
            )
        return self

    @property
    def unfreeze_every_epochs(self) -> int | None:
        """The setting of a discriminative adaptation; None if all layers learn from the start."""
        adaptation = self.adaptation
        if isinstance(adaptation, DiscriminativeAdaptation):
            return adaptation.unfreeze_every_epochs
        return None

    @property
    def reading(self) -> Reading:
        """How texts become rows, and outputs become answers."""
        return Reading(
            self.pairs, self.windows, self.stride, self.max_answer_tokens, self.sequence_length
        )

    @property
    def fixes_encoder(self) -> bool:
        """Whether the encoder runs without gradients and dropout."""
        return self.adaptation.kind in ("frozen", "features")
