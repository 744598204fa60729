"""Keys of fine-tuning: the recipe, how the encoder is adapted, and what stands on it.

adaptation      the encoder                                                     trained
full            all its weights learn (Devlin et al. 2019, arXiv:1810.04805)    everything
frozen          as pretrained, nothing dropped; its last layer is read          top and head
discriminative  each layer learns more slowly than the one above it, and may    everything, in
                wait for its turn (Howard & Ruder 2018, arXiv:1801.06146)       the end
features        as pretrained; a learned mix of its layers is read (Peters et   mix, top, head
                al. 2018, arXiv:1802.05365)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.config import Config
from rungwise.finetune.heads import Pooling

Initialisation = Literal["pretrained", "random"]


class FullAdaptation(Config):
    """All weights learn at one rate."""

    kind: Literal["full"] = "full"


class FrozenAdaptation(Config):
    """The encoder is fixed, and what stands on it learns."""

    kind: Literal["frozen"] = "frozen"


class DiscriminativeAdaptation(Config):
    """The highest layer learns at `learning_rate`, each below at `decay` times that of the one
    above, the embeddings as the lowest. Howard & Ruder have 1/2.6 for an LSTM of three layers;
    0.95 suits the many layers of a Transformer.

    With `unfreeze_every_epochs` k the head learns alone for k epochs, and then one layer more every
    k epochs, from the top.
    """

    kind: Literal["discriminative"] = "discriminative"
    decay: float = Field(default=0.95, gt=0, le=1)
    unfreeze_every_epochs: int | None = Field(default=None, ge=1)


class LoraAdaptation(Config):
    """The encoder is fixed, and a product of two thin matrices is learnt beside each matrix of its
    linear layers (Hu et al. 2021); a learning rate ten times that of `full` suits it."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16, gt=0)  # the product counts alpha / rank times


class FeaturesAdaptation(Config):
    """The encoder is fixed. `layers` are mixed, 0 the embeddings; one alone makes a probe of it.

    `layer_norm` normalises each before.
    """

    kind: Literal["features"] = "features"
    layers: Literal["all"] | list[Annotated[int, Field(ge=0)]] = "all"
    layer_norm: bool = False

    @model_validator(mode="after")
    def _some_once(self) -> Self:
        once = self.layers == "all" or len(set(self.layers)) == len(self.layers) > 0
        if not once:
            raise ValueError(f"layers must name at least one, each once, found {self.layers}")
        return self


class LinearTop(Config):
    """The head reads the states of the encoder."""

    kind: Literal["linear"] = "linear"


class BilstmTop(Config):
    """A random BiLSTM between states and head; `hidden_size` is that of one direction."""

    kind: Literal["bilstm"] = "bilstm"
    hidden_size: int = Field(default=256, ge=1)
    num_layers: int = Field(default=1, ge=1)


Adaptation = Annotated[
    FullAdaptation
    | FrozenAdaptation
    | DiscriminativeAdaptation
    | LoraAdaptation
    | FeaturesAdaptation,
    Field(discriminator="kind"),
]
Top = Annotated[LinearTop | BilstmTop, Field(discriminator="kind")]


class FinetuneConfig(Config):
    """The recipe of Devlin et al. 2019, appendix A.3; their grid: learning rate 5e-5, 3e-5, 2e-5;
    batch 16, 32; epochs 2 to 4.

    Fine-tuning sees few examples many times: `dropout` holds for the encoder too, whatever
    pretraining had. `head_learning_rate` is for all that is not the encoder, null for the same.
    `batch_size` counts items: an example, or one window of a long text; with `accumulation` k a
    batch is read in k parts, for the same step in less memory. `best_epoch` keeps the weights of
    the epoch that is best on the validation split, and not the last ones.

    `pooling` is read by tasks of texts and choice, `both_orders` by pairs of texts, `class_weights`
    by classification and multilabel, whose loss weighs each class, and having and lacking each
    label, by 1 / its share of the training items, `windows` by tasks of texts: a text that is too
    long is read in windows and not cut. `stride` is the tokens from window to window, there and of
    the context of questions. An answer to one, and a text that is written, has at most
    `max_answer_tokens`. `legal_tags` lets no tag follow another that its scheme (IOB2, IOBES) does
    not. `auxiliary_language_model` is the weight of the loss of predicting the next token of each
    row, beside that of the task (Radford et al. 2018, section 3.2, where it is 0.5).
    """

    renamed: ClassVar[Mapping[str, str]] = {"use": "adaptation"}

    initialisation: Initialisation = "pretrained"
    loaded_layers: int | None = Field(default=None, ge=0)  # the lowest so many; null: all
    adaptation: Adaptation = FullAdaptation()
    top: Top = LinearTop()
    pooling: Pooling = "cls"
    learning_rate: float = Field(default=5e-5, gt=0)
    head_learning_rate: float | None = Field(default=None, gt=0)
    batch_size: int = Field(default=32, ge=1)
    accumulation: int = Field(default=1, ge=1)
    epochs: int = Field(default=3, ge=1)
    best_epoch: bool = False
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    bfloat16: bool = False  # of matrix products, where the device takes them natively
    sequence_length: int = Field(default=128, ge=3)  # the marks included
    both_orders: bool = False
    class_weights: Literal["balanced"] | None = None
    windows: bool = False
    stride: int = Field(default=64, ge=1)
    max_answer_tokens: int = Field(default=30, ge=1)
    legal_tags: bool = False
    auxiliary_language_model: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.initialisation == "random" and self.loaded_layers is not None:
            raise ValueError(
                f"loaded_layers is {self.loaded_layers}, but initialisation is random and loads "
                "nothing; remove loaded_layers, or change initialisation to pretrained"
            )
        if self.accumulation > self.batch_size:
            raise ValueError(
                f"accumulation is {self.accumulation}, but a batch has {self.batch_size} items to "
                "share out; lower it, or raise batch_size"
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
        """That of a discriminative adaptation; None if all layers learn from the start."""
        adaptation = self.adaptation
        if isinstance(adaptation, DiscriminativeAdaptation):
            return adaptation.unfreeze_every_epochs
        return None

    @property
    def encoding(self) -> dict[str, Any]:
        """The options of `kinds.encode`."""
        names = ("both_orders", "windows", "stride", "max_answer_tokens")
        return {name: getattr(self, name) for name in names}

    @property
    def decoding(self) -> dict[str, Any]:
        """The options of `kinds.decode`."""
        return {name: getattr(self, name) for name in ("max_answer_tokens", "legal_tags")}

    @property
    def fixes_encoder(self) -> bool:
        """Whether the encoder stays as it is."""
        return self.adaptation.kind in ("frozen", "features")
