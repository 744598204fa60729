"""BERT (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", arXiv:1810.04805), after google-research/bert, and ModernBERT.

    ids, segments ──> token + segment + position ──> LayerNorm ──> Transformer, both directions
        ──> hidden (B, T, D) ──┬──> masked positions ──> MLM logits (B, M, V), embedding tied
                               └──> [CLS] ──> pooler, tanh ──> NSP logits (B, 2)

Classes of NSP are 0 NotNext and 1 IsNext (google-research/bert and transformers swap them), those
of sentence order 0 swapped and 1 in order. The ablation "LTR & No NSP" (table 5) has causal
attention, predicts the next token at every position, and has no pooler: [CLS] sees only itself.

ModernBERT (Warner et al. 2024, "Smarter, Better, Faster, Longer", arXiv:2412.13663) has what
decoders have learnt since: no biases except the output's, GeGLU, rotary positions, pre-norm, and
global attention in every third layer, starting with the first; the others are local, with a smaller
rotary base. There are no segments and no sentence pairs. The paper masks 30 % of the tokens
(`instances.masking`) and packs rows without padding (`instances.packed`). The first layer has no
norm before attention: the embeddings have one.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import MaskedBatch
from rungwise.models.counterpart import SIZES, Architecture, Counterpart, Modules, read_rotary_base
from rungwise.models.family import Steps, TransformerFamily
from rungwise.models.losses.cross_entropy import output_logits
from rungwise.models.losses.masked_variants import (
    HYBRID,
    PERMUTED,
    REPLACED_TOKENS,
    SPAN_DENOISING,
    TEXT_VECTORS,
)
from rungwise.models.losses.objectives import (
    CAUSAL,
    MLM,
    MLM_NSP,
    SENTENCE_ORDER,
    EncoderHead,
    Objective,
    OwnHead,
    PretrainingLogits,
)
from rungwise.models.trained.encoders import MeanOfStates
from rungwise.models.trained.language_models import CausalModel, MaskedModel
from rungwise.models.transformer.block import (
    WHOLE,
    Activation,
    Boundaries,
    Layer,
    Norm,
    Transformer,
    initialise,
    sinusoid_positions,
)
from rungwise.models.transformer.body import (
    Body,
    MaskedHead,
    NextTokenModel,
    TransformerBody,
    boundaries,
)

NUM_SEGMENTS = 2
NOT_NEXT, IS_NEXT = 0, 1
_CAUSAL: dict[str, Any] = {"is_decoder": True}
_FULL, _SLIDING = "full_attention", "sliding_attention"


class EncoderFamily(TransformerFamily):
    """Encoders, trained by masking; by other objectives they read from left to right."""

    suggested_steps: ClassVar[Steps | None] = Steps(4e-3, rows=32, passes=20)

    @abstractmethod
    def stack(self, vocab_size: int, *, causal: bool, pooler: bool = False) -> TransformerBody:
        """Build the body; objectives that predict pairs need the `pooler`."""

    def head(self, vocab_size: int) -> "MlmHead":
        """Build the head for tokens, without the weights that `initialise` draws."""
        return MlmHead(self.layer(0), vocab_size)

    def masked(self, vocab_size: int, pairs: bool) -> nn.Module:
        """Build the model that predicts masked tokens, and pairs if the family can."""
        body = self.stack(vocab_size, causal=False, pooler=pairs)
        nsp = nn.Linear(self.hidden_size, 2) if pairs else None
        return MaskedOutput(self, body, self.head(vocab_size), nsp)

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        assert isinstance(objective.head, EncoderHead)
        return objective.head.build(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return self.stack(vocab_size, causal=not objective.masks)

    def trained(
        self, model: Any, objective: Objective, special: SpecialIds
    ) -> CausalModel | MaskedModel | MeanOfStates:
        if not objective.masks:
            return CausalModel(model, self.max_length, *special.require("end"))
        if objective.sentences or not model.fills_gaps:
            return MeanOfStates(model.body, self.max_length, *special.require("cls", "sep"))
        # A pass per token takes windows, also where sinusoids would allow rows of any length.
        length = self.max_position_embeddings
        return MaskedModel(model, length, *special.require("cls", "sep", "mask"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        assert isinstance(objective.head, EncoderHead)
        return objective.head.flops(self, V, T, M)


class LeftToRight(NextTokenModel):
    """The ablation "LTR & No NSP"; see the module docstring."""

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(body)
        self.mlm = mlm
        initialise(self.mlm, family.initializer_range)

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        return self.mlm.transform(super().states(ids_BT, where))

    def word_bias(self) -> Tensor:
        return self.mlm.bias


LEFT_TO_RIGHT: Objective = replace(
    CAUSAL, name="left_to_right", head=OwnHead(make=LeftToRight, causal=True)
)


class BertConfig(EncoderFamily):
    """The shape of a BERT; the defaults are BERT base. `dropout` is 0 by default, where the paper
    has 0.1 everywhere: pretraining sees an instance a few times at most and does not overfit.
    Fine-tuning should set the paper's 0.1."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Devlin et al."
    idea: ClassVar[str] = "a Transformer that fills in hidden words from both sides"
    objectives: ClassVar = (
        *(MLM_NSP, MLM, SENTENCE_ORDER, LEFT_TO_RIGHT),
        *(*TEXT_VECTORS, HYBRID, REPLACED_TOKENS, SPAN_DENOISING, PERMUTED),
    )
    layer_norm_epsilon: ClassVar[float] = 1e-12
    activation: ClassVar[Activation] = "gelu"

    kind: Literal["bert"] = "bert"
    # position embeddings, learned or sinusoidal
    positions: Literal["learned", "sinusoid"] = "learned"
    norm: Norm = "post"  # layer norm after (post) or before (pre) each sublayer

    @property
    def width_factor(self) -> int:
        return 2 if self.positions == "sinusoid" else 1

    @property
    def max_length(self) -> int | None:
        return self.max_position_embeddings if self.positions == "learned" else None

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        return _BERT, _ROBERTA, _ELECTRA

    def page_name(self, objective: Objective) -> str:
        return f"{reading_direction(objective)}BERT"

    def stack(self, vocab_size: int, *, causal: bool, pooler: bool = False) -> "Bert":
        return Bert(self, vocab_size, pooler=pooler, causal=causal)


class Bert(TransformerBody):
    """The encoder, with its pooler unless `pooler` is False."""

    name: ClassVar[str] = "bert"
    pools: ClassVar[bool] = True

    def __init__(
        self, config: BertConfig, vocab_size: int, *, pooler: bool = True, causal: bool = False
    ) -> None:
        super().__init__(config, vocab_size)
        D = config.hidden_size
        self.config = config
        self.causal = causal
        self.segment_embedding = nn.Embedding(NUM_SEGMENTS, D)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.max_position_embeddings, D)
        self.embedding_norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.transformer = Transformer(config.blocks(), causal)
        self.pooler = nn.Linear(D, D) if pooler else None
        initialise(self, config.initializer_range)

    def position_vectors(self, length: int, positions_BT: Tensor | None = None) -> Tensor:
        """Return learned vectors or sinusoids. Of amplitude 1, these would drown the tokens in the
        LayerNorm: they are scaled to `initializer_range`."""
        if (learned := super().position_vectors(length, positions_BT)) is not None:
            return learned
        weight = self.token_embedding.weight
        positions = length if positions_BT is None else positions_BT
        sinusoids = sinusoid_positions(
            positions, self.config.hidden_size, weight.device, weight.dtype
        )
        return sinusoids * (self.config.initializer_range * math.sqrt(2))

    def pool(self, hidden_BTD: Tensor) -> Tensor:
        """Return the pooled vectors (B, D): [CLS] through a linear layer and tanh."""
        assert self.pooler is not None, "this Bert was built with pooler=False"
        return torch.tanh(self.pooler(hidden_BTD[:, 0]))


class MlmHead(nn.Module):
    """Dense, GELU, norm, tied embedding and bias, with the options of a block. `input_size`: of
    concatenated states."""

    graphs: ClassVar = ("transform",)  # see parallel.py

    def __init__(self, layer: Layer, vocab_size: int, input_size: int | None = None) -> None:
        super().__init__()
        D = layer.hidden_size
        self.dense = nn.Linear(input_size or D, D, bias=layer.biases)
        self.norm = layer.new_norm()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def transform(self, hidden: Tensor) -> Tensor:
        """Return the vectors (..., D) that the output matrix multiplies."""
        return self.norm(functional.gelu(self.dense(hidden)))

    def forward(self, hidden_BMD: Tensor, embedding_VD: Tensor) -> Tensor:
        return output_logits(self.transform(hidden_BMD), embedding_VD, self.bias)


class MaskedOutput(MaskedHead):
    """Predicts masked tokens and, unless `nsp` is None, pairs from the pooled state."""

    def __init__(self, family: Any, body: Any, mlm: Any, nsp: nn.Linear | None = None) -> None:
        super().__init__(family, body, mlm)
        self.nsp = nsp
        if nsp is not None:
            initialise(nsp, family.initializer_range)

    @property
    def purpose(self) -> str:
        return "masked" if self.nsp is None else "pairs"

    def forward(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits of the masked tokens and of the pair; see `TransformerBody.encode`."""
        inputs, read_BM = (rows.ids, rows.segments, rows.lengths), rows.masked_positions
        if self.nsp is not None:
            read_BM = functional.pad(read_BM, (1, 0))  # [CLS] in front, at position 0
        return self.heads(self.body.encode(*inputs, boundaries(rows), read_BM))

    fill = forward

    def heads(self, states_BMD: Tensor) -> PretrainingLogits:
        if self.nsp is None:
            return super().heads(states_BMD)
        mlm_BMV = self.mlm(states_BMD[:, 1:], self.body.token_embedding.weight)
        return PretrainingLogits(mlm_BMV, self.nsp(self.body.pool(states_BMD)))


def reading_direction(objective: Objective) -> str:
    """How a model of this objective reads, before the name of its family on the page."""
    return "" if objective.masks else "left-to-right "


# In transformers, whose classes of NSP are in reverse order.


def _name_modules(prefix: str, attention_norm: str, mlp_norm: str) -> dict[str, Modules]:
    """The body and the last layers for tasks; the two norms are in these parts of a layer."""
    block, layer = "bert.transformer.blocks.{}", f"{prefix}.encoder.layer.{{}}"
    return {
        "bert.token_embedding": f"{prefix}.embeddings.word_embeddings",
        "bert.segment_embedding": f"{prefix}.embeddings.token_type_embeddings",
        "bert.position_embedding": f"{prefix}.embeddings.position_embeddings",
        "bert.embedding_norm": f"{prefix}.embeddings.LayerNorm",
        f"{block}.attention.query_key_value": tuple(
            f"{layer}.attention.self.{part}" for part in ("query", "key", "value")
        ),
        f"{block}.attention.output": f"{layer}.attention.output.dense",
        f"{block}.attention_norm": f"{layer}.{attention_norm}.LayerNorm",
        f"{block}.mlp.expand": f"{layer}.intermediate.dense",
        f"{block}.mlp.contract": f"{layer}.output.dense",
        f"{block}.mlp_norm": f"{layer}.{mlp_norm}.LayerNorm",
        "bert.pooler": f"{prefix}.pooler.dense",
        "classifier": "classifier",
        "qa_outputs": "qa_outputs",
    }


def _list_architectures(name: str, pool: str, linear: str) -> dict[str, Architecture]:
    """Their classes; `pool` and `linear` are the layers of that for labels of texts."""
    return {
        "masked": Architecture(f"{name}ForMaskedLM"),
        "vectors": Architecture(f"{name}Model"),
        "sequence": Architecture(
            f"{name}ForSequenceClassification", pool=pool, linear=linear, labels="classes"
        ),
        "choice": Architecture(f"{name}ForMultipleChoice", pool="bert.pooler", linear="classifier"),
        "token": Architecture(f"{name}ForTokenClassification", linear="classifier", labels="tags"),
        "span": Architecture(f"{name}ForQuestionAnswering", linear="qa_outputs"),
    }


def _compute_positions(body: Bert, config: BertConfig) -> dict[str, Tensor]:
    """Sinusoids as a table."""
    if config.positions == "learned":
        return {}
    return {"bert.position_embedding.weight": body.position_vectors(config.max_position_embeddings)}


_BERT = Counterpart(
    model_type="bert",
    when={"norm": "post"},
    architectures={
        **_list_architectures("Bert", "bert.pooler", "classifier"),
        "pairs": Architecture("BertForPreTraining"),
        "next": Architecture("BertLMHeadModel", keys=_CAUSAL),
    },
    prefix="bert.",
    names={
        **_name_modules("bert", "attention.output", "output"),
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.LayerNorm",
        "mlm": "cls.predictions",
        "nsp": "cls.seq_relationship",
    },
    reversed_rows=("nsp",),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    buffers=("embeddings.position_ids",),
    computed=_compute_positions,
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    usual_dropout=0.1,
    settings={
        "position_embedding_type": (None, "absolute"),
        "hidden_act": ("gelu",),
        "layer_norm_eps": (BertConfig.layer_norm_epsilon,),
        "type_vocab_size": (NUM_SEGMENTS,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "rope_parameters": (None,),
        "rope_scaling": (None,),
    },
    framed=True,
    inputs=("input_ids", "token_type_ids", "attention_mask"),
)
_ROBERTA = replace(
    _BERT,
    model_type="roberta-prelayernorm",
    when={"norm": "pre"},
    architectures={
        **_list_architectures("RobertaPreLayerNorm", "classifier.dense", "classifier.out_proj"),
        "pairs": Architecture(
            "RobertaPreLayerNormForMaskedLM", leaves_out=("bert.pooler.", "nsp.")
        ),
        "next": Architecture("RobertaPreLayerNormForCausalLM", keys=_CAUSAL),
    },
    prefix="roberta_prelayernorm.",
    names={
        **_name_modules("roberta_prelayernorm", "attention", "intermediate"),
        "bert.transformer.final_norm": "roberta_prelayernorm.LayerNorm",
        "mlm.dense": "lm_head.dense",
        "mlm.norm": "lm_head.layer_norm",
        "mlm": "lm_head",
        "classifier.dense": "classifier.dense",
        "classifier.out_proj": "classifier.out_proj",
    },
    tied={
        "lm_head.decoder.weight": "roberta_prelayernorm.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    after_padding="bert.position_embedding.weight",
)
_ELECTRA = replace(
    _BERT,
    model_type="electra",
    is_read=False,
    architectures={
        "detector": Architecture("ElectraForPreTraining", leaves_out=("mlm.", "generator."))
    },
    prefix="electra.",
    names={
        **_name_modules("electra", "attention.output", "output"),
        "detector.dense": "discriminator_predictions.dense",
        "detector.output": "discriminator_predictions.dense_prediction",
    },
    keys=lambda config: {"embedding_size": config.hidden_size},
)


class ModernBertConfig(EncoderFamily):
    """The shape of a ModernBERT; the defaults are its base."""

    year: ClassVar[int] = 2024
    paper: ClassVar[str] = "Warner et al."
    idea: ClassVar[str] = "fills in hidden words as BERT does, with newer parts"
    objectives: ClassVar = (
        MLM,
        LEFT_TO_RIGHT,
        *TEXT_VECTORS,
        HYBRID,
        REPLACED_TOKENS,
        SPAN_DENOISING,
    )
    activation: ClassVar[Activation] = "gelu"

    kind: Literal["modern_bert"] = "modern_bert"
    num_layers: int = Field(default=22, ge=1)
    intermediate_size: int = Field(default=1152, ge=1)  # width of the feed-forward layers
    max_position_embeddings: int = Field(default=8192, ge=1)  # tokens of the longest row
    norm: Literal["pre"] = "pre"  # pyright: ignore[reportIncompatibleVariableOverride]
    # every so many layers, from the first on, one sees all tokens; the others are local
    global_every: int = Field(default=3, ge=1)
    # tokens that a local layer sees, half of them on either side
    local_window: int = Field(default=128, ge=2)
    # base of the rotary positions in global layers
    global_rotary_base: float = Field(default=160_000.0, gt=1)
    local_rotary_base: float = Field(default=10_000.0, gt=1)  # the same in local layers

    def layer(self, number: int) -> Layer:
        is_global = number % self.global_every == 0
        return replace(
            super().layer(number),
            biases=False,
            gated=True,
            rotary_base=self.global_rotary_base if is_global else self.local_rotary_base,
            window=None if is_global else self.local_window // 2,
            first_norm=number > 0,
        )

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        return _MODERNBERT, _DECODER

    def page_name(self, objective: Objective) -> str:
        return f"{reading_direction(objective)}ModernBERT"

    def stack(self, vocab_size: int, *, causal: bool, pooler: bool = False) -> "ModernBert":
        return ModernBert(self, vocab_size, causal)


class ModernBert(TransformerBody):
    """The encoder. It accepts segments, like BERT, and ignores them."""

    name: ClassVar[str] = "modern_bert"

    def __init__(self, config: ModernBertConfig, vocab_size: int, causal: bool) -> None:
        super().__init__(config, vocab_size)
        self.causal = causal
        self.embedding_norm = config.layer(0).new_norm()
        self.transformer = Transformer(config.blocks(), causal)
        initialise(self, config.initializer_range)
        self.transformer.scale_residuals()


# In transformers. Since its version 5 a config lists the attention type of each layer and the
# rotary base of each type; before, it had a key for each number. Both are read and written.


def _list_layer_types(num_layers: int, every: int) -> list[str]:
    return [_SLIDING if number % every else _FULL for number in range(num_layers)]


def _write_keys(config: ModernBertConfig) -> dict[str, Any]:
    bases = {_FULL: config.global_rotary_base, _SLIDING: config.local_rotary_base}
    return {
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.global_rotary_base,
        "local_rope_theta": config.local_rotary_base,
        "layer_types": _list_layer_types(config.num_layers, config.global_every),
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()
        },
    }


def _read_values(data: Mapping[str, Any]) -> dict[str, Any]:
    every, layers = data.get("global_attn_every_n_layers", 3), data.get("layer_types")
    # A stack that is too short to have a second one says nothing against the key.
    if layers is not None and layers != _list_layer_types(len(layers), every):
        near = [number for number, name in enumerate(layers) if name == _FULL][1:]
        every = near[0] if near else len(layers)
        if layers != _list_layer_types(len(layers), every):
            raise DataError(
                f"layer_types must begin with {_FULL} and have it again every so many layers, "
                f"{_SLIDING} between, found {layers}; rungwise has no such modernbert"
            )
    return {
        "global_every": every,
        "global_rotary_base": read_rotary_base(data, "global_rope_theta", 160_000.0, _FULL),
        "local_rotary_base": read_rotary_base(data, "local_rope_theta", 10_000.0, _SLIDING),
    }


def _name_modern_modules(attention: Modules, head: str) -> dict[str, Modules]:
    block, layer = "modern_bert.transformer.blocks.{}", "model.layers.{}"
    return {
        "modern_bert.token_embedding": "model.embeddings.tok_embeddings",
        "modern_bert.embedding_norm": "model.embeddings.norm",
        f"{block}.attention_norm": f"{layer}.attn_norm",
        f"{block}.attention.query_key_value": attention,
        f"{block}.attention.output": f"{layer}.attn.Wo",
        f"{block}.mlp_norm": f"{layer}.mlp_norm",
        f"{block}.mlp.expand": f"{layer}.mlp.Wi",
        f"{block}.mlp.contract": f"{layer}.mlp.Wo",
        "modern_bert.transformer.final_norm": "model.final_norm",
        "mlm.dense": f"{head}.dense",
        "mlm.norm": f"{head}.norm",
        "mlm": "decoder",
    }


_MODERNBERT = Counterpart(
    model_type="modernbert",
    architectures={
        "masked": Architecture("ModernBertForMaskedLM"),
        "vectors": Architecture("ModernBertModel"),
    },
    prefix="model.",
    names=_name_modern_modules("model.layers.{}.attn.Wqkv", "head"),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    sizes={**SIZES, "local_window": "local_attention"},
    dropouts=("attention_dropout", "embedding_dropout", "mlp_dropout"),
    settings={
        "hidden_activation": ("gelu",),
        "classifier_activation": ("gelu",),
        "norm_eps": (ModernBertConfig.layer_norm_epsilon,),
        "decoder_bias": (True,),
        **{f"{part}_bias": (False,) for part in ("norm", "attention", "mlp", "classifier")},
        "tie_word_embeddings": (True,),
    },
    keys=_write_keys,
    values=_read_values,
    framed=True,
    # Their own defaults are of another vocabulary.
    token_ids={
        "pad_token_id": "pad_token",
        **{f"{name}_token_id": "cls_token" for name in ("cls", "bos")},
        **{f"{name}_token_id": "sep_token" for name in ("sep", "eos")},
    },
)
_DECODER = replace(
    _MODERNBERT,
    model_type="modernbert-decoder",
    is_read=False,
    architectures={"next": Architecture("ModernBertDecoderForCausalLM")},
    names=_name_modern_modules(
        tuple(f"model.layers.{{}}.attn.{part}_proj" for part in "qkv"), "lm_head"
    ),
    # It counts a token itself among those that it sees.
    keys=lambda config: {
        **_write_keys(config),
        "local_attention": 2 * (config.local_window // 2 + 1),
    },
)
