"""GPT: a causal Transformer that predicts the next token.

    ids ──> token + position ──> causal Transformer ──> hidden (B, T, D) ──> logits (B, T, V), tied

GPT-1 (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training") has the
post-norm block of Vaswani et al.; GPT-2 (Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners") moves LayerNorm to the input of each sublayer, adds one at the end, and scales
the initial weights of residual outputs by 1/sqrt(2 · num_layers). Attention does not cross the
documents of a packed block unless `crosses_documents` makes it one text, as in GPT-3 (Brown et al.
2020, arXiv:2005.14165, appendix B).

Shapes: B batch, T sequence, D hidden, V vocabulary.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from rungwise.core.errors import ConfigError
from rungwise.core.tokens import SpecialIds
from rungwise.models.counterpart import Architecture, Counterpart
from rungwise.models.family import TransformerFamily
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.trained.language_models import CausalModel
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    Transformer,
    initialise,
    look_up_positions,
)
from rungwise.models.transformer.body import Body, NextTokenModel, TransformerBody


class DecoderFamily(TransformerFamily):
    """A Transformer that reads from left to right and predicts the next token."""

    objectives: ClassVar = (CAUSAL,)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CausalModel:
        return CausalModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the causal stack and the output: stack_flops + 6·D·V."""
        return float(self.stack_flops(T, causal=True) + 6 * self.hidden_size * V)


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

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return GptForPretraining(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Gpt(self, vocab_size)


class Gpt(TransformerBody):
    """The decoder without its output. It ignores segments: the delimiter ends a text."""

    name: ClassVar[str] = "gpt"

    def __init__(self, config: GptConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.hidden_size, config.dropout)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.transformer = Transformer(config.blocks(), causal=True)
        initialise(self, config.initializer_range, truncated=False)
        if config.norm == "pre":
            self.transformer.scale_residuals()

    def embed(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        position_BTD = look_up_positions(self.position_embedding, ids_BT.shape[1], positions_BT)
        return self.dropout(self.token_embedding(ids_BT) + position_BTD)

    def embeddings(self) -> list[nn.Module]:
        return [self.token_embedding, self.position_embedding]


class GptForPretraining(NextTokenModel):
    """GPT with its output."""

    gpt: Gpt

    def __init__(self, config: GptConfig, vocab_size: int) -> None:
        super().__init__(Gpt(config, vocab_size))
        self.crosses_documents = config.crosses_documents

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        if self.crosses_documents:
            return super().states(ids_BT)
        return super().states(ids_BT, where)


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
