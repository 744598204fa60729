"""The decoder after Llama (Touvron et al. 2023, arXiv:2302.13971) and Qwen3 (Yang et al. 2025,
arXiv:2505.09388): GPT with RMSNorm, SwiGLU, rotary positions and no biases.

    ids ──> token ──> causal pre-norm Transformer ──> hidden (B, T, D) ──> logits (B, T, V)

Residual outputs are scaled at initialisation as in GPT-2.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.core.errors import BlockError, ConfigError
from rungwise.models.counterpart import Architecture, Counterpart, read_rotary_base
from rungwise.models.families.gpt import DecoderFamily
from rungwise.models.losses.objectives import Objective
from rungwise.models.transformer.block import Activation, Layer, Transformer, initialise
from rungwise.models.transformer.body import Body, NextTokenModel, TransformerBody


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

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return LlamaForPretraining(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Llama(self, vocab_size)


class Llama(TransformerBody):
    """The decoder without its output."""

    name: ClassVar[str] = "llama"

    def __init__(self, config: LlamaConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.hidden_size, config.dropout)
        self.transformer = Transformer(config.blocks(), causal=True)
        initialise(self, config.initializer_range, truncated=False)
        self.transformer.scale_residuals()

    def embed(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        return self.dropout(self.token_embedding(ids_BT))

    def embeddings(self) -> list[nn.Module]:
        return [self.token_embedding]


class LlamaForPretraining(NextTokenModel):
    """Llama with its output: the token embedding, or a matrix of its own."""

    llama: Llama

    def __init__(self, config: LlamaConfig, vocab_size: int) -> None:
        body = Llama(config, vocab_size)
        super().__init__(body)
        bound = config.initializer_range * 3**0.5  # a uniform of the same standard deviation
        self.output = None if config.tied else body.own_output(config.hidden_size, bound)

    def output_table(self) -> Tensor:
        return super().output_table() if self.output is None else self.output.weight


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


_BLOCK, _LAYER = "llama.transformer.blocks.{}", "model.layers.{}"
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
