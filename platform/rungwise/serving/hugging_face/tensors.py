"""Every tensor of a model under our name and theirs, and the conversion between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rungwise.finetune.heads import Head, SequenceHead, SpanHead
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig
from rungwise.serving.hugging_face.names import Known

Change = Literal["none", "transposed", "reversed", "split", "last"]
ENCODER = "encoder"  # the group that every checkpoint must have


@dataclass(frozen=True)
class Entry:
    """One tensor of ours. A `group` is present or absent as a whole. `sizes`: for "split", the rows
    of each of theirs; for "last", how many of their last rows are ours (writing.py adds the first).
    """

    ours: str
    theirs: tuple[str, ...]
    change: Change = "none"
    group: str = ENCODER
    sizes: tuple[int, ...] = ()

    def to_theirs(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The tensors of `theirs`, in their order."""
        if self.change == "split":
            return tensor.split(self.sizes)
        return (self._turned(tensor),)

    def to_ours(self, tensors: list[Tensor]) -> Tensor:
        """The inverse of `to_theirs`."""
        if self.change == "last":
            return tensors[0][-self.sizes[0] :]
        return torch.cat(tensors) if self.change == "split" else self._turned(tensors[0])

    def _turned(self, tensor: Tensor) -> Tensor:
        """Transpose or reverse; each is its own inverse."""
        if self.change == "transposed":
            return tensor.T
        return tensor.flip(0) if self.change == "reversed" else tensor


def entries(config: Known) -> list[Entry]:
    """Every tensor that a model of this config can have, heads included."""
    match config:
        case BertConfig():
            make = _bert_entries if config.norm == "post" else _pre_norm_bert_entries
            return list(make(config))
        case GptConfig():
            return list(_gpt_entries(config))
        case ModernBertConfig():
            return list(_modern_bert_entries(config))
        case LlamaConfig():
            return list(_llama_entries(config))


def headed_names(state: Mapping[str, Tensor], head: Head, config: Known) -> dict[str, Tensor]:
    """The tensors of a HeadedEncoder under the names of `entries`."""
    pool, last = "bert.pooler.", "classifier."
    if isinstance(head, SpanHead):
        last = "qa_outputs."
    elif isinstance(head, SequenceHead) and isinstance(config, BertConfig) and config.norm == "pre":
        pool, last = "classifier.dense.", "classifier.out_proj."  # RoBERTa has no pooler here
    ours = {"encoder.": "", "head.pool.dense.": pool, "head.linear.": last}
    named: dict[str, Tensor] = {}
    for name, tensor in state.items():
        before = next(prefix for prefix in ours if name.startswith(prefix))
        named[ours[before] + name.removeprefix(before)] = tensor
    return named


def _bert_entries(config: BertConfig) -> Iterator[Entry]:
    yield from _bert_body(config, "bert", ("attention.output", "output"))
    yield from _both("mlm.dense", "cls.predictions.transform.dense", group="mlm")
    yield from _both("mlm.norm", "cls.predictions.transform.LayerNorm", group="mlm")
    yield Entry("mlm.bias", ("cls.predictions.bias",), "none", "mlm")
    yield from _both("nsp", "cls.seq_relationship", "reversed", group="nsp")
    yield from _both("classifier", "classifier", group="classifier")
    yield from _both("qa_outputs", "qa_outputs", group="qa_outputs")


def _pre_norm_bert_entries(config: BertConfig) -> Iterator[Entry]:
    """Pre-norm, as RoBERTa-PreLayerNorm, which counts positions from the id of [PAD] on."""
    yield from _bert_body(config, "roberta_prelayernorm", ("attention", "intermediate"), "last")
    yield from _both("bert.transformer.final_norm", "roberta_prelayernorm.LayerNorm")
    yield from _both("mlm.dense", "lm_head.dense", group="mlm")
    yield from _both("mlm.norm", "lm_head.layer_norm", group="mlm")
    yield Entry("mlm.bias", ("lm_head.bias",), "none", "mlm")
    yield from _both("classifier", "classifier", group="classifier")
    for part in ("dense", "out_proj"):
        yield from _both(f"classifier.{part}", f"classifier.{part}", group="sequence")
    yield from _both("qa_outputs", "qa_outputs", group="qa_outputs")


def _bert_body(
    config: BertConfig, prefix: str, norms: tuple[str, str], positions: Change = "none"
) -> Iterator[Entry]:
    """Embeddings, layers and pooler; `norms` are the parts that hold a layer's two norms."""
    for ours, theirs in (("token", "word"), ("segment", "token_type"), ("position", "position")):
        name = f"{prefix}.embeddings.{theirs}_embeddings.weight"
        change = positions if ours == "position" else "none"
        rows = (config.max_position_embeddings,)
        yield Entry(f"bert.{ours}_embedding.weight", (name,), change, sizes=rows)
    yield from _both("bert.embedding_norm", f"{prefix}.embeddings.LayerNorm")
    for index in range(config.num_layers):
        block, layer = f"bert.transformer.blocks.{index}", f"{prefix}.encoder.layer.{index}"
        for kind in ("weight", "bias"):
            names = tuple(f"{layer}.attention.self.{x}.{kind}" for x in ("query", "key", "value"))
            sizes = config.layer(index).attention_sizes
            yield Entry(f"{block}.attention.query_key_value.{kind}", names, "split", sizes=sizes)
        yield from _both(f"{block}.attention.output", f"{layer}.attention.output.dense")
        yield from _both(f"{block}.attention_norm", f"{layer}.{norms[0]}.LayerNorm")
        yield from _both(f"{block}.mlp.expand", f"{layer}.intermediate.dense")
        yield from _both(f"{block}.mlp.contract", f"{layer}.output.dense")
        yield from _both(f"{block}.mlp_norm", f"{layer}.{norms[1]}.LayerNorm")
    yield from _both("bert.pooler", f"{prefix}.pooler.dense", group="pooler")


def _gpt_entries(config: GptConfig) -> Iterator[Entry]:
    tokens, positions = (
        ("wte", "wpe") if config.norm == "pre" else ("tokens_embed", "positions_embed")
    )
    for ours, theirs in (("token", tokens), ("position", positions)):
        name = f"transformer.{theirs}.weight"
        yield Entry(f"gpt.{ours}_embedding.weight", (name,))
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


def _modern_bert_entries(config: ModernBertConfig) -> Iterator[Entry]:
    ours, theirs = "modern_bert.transformer", "model"
    yield from _weights("modern_bert.token_embedding", "model.embeddings.tok_embeddings")
    yield from _weights("modern_bert.embedding_norm", "model.embeddings.norm")
    for index in range(config.num_layers):
        block, layer = f"{ours}.blocks.{index}", f"{theirs}.layers.{index}"
        if config.layer(index).first_norm:
            yield from _weights(f"{block}.attention_norm", f"{layer}.attn_norm")
        yield from _weights(f"{block}.attention.query_key_value", f"{layer}.attn.Wqkv")
        yield from _weights(f"{block}.attention.output", f"{layer}.attn.Wo")
        yield from _weights(f"{block}.mlp_norm", f"{layer}.mlp_norm")
        yield from _weights(f"{block}.mlp.expand", f"{layer}.mlp.Wi")
        yield from _weights(f"{block}.mlp.contract", f"{layer}.mlp.Wo")
    yield from _weights(f"{ours}.final_norm", f"{theirs}.final_norm")
    yield from _weights("mlm.dense", "head.dense", group="mlm")
    yield from _weights("mlm.norm", "head.norm", group="mlm")
    yield Entry("mlm.bias", ("decoder.bias",), group="mlm")


def _llama_entries(config: LlamaConfig) -> Iterator[Entry]:
    yield from _weights("llama.token_embedding", "model.embed_tokens")
    for index in range(config.num_layers):
        made = config.layer(index)
        block, layer = f"llama.transformer.blocks.{index}", f"model.layers.{index}"
        attention, theirs = f"{block}.attention", f"{layer}.self_attn"
        names = [f"{theirs}.{part}_proj" for part in "qkv"]
        yield from _weights(f"{attention}.query_key_value", *names, sizes=made.attention_sizes)
        yield from _weights(f"{attention}.output", f"{theirs}.o_proj")
        if made.query_key_norm:
            yield from _weights(f"{attention}.query_norm", f"{theirs}.q_norm")
            yield from _weights(f"{attention}.key_norm", f"{theirs}.k_norm")
        yield from _weights(f"{block}.attention_norm", f"{layer}.input_layernorm")
        yield from _weights(f"{block}.mlp_norm", f"{layer}.post_attention_layernorm")
        both = (made.intermediate_size, made.intermediate_size)
        names = [f"{layer}.mlp.{part}_proj" for part in ("gate", "up")]
        yield from _weights(f"{block}.mlp.expand", *names, sizes=both)
        yield from _weights(f"{block}.mlp.contract", f"{layer}.mlp.down_proj")
    yield from _weights("llama.transformer.final_norm", "model.norm")
    if not config.tied:
        yield from _weights("output", "lm_head", group="output")


def _weights(
    ours: str, *theirs: str, group: str = ENCODER, sizes: tuple[int, ...] = ()
) -> Iterator[Entry]:
    """The weight of a module without bias, split over several of theirs if there are `sizes`."""
    change: Change = "split" if sizes else "none"
    names = tuple(f"{name}.weight" for name in theirs)
    yield Entry(f"{ours}.weight", names, change, group, sizes)


def _both(ours: str, theirs: str, change: Change = "none", group: str = ENCODER) -> Iterator[Entry]:
    """Weight and bias; a bias is never transposed."""
    yield Entry(f"{ours}.weight", (f"{theirs}.weight",), change, group)
    bias: Change = "none" if change == "transposed" else change
    yield Entry(f"{ours}.bias", (f"{theirs}.bias",), bias, group)
