"""The same weights and shapes under the names of Hugging Face transformers, both ways.

    ours                              theirs
    BertForPretraining                bert: BertForPreTraining; without NSP BertForMaskedLM
    HeadedEncoder of a BERT           bert, by its head:
        sequence, pooling cls             BertForSequenceClassification
        token                             BertForTokenClassification
        span                              BertForQuestionAnswering
        choice, pooling cls               BertForMultipleChoice
    BertLeftToRight                   bert: BertLMHeadModel, out only
    GptForPretraining, pre-norm       gpt2: GPT2LMHeadModel
    GptForPretraining, post-norm      openai-gpt: OpenAIGPTLMHeadModel

What differs beside names: their BERT has queries, keys and values in three matrices, their NSP has
the classes the other way, and their GPT stores each matrix transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rungwise.models.bert import NUM_SEGMENTS, BertConfig
from rungwise.models.gpt import GptConfig

ModelType = Literal["bert", "gpt2", "openai-gpt"]
Change = Literal["none", "transposed", "reversed", "split"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
FILES = (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG)
# The class of transformers that finds each of the classes that are written.
AUTO_CLASSES: Mapping[str, str] = {
    "BertForPreTraining": "AutoModelForPreTraining",
    "BertForMaskedLM": "AutoModelForMaskedLM",
    "BertForSequenceClassification": "AutoModelForSequenceClassification",
    "BertForTokenClassification": "AutoModelForTokenClassification",
    "BertForQuestionAnswering": "AutoModelForQuestionAnswering",
    "BertForMultipleChoice": "AutoModelForMultipleChoice",
    "BertLMHeadModel": "AutoModelForCausalLM",
    "GPT2LMHeadModel": "AutoModelForCausalLM",
    "OpenAIGPTLMHeadModel": "AutoModelForCausalLM",
}
ENCODER = "encoder"  # the group that every checkpoint must have


@dataclass(frozen=True)
class Entry:
    """One tensor of ours. `group` is what stands or is left out as a whole."""

    ours: str
    theirs: tuple[str, ...]
    change: Change
    group: str

    def to_theirs(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The tensors of `theirs`, in their order."""
        if self.change == "split":
            return tensor.chunk(len(self.theirs))
        return (self._turned(tensor),)

    def to_ours(self, tensors: list[Tensor]) -> Tensor:
        """The inverse of `to_theirs`."""
        return torch.cat(tensors) if self.change == "split" else self._turned(tensors[0])

    def _turned(self, tensor: Tensor) -> Tensor:
        """Transposed or reversed, each of which undoes itself."""
        if self.change == "transposed":
            return tensor.T
        return tensor.flip(0) if self.change == "reversed" else tensor


@dataclass(frozen=True)
class Setting:
    """A key of their config.json whose value ours cannot vary; `missing` is what absence means."""

    key: str
    allowed: tuple[Any, ...]
    missing: Any


NO_ROTARY = tuple(Setting(key, (None,), None) for key in ("rope_parameters", "rope_scaling"))
SETTINGS: Mapping[ModelType, tuple[Setting, ...]] = {
    "bert": (
        Setting("position_embedding_type", ("absolute", None), None),
        Setting("hidden_act", ("gelu",), "gelu"),
        Setting("layer_norm_eps", (BertConfig.layer_norm_epsilon,), BertConfig.layer_norm_epsilon),
        Setting("type_vocab_size", (NUM_SEGMENTS,), 2),
        Setting("is_decoder", (False,), False),
        Setting("add_cross_attention", (False,), False),
        Setting("tie_word_embeddings", (True,), True),
        *NO_ROTARY,
    ),
    "gpt2": (
        Setting("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new"),
        Setting(
            "layer_norm_epsilon", (GptConfig.layer_norm_epsilon,), GptConfig.layer_norm_epsilon
        ),
        Setting("scale_attn_weights", (True,), True),
        Setting("scale_attn_by_inverse_layer_idx", (False,), False),
        Setting("add_cross_attention", (False,), False),
        Setting("tie_word_embeddings", (True,), True),
        *NO_ROTARY,
    ),
    "openai-gpt": (
        Setting("afn", ("gelu", "gelu_new"), "gelu"),  # their "gelu" of this family is tanh too
        Setting(
            "layer_norm_epsilon", (GptConfig.layer_norm_epsilon,), GptConfig.layer_norm_epsilon
        ),
        Setting("tie_word_embeddings", (True,), True),
        *NO_ROTARY,
    ),
}

# Keys of their config.json by ours.
SIZES: Mapping[ModelType, Mapping[str, str]] = {
    "bert": {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
    },
    "gpt2": {
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
    },
}
SIZES = {**SIZES, "openai-gpt": SIZES["gpt2"]}
DROPOUTS: Mapping[ModelType, tuple[str, ...]] = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "openai-gpt": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}
# In front of every tensor of the encoder, unless only the encoder was saved.
PREFIX: Mapping[ModelType, str]
PREFIX = {"bert": "bert.", "gpt2": "transformer.", "openai-gpt": "transformer."}
# A second copy of what is tied: it must be the same, and is not kept.
TIED: Mapping[ModelType, Mapping[str, str]] = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "gpt2": {"lm_head.weight": "transformer.wte.weight"},
    "openai-gpt": {"lm_head.weight": "transformer.tokens_embed.weight"},
}
# Masks and counters that old versions saved.
BUFFERS = ("embeddings.position_ids", ".attn.bias", ".attn.masked_bias", ".position_ids")


def model_type(config: BertConfig | GptConfig) -> ModelType:
    """Their `model_type` of this config."""
    if isinstance(config, BertConfig):
        return "bert"
    return "gpt2" if config.norm == "pre" else "openai-gpt"


def entries(config: BertConfig | GptConfig) -> list[Entry]:
    """Every tensor that a model of this config can have, heads included."""
    return list(_bert_entries(config) if isinstance(config, BertConfig) else _gpt_entries(config))


def headed_names(
    state: Mapping[str, Tensor], head: Literal["classifier", "qa_outputs"]
) -> dict[str, Tensor]:
    """The tensors of a HeadedEncoder under the names of `entries`."""
    ours = {"encoder.": "", "head.pool.dense.": "bert.pooler.", "head.linear.": f"{head}."}
    named: dict[str, Tensor] = {}
    for name, tensor in state.items():
        before = next(prefix for prefix in ours if name.startswith(prefix))
        named[ours[before] + name.removeprefix(before)] = tensor
    return named


def _bert_entries(config: BertConfig) -> Iterator[Entry]:
    for ours, theirs in (("token", "word"), ("segment", "token_type"), ("position", "position")):
        name = f"bert.embeddings.{theirs}_embeddings.weight"
        yield Entry(f"bert.{ours}_embedding.weight", (name,), "none", ENCODER)
    yield from _both("bert.embedding_norm", "bert.embeddings.LayerNorm")
    for index in range(config.num_layers):
        block, layer = f"bert.transformer.blocks.{index}", f"bert.encoder.layer.{index}"
        for kind in ("weight", "bias"):
            names = tuple(f"{layer}.attention.self.{x}.{kind}" for x in ("query", "key", "value"))
            yield Entry(f"{block}.attention.query_key_value.{kind}", names, "split", ENCODER)
        yield from _both(f"{block}.attention.output", f"{layer}.attention.output.dense")
        yield from _both(f"{block}.attention_norm", f"{layer}.attention.output.LayerNorm")
        yield from _both(f"{block}.mlp.expand", f"{layer}.intermediate.dense")
        yield from _both(f"{block}.mlp.contract", f"{layer}.output.dense")
        yield from _both(f"{block}.mlp_norm", f"{layer}.output.LayerNorm")
    yield from _both("bert.pooler", "bert.pooler.dense", group="pooler")
    yield from _both("mlm.dense", "cls.predictions.transform.dense", group="mlm")
    yield from _both("mlm.norm", "cls.predictions.transform.LayerNorm", group="mlm")
    yield Entry("mlm.bias", ("cls.predictions.bias",), "none", "mlm")
    yield from _both("nsp", "cls.seq_relationship", "reversed", group="nsp")
    yield from _both("classifier", "classifier", group="classifier")
    yield from _both("qa_outputs", "qa_outputs", group="qa_outputs")


def _gpt_entries(config: GptConfig) -> Iterator[Entry]:
    tokens, positions = (
        ("wte", "wpe") if config.norm == "pre" else ("tokens_embed", "positions_embed")
    )
    for ours, theirs in (("token", tokens), ("position", positions)):
        name = f"transformer.{theirs}.weight"
        yield Entry(f"gpt.{ours}_embedding.weight", (name,), "none", ENCODER)
    for index in range(config.num_layers):
        block, layer = f"gpt.transformer.blocks.{index}", f"transformer.h.{index}"
        yield from _both(f"{block}.attention_norm", f"{layer}.ln_1")
        yield from _both(f"{block}.attention.query_key_value", f"{layer}.attn.c_attn", "transposed")
        yield from _both(f"{block}.attention.output", f"{layer}.attn.c_proj", "transposed")
        yield from _both(f"{block}.mlp_norm", f"{layer}.ln_2")
        yield from _both(f"{block}.mlp.expand", f"{layer}.mlp.c_fc", "transposed")
        yield from _both(f"{block}.mlp.contract", f"{layer}.mlp.c_proj", "transposed")
    if config.norm == "pre":
        yield from _both("gpt.transformer.final_norm", "transformer.ln_f")


def _both(ours: str, theirs: str, change: Change = "none", group: str = ENCODER) -> Iterator[Entry]:
    """Weight and bias; a bias is never transposed."""
    yield Entry(f"{ours}.weight", (f"{theirs}.weight",), change, group)
    bias: Change = "none" if change == "transposed" else change
    yield Entry(f"{ours}.bias", (f"{theirs}.bias",), bias, group)
