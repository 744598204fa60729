"""Every tensor of a model by its name here and in transformers, and the conversion."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig
from rungwise.serving.hugging_face.names import ELECTRA, MODERN_DECODER, Known
from rungwise.tasks.kinds.heads import Head, SequenceHead, SpanHead

Change = Literal["none", "transposed", "reversed", "split", "last"]
ENCODER = "encoder"  # the group that every checkpoint must have


@dataclass(frozen=True)
class Entry:
    """One tensor and its parts in transformers. A `group` is present or absent as a whole. `sizes`:
    for "split", the rows of each part; for "last", how many of the part's last rows the tensor has
    (writing.py adds the first).
    """

    name: str
    parts: tuple[str, ...]
    change: Change = "none"
    group: str = ENCODER
    sizes: tuple[int, ...] = ()

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The tensors of `parts`, in their order."""
        if self.change == "split":
            return tensor.split(self.sizes)
        return (self._turn(tensor),)

    def join(self, tensors: list[Tensor]) -> Tensor:
        """The inverse of `split`."""
        if self.change == "last":
            return tensors[0][-self.sizes[0] :]
        return torch.cat(tensors) if self.change == "split" else self._turn(tensors[0])

    def _turn(self, tensor: Tensor) -> Tensor:
        """Transpose or reverse; each is its own inverse."""
        if self.change == "transposed":
            return tensor.T
        return tensor.flip(0) if self.change == "reversed" else tensor


def list_entries(config: Known, kind: str = "") -> list[Entry]:
    """Every tensor that a model of this config can have, heads included; `kind` is a `model_type`
    that is only exported."""
    match config:
        case BertConfig() if kind == ELECTRA:
            return list(_electra_entries(config))
        case BertConfig():
            make = _bert_entries if config.norm == "post" else _pre_norm_bert_entries
            return list(make(config))
        case GptConfig():
            return list(_gpt_entries(config))
        case ModernBertConfig():
            return list(_modern_bert_entries(config, decodes=kind == MODERN_DECODER))
        case LlamaConfig():
            return list(_llama_entries(config))


def rename_headed(state: Mapping[str, Tensor], head: Head, config: Known) -> dict[str, Tensor]:
    """The tensors of a HeadedEncoder under the names of `list_entries`."""
    pool, last = "bert.pooler.", "classifier."
    if isinstance(head, SpanHead):
        last = "qa_outputs."
    elif isinstance(head, SequenceHead) and isinstance(config, BertConfig) and config.norm == "pre":
        pool, last = "classifier.dense.", "classifier.out_proj."  # RoBERTa has no pooler here
    prefixes = {"encoder.": "", "head.pool.dense.": pool, "head.linear.": last}
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        old = next(prefix for prefix in prefixes if name.startswith(prefix))
        tensors[prefixes[old] + name.removeprefix(old)] = tensor
    return tensors


def _bert_entries(config: BertConfig) -> Iterator[Entry]:
    yield from _bert_body(config, "bert", ("attention.output", "output"))
    yield from _both("mlm.dense", "cls.predictions.transform.dense", group="mlm")
    yield from _both("mlm.norm", "cls.predictions.transform.LayerNorm", group="mlm")
    yield Entry("mlm.bias", ("cls.predictions.bias",), "none", "mlm")
    yield from _both("nsp", "cls.seq_relationship", "reversed", group="nsp")


def _electra_entries(config: BertConfig) -> Iterator[Entry]:
    yield from _bert_body(config, "electra", ("attention.output", "output"))
    for part, name in (("dense", "dense"), ("output", "dense_prediction")):
        yield from _both(f"detector.{part}", f"discriminator_predictions.{name}", group="detector")


def _pre_norm_bert_entries(config: BertConfig) -> Iterator[Entry]:
    """Pre-norm, as RoBERTa-PreLayerNorm, which counts positions from the id of [PAD] on."""
    yield from _bert_body(config, "roberta_prelayernorm", ("attention", "intermediate"), "last")
    yield from _both("bert.transformer.final_norm", "roberta_prelayernorm.LayerNorm")
    yield from _both("mlm.dense", "lm_head.dense", group="mlm")
    yield from _both("mlm.norm", "lm_head.layer_norm", group="mlm")
    yield Entry("mlm.bias", ("lm_head.bias",), "none", "mlm")
    for part in ("dense", "out_proj"):
        yield from _both(f"classifier.{part}", f"classifier.{part}", group="sequence")


def _bert_body(
    config: BertConfig, prefix: str, norms: tuple[str, str], positions: Change = "none"
) -> Iterator[Entry]:
    """All but the pretraining heads; `norms` are the parts that hold a layer's two norms."""
    for kind, part in (("token", "word"), ("segment", "token_type"), ("position", "position")):
        part = f"{prefix}.embeddings.{part}_embeddings.weight"
        change = positions if kind == "position" else "none"
        rows = (config.max_position_embeddings,)
        yield Entry(f"bert.{kind}_embedding.weight", (part,), change, sizes=rows)
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
    for head in ("classifier", "qa_outputs"):
        yield from _both(head, head, group=head)


def _gpt_entries(config: GptConfig) -> Iterator[Entry]:
    tables = ("wte", "wpe") if config.norm == "pre" else ("tokens_embed", "positions_embed")
    for kind, table in zip(("token", "position"), tables, strict=True):
        yield Entry(f"gpt.{kind}_embedding.weight", (f"transformer.{table}.weight",))
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


def _modern_bert_entries(config: ModernBertConfig, decodes: bool = False) -> Iterator[Entry]:
    yield from _weights("modern_bert.token_embedding", "model.embeddings.tok_embeddings")
    yield from _weights("modern_bert.embedding_norm", "model.embeddings.norm")
    for index in range(config.num_layers):
        block, layer = f"modern_bert.transformer.blocks.{index}", f"model.layers.{index}"
        if config.layer(index).first_norm:
            yield from _weights(f"{block}.attention_norm", f"{layer}.attn_norm")
        parts = (
            [f"{layer}.attn.{part}_proj" for part in "qkv"] if decodes else [f"{layer}.attn.Wqkv"]
        )
        sizes = config.layer(index).attention_sizes if decodes else ()
        yield from _weights(f"{block}.attention.query_key_value", *parts, sizes=sizes)
        yield from _weights(f"{block}.attention.output", f"{layer}.attn.Wo")
        yield from _weights(f"{block}.mlp_norm", f"{layer}.mlp_norm")
        yield from _weights(f"{block}.mlp.expand", f"{layer}.mlp.Wi")
        yield from _weights(f"{block}.mlp.contract", f"{layer}.mlp.Wo")
    yield from _weights("modern_bert.transformer.final_norm", "model.final_norm")
    head = "lm_head" if decodes else "head"
    yield from _weights("mlm.dense", f"{head}.dense", group="mlm")
    yield from _weights("mlm.norm", f"{head}.norm", group="mlm")
    yield Entry("mlm.bias", ("decoder.bias",), group="mlm")


def _llama_entries(config: LlamaConfig) -> Iterator[Entry]:
    yield from _weights("llama.token_embedding", "model.embed_tokens")
    for index in range(config.num_layers):
        shape = config.layer(index)
        block, layer = f"llama.transformer.blocks.{index}", f"model.layers.{index}"
        own, other = f"{block}.attention", f"{layer}.self_attn"
        parts = [f"{other}.{part}_proj" for part in "qkv"]
        yield from _weights(f"{own}.query_key_value", *parts, sizes=shape.attention_sizes)
        yield from _weights(f"{own}.output", f"{other}.o_proj")
        if shape.query_key_norm:
            yield from _weights(f"{own}.query_norm", f"{other}.q_norm")
            yield from _weights(f"{own}.key_norm", f"{other}.k_norm")
        yield from _weights(f"{block}.attention_norm", f"{layer}.input_layernorm")
        yield from _weights(f"{block}.mlp_norm", f"{layer}.post_attention_layernorm")
        sizes = (shape.intermediate_size, shape.intermediate_size)
        parts = [f"{layer}.mlp.{part}_proj" for part in ("gate", "up")]
        yield from _weights(f"{block}.mlp.expand", *parts, sizes=sizes)
        yield from _weights(f"{block}.mlp.contract", f"{layer}.mlp.down_proj")
    yield from _weights("llama.transformer.final_norm", "model.norm")
    if not config.tied:
        yield from _weights("output", "lm_head", group="output")


def _weights(
    name: str, *parts: str, group: str = ENCODER, sizes: tuple[int, ...] = ()
) -> Iterator[Entry]:
    """The weight of a module without bias, split over several parts if there are `sizes`."""
    change: Change = "split" if sizes else "none"
    parts = tuple(f"{part}.weight" for part in parts)
    yield Entry(f"{name}.weight", parts, change, group, sizes)


def _both(name: str, part: str, change: Change = "none", group: str = ENCODER) -> Iterator[Entry]:
    """Weight and bias; a bias is never transposed."""
    yield Entry(f"{name}.weight", (f"{part}.weight",), change, group)
    bias: Change = "none" if change == "transposed" else change
    yield Entry(f"{name}.bias", (f"{part}.bias",), bias, group)
