"""ModernBERT (Warner et al. 2024, "Smarter, Better, Faster, Longer", arXiv:2412.13663): BERT with
what decoders have learnt since.

    ids ──> token ──> LayerNorm ──> pre-norm Transformer, both directions ──> hidden (B, T, D)
        ──> masked positions ──> MLM logits (B, M, V), embedding tied

No biases except the output's, GeGLU, rotary positions, and global attention in every third layer,
starting with the first; the others are local, with a smaller rotary base. There are no segments and
no sentence pairs. The paper masks 30 % of the tokens (`instances.masking`) and packs rows without
padding (`instances.packed`). The first layer has no norm before attention: the embeddings have one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from rungwise.core.errors import DataError
from rungwise.models.counterpart import SIZES, Architecture, Counterpart, Modules, read_rotary_base
from rungwise.models.families.bert import LEFT_TO_RIGHT, EncoderFamily, MlmHead, reading_direction
from rungwise.models.losses.masked_variants import HYBRID, REPLACED_TOKENS, SPAN_DENOISING
from rungwise.models.losses.objectives import MLM, Objective
from rungwise.models.losses.sentences import TEXT_VECTORS
from rungwise.models.transformer.block import Activation, Layer, Transformer, initialise
from rungwise.models.transformer.body import TransformerBody


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

    def stack(self, vocab_size: int, *, causal: bool) -> "ModernBert":
        return ModernBert(self, vocab_size, causal)

    def head(self, vocab_size: int) -> MlmHead:
        epsilon = self.layer_norm_epsilon
        return MlmHead(self.hidden_size, vocab_size, biases=False, epsilon=epsilon)


class ModernBert(TransformerBody):
    """The encoder. It accepts segments, like BERT, and ignores them."""

    name: ClassVar[str] = "modern_bert"

    def __init__(self, config: ModernBertConfig, vocab_size: int, causal: bool) -> None:
        super().__init__(vocab_size, config.hidden_size, config.dropout)
        self.causal = causal
        self.embedding_norm = config.layer(0).new_norm()
        self.transformer = Transformer(config.blocks(), causal)
        initialise(self, config.initializer_range)
        self.transformer.scale_residuals()

    def embed(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        return self.dropout(self.embedding_norm(self.token_embedding(ids_BT)))

    def embeddings(self) -> list[nn.Module]:
        return [self.token_embedding, self.embedding_norm]


# In transformers. Since its version 5 a config lists the attention type of each layer and the
# rotary base of each type; before, it had a key for each number. Both are read and written.

_FULL, _SLIDING = "full_attention", "sliding_attention"


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


def _name_modules(attention: Modules, head: str) -> dict[str, Modules]:
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
    names=_name_modules("model.layers.{}.attn.Wqkv", "head"),
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
    names=_name_modules(tuple(f"model.layers.{{}}.attn.{part}_proj" for part in "qkv"), "lm_head"),
    # It counts a token itself among those that it sees.
    keys=lambda config: {
        **_write_keys(config),
        "local_attention": 2 * (config.local_window // 2 + 1),
    },
)
