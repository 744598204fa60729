"""GPT and Llama: causal Transformers that predict the next token.

    ids ──> token + position ──> causal Transformer ──> hidden (B, T, D) ──> logits (B, T, V), tied

GPT-1 (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training") has the
post-norm block of Vaswani et al.; GPT-2 (Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners") moves LayerNorm to the input of each sublayer, adds one at the end, and scales
the initial weights of residual outputs by 1/sqrt(2 · num_layers). Attention does not cross the
documents of a packed block unless `crosses_documents` makes it one text, as in GPT-3 (Brown et al.
2020, arXiv:2005.14165, appendix B).

Llama (Touvron et al. 2023, arXiv:2302.13971), and Qwen3 (Yang et al. 2025, arXiv:2505.09388), is a
pre-norm GPT with RMSNorm, SwiGLU, rotary positions and no biases.

Shapes: B batch, T sequence, D hidden, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.core.errors import BlockError, ConfigError
from rungwise.core.tokens import SpecialIds
from rungwise.models.counterpart import Architecture, Counterpart, read_rotary_base
from rungwise.models.family import TransformerFamily
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.trained.language_models import CausalModel
from rungwise.models.transformer.block import (
    WHOLE,
    Activation,
    Boundaries,
    Layer,
    Transformer,
    initialise,
)
from rungwise.models.transformer.body import Body, NextTokenModel, TransformerBody

_BLOCK, _LAYER = "llama.transformer.blocks.{}", "model.layers.{}"


class DecoderFamily(TransformerFamily):
    """A Transformer that reads from left to right and predicts the next token."""

    objectives: ClassVar = (CAUSAL,)

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return DecoderForPretraining(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return DecoderBody(self, vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CausalModel:
        return CausalModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the causal stack and the output: stack_flops + 6·D·V."""
        return float(self.stack_flops(T, causal=True) + 6 * self.hidden_size * V)


class DecoderBody(TransformerBody):
    """The decoder without its output. It ignores segments: the delimiter ends a text."""

    def __init__(self, config: DecoderFamily, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.name = config.kind  # pyright: ignore[reportAttributeAccessIssue]
        if config.layer(0).rotary_base is None:
            self.position_embedding = nn.Embedding(config.max_position_embeddings, self.width)
        self.transformer = Transformer(config.blocks(), causal=True)
        initialise(self, config.initializer_range, truncated=False)
        if config.norm == "pre":
            self.transformer.scale_residuals()


class DecoderForPretraining(NextTokenModel):
    """The decoder with its output: the token embedding, or a matrix of its own."""

    def __init__(self, config: DecoderFamily, vocab_size: int) -> None:
        super().__init__(DecoderBody(config, vocab_size))
        self.crosses_documents = getattr(config, "crosses_documents", False)
        if not getattr(config, "tied", True):
            # A uniform of the same standard deviation.
            self.output = self.body.own_output(self.body.width, config.initializer_range * 3**0.5)

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        return super().states(ids_BT, WHOLE if self.crosses_documents else where)


class GptConfig(DecoderFamily):
    """The shape of a GPT; the defaults are the smallest GPT-2, without its dropout: see `bert`."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Radford et al."
    idea: ClassVar[str] = "a Transformer that guesses the next word from all words before it"
    page: ClassVar[str] = "GPT"

    kind: Literal["gpt"] = "gpt"
    max_position_embeddings: int = Field(default=1024, ge=1)  # tokens of the longest row
    crosses_documents: bool = False  # a token also sees earlier documents in its block

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        return _GPT2, _OPENAI_GPT


# In transformers, which stores each matrix transposed.


def _check_inner_size(model: Any, config: GptConfig) -> None:
    if config.intermediate_size != 4 * config.hidden_size:
        raise ConfigError(
            f"model.intermediate_size is {config.intermediate_size}, and OpenAIGPTLMHeadModel has "
            f"always 4 · hidden_size, here {4 * config.hidden_size}; it cannot be exported"
        )


_LAYERS = {
    f"gpt.transformer.blocks.{{}}.{name}": f"transformer.h.{{}}.{other}"
    for name, other in {
        "attention_norm": "ln_1",
        "attention.query_key_value": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.expand": "mlp.c_fc",
        "mlp.contract": "mlp.c_proj",
    }.items()
}
_FIXED = {
    "layer_norm_epsilon": (GptConfig.layer_norm_epsilon,),
    "tie_word_embeddings": (True,),
    "rope_parameters": (None,),
    "rope_scaling": (None,),
}
_GPT2 = Counterpart(
    model_type="gpt2",
    when={"norm": "pre"},
    architectures={"next": Architecture("GPT2LMHeadModel")},
    prefix="transformer.",
    names={
        **_LAYERS,
        "gpt.token_embedding": "transformer.wte",
        "gpt.position_embedding": "transformer.wpe",
        "gpt.transformer.final_norm": "transformer.ln_f",
    },
    transposed=tuple(name for name in _LAYERS if not name.endswith("norm")),
    tied={"lm_head.weight": "transformer.wte.weight"},
    buffers=(".attn.bias", ".attn.masked_bias"),
    sizes={
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
    },
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    usual_dropout=0.1,
    settings={
        **_FIXED,
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    keys=lambda config: {"n_inner": config.intermediate_size},
    values=lambda data: {"intermediate_size": data.get("n_inner") or 4 * data["n_embd"]},
)
_OPENAI_GPT = replace(
    _GPT2,
    model_type="openai-gpt",
    when={"norm": "post"},
    architectures={"next": Architecture("OpenAIGPTLMHeadModel")},
    names={
        **_LAYERS,
        "gpt.token_embedding": "transformer.tokens_embed",
        "gpt.position_embedding": "transformer.positions_embed",
    },
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    settings={**_FIXED, "afn": ("gelu", "gelu_new")},  # its "gelu" is the tanh form too
    keys=lambda config: {},
    values=lambda data: {"intermediate_size": 4 * data["n_embd"]},
    check=_check_inner_size,
)


class LlamaConfig(DecoderFamily):
    """The shape of a Llama; the defaults are about as large as the smallest GPT-2."""

    year: ClassVar[int] = 2023
    paper: ClassVar[str] = "Touvron et al."
    idea: ClassVar[str] = "guesses the next word as GPT does, with newer parts"
    page: ClassVar[str] = "Llama"
    activation: ClassVar[Activation] = "silu"

    kind: Literal["llama"] = "llama"
    intermediate_size: int = Field(default=2048, ge=1)  # width of the feed-forward layers
    max_position_embeddings: int = Field(default=2048, ge=1)  # tokens of the longest row
    norm: Literal["pre"] = "pre"  # pyright: ignore[reportIncompatibleVariableOverride]
    # heads of keys and values; null: num_heads
    num_key_value_heads: int | None = Field(default=None, ge=1)
    head_size: int | None = Field(default=None, ge=2)  # null: hidden_size / num_heads
    query_key_norm: bool = False  # normalise queries and keys, as in Qwen3
    rotary_base: float = Field(default=10_000.0, gt=1)  # base of the rotary positions
    norm_epsilon: float = Field(default=1e-6, gt=0)
    tied: bool = True  # use the embedding as the output matrix

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            raise BlockError(
                "num_heads must be a multiple of num_key_value_heads, found num_heads "
                f"{self.num_heads} and num_key_value_heads {self.num_key_value_heads}",
                {"num_key_value_heads": math.gcd(self.num_heads, self.num_key_value_heads)},
            )
        return self

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        return _LLAMA, _QWEN3

    def layer(self, number: int) -> Layer:
        plain = super().layer(number)
        return replace(
            plain,
            head_size=self.head_size or plain.head_size,
            epsilon=self.norm_epsilon,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            biases=False,
            gated=True,
            rms=True,
            query_key_norm=self.query_key_norm,
            rotary_base=self.rotary_base,
        )


# In transformers.


def _write_keys(config: LlamaConfig) -> dict[str, Any]:
    layer = config.layer(0)
    return {
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_size,
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


def _read_values(data: Mapping[str, Any]) -> dict[str, Any]:
    heads, shared = data["num_attention_heads"], data.get("num_key_value_heads")
    size = data.get("head_dim", 128 if data["model_type"] == "qwen3" else None)
    return {
        "num_key_value_heads": None if shared == heads else shared,
        "head_size": None if size is None or size * heads == data["hidden_size"] else size,
        "rotary_base": read_rotary_base(data, "rope_theta", 10_000.0),
    }


def _check_head_size(model: Any, config: LlamaConfig) -> None:
    if not config.query_key_norm and config.hidden_size % config.num_heads:
        raise ConfigError(
            f"model.hidden_size is {config.hidden_size}, and LlamaForCausalLM takes only multiples "
            f"of num_heads, here {config.num_heads}, whatever head_size is; it cannot be exported"
        )


_LLAMA = Counterpart(
    model_type="llama",
    when={"query_key_norm": False},
    architectures={"next": Architecture("LlamaForCausalLM")},
    prefix="model.",
    names={
        "llama.token_embedding": "model.embed_tokens",
        f"{_BLOCK}.attention.query_key_value": tuple(
            f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"
        ),
        f"{_BLOCK}.attention.output": f"{_LAYER}.self_attn.o_proj",
        f"{_BLOCK}.attention.query_norm": f"{_LAYER}.self_attn.q_norm",
        f"{_BLOCK}.attention.key_norm": f"{_LAYER}.self_attn.k_norm",
        f"{_BLOCK}.attention_norm": f"{_LAYER}.input_layernorm",
        f"{_BLOCK}.mlp_norm": f"{_LAYER}.post_attention_layernorm",
        f"{_BLOCK}.mlp.expand": (f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
        f"{_BLOCK}.mlp.contract": f"{_LAYER}.mlp.down_proj",
        "llama.transformer.final_norm": "model.norm",
        "output": "lm_head",
    },
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    defaults={
        "initializer_range": ("initializer_range", 0.02),
        "norm_epsilon": ("rms_norm_eps", 1e-6),
        "tied": ("tie_word_embeddings", False),
    },
    dropouts=("attention_dropout",),
    settings={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
    keys=_write_keys,
    values=_read_values,
    check=_check_head_size,
)
_QWEN3 = replace(
    _LLAMA,
    model_type="qwen3",
    when={"query_key_norm": True},
    architectures={"next": Architecture("Qwen3ForCausalLM")},
    settings={**_LLAMA.settings, "use_sliding_window": (False,)},
)
