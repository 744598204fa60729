"""Encoders of sentences as folders that sentence-transformers loads.

    words, pooling mean    StaticEmbedding, and a Dense for each feed-forward layer
    transformer            EsmModel of transformers, whose blocks normalise first and which adds
                           positions to embeddings without a norm, and Pooling

Its library pools no sums, and has no recurrent network that reads our tokenizers. What an objective
needs besides the encoder is left out.
"""

from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from rungwise.core.errors import ConfigError
from rungwise.models.families.sentence_encoder import (
    SentenceBody,
    SentenceEncoderConfig,
    SentenceModel,
)
from rungwise.models.transformer.block import sinusoid_positions
from rungwise.serving.hugging_face.modules import (
    read_tokenizer,
    write_json,
    write_modules,
    write_pooling,
)
from rungwise.serving.hugging_face.names import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS

_LONGEST = 512  # tokens of a text; the formula of the positions has no end, their table has
_POOLING = {
    "mean": "mean_tokens",
    "root": "mean_sqrt_len_tokens",
    "max": "max_tokens",
    "last": "lasttoken",
}
_BLOCK = {  # the norms and matrices of a block, by their names
    "attention.LayerNorm": "attention_norm",
    "attention.output.dense": "attention.output",
    "LayerNorm": "mlp_norm",
    "intermediate.dense": "mlp.expand",
    "output.dense": "mlp.contract",
}


def export_sentence_encoder(
    model: SentenceModel, config: SentenceEncoderConfig, tokenizer_file: Path, folder: Path
) -> None:
    """Write the encoder and its tokenizer to `folder`, created if needed. Raises ConfigError for an
    encoder that sentence-transformers cannot hold, DataError for a tokenizer of another size."""
    if misfit := _find_misfit(model, config):
        raise ConfigError(
            f"sentence-transformers has no module for {misfit}; `rungwise predict` with --to "
            "FILE.npy writes the vectors of texts"
        )
    tokenizer, roles = read_tokenizer(tokenizer_file, model.body.vocab_size, masked=False)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER))
    if config.network == "words":
        modules = _write_words(model, folder)
    else:
        padding = tokenizer.token_to_id(roles["pad_token"]) or 0
        save_file(_esm_tensors(model, config, padding), folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / CONFIG, _esm_config(model, config, padding))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _LONGEST,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
        }
        write_json(folder / TOKENIZER_CONFIG, {**settings, **roles})
        modules = write_pooling(
            folder, config.hidden_size, _LONGEST, _POOLING[_body(model).pooling]
        )
    write_modules(folder, modules)


def _body(model: SentenceModel) -> SentenceBody:
    return cast(SentenceBody, model.body)


def _find_misfit(model: SentenceModel, config: SentenceEncoderConfig) -> str:
    """Name the part that sentence-transformers cannot hold; empty if it can hold the encoder."""
    pooling = _body(model).pooling
    if model.other is not None:
        return "the vectors of two encoders side by side, each of length 1, as of quick_thoughts"
    if config.cell:
        return f"network {config.network} on these tokens"
    if pooling not in (("mean",) if config.network == "words" else _POOLING):
        return f"network {config.network} with pooling {pooling}"
    return ""


def _write_words(model: SentenceModel, folder: Path) -> dict[str, str]:
    """Write word vectors and layers; return the class of each folder of the modules."""
    modules = {"": "StaticEmbedding"}
    save_file({"embedding.weight": _word_vectors(model)}, folder / WEIGHTS)
    for number, layer in enumerate(_body(model).layers, start=1):
        name = f"{number}_Dense"
        modules[name] = "Dense"
        (folder / name).mkdir(exist_ok=True)
        save_file(
            {f"linear.{key}": v for key, v in layer.state_dict().items()}, folder / name / WEIGHTS
        )
        weight = cast(Tensor, layer.weight)
        settings = {
            "out_features": weight.shape[0],
            "in_features": weight.shape[1],
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        write_json(folder / name / CONFIG, settings)
    return modules


def _word_vectors(model: SentenceModel) -> Tensor:
    body = model.body
    return body.token_embedding.weight.detach()[: body.vocab_size].float().contiguous()


def _esm_config(
    model: SentenceModel, config: SentenceEncoderConfig, padding: int
) -> dict[str, object]:
    [block, *_] = config.blocks()
    return {
        "architectures": ["EsmModel"],
        "model_type": "esm",
        "vocab_size": model.body.vocab_size,
        "pad_token_id": padding,
        "hidden_size": block.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": block.num_heads,
        "intermediate_size": block.intermediate_size,
        "layer_norm_eps": block.epsilon,
        "max_position_embeddings": padding + 1 + _LONGEST,
        "position_embedding_type": "absolute",
        "emb_layer_norm_before": False,
        "token_dropout": False,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
    }


def _esm_tensors(
    model: SentenceModel, config: SentenceEncoderConfig, padding: int
) -> dict[str, Tensor]:
    """The tensors by their names there; those of heads that nothing reads are zeros."""
    D, N = config.hidden_size, config.num_layers
    state = {name: value.detach().float() for name, value in model.body.state_dict().items()}
    places_TD = sinusoid_positions(_LONGEST, D)
    tensors = {
        "embeddings.word_embeddings.weight": _word_vectors(model) * D**0.5,
        # Their positions begin behind the number of the padding token.
        "embeddings.position_embeddings.weight": torch.cat(
            [torch.zeros(padding + 1, D), places_TD]
        ),
        "pooler.dense.weight": torch.zeros(D, D),
        "pooler.dense.bias": torch.zeros(D),
        "contact_head.regression.weight": torch.zeros(1, N * config.num_heads),
        "contact_head.regression.bias": torch.zeros(1),
    }
    for kind in ("weight", "bias"):
        tensors[f"encoder.emb_layer_norm_after.{kind}"] = state[f"transformer.final_norm.{kind}"]
        for number in range(N):
            own, stored_layer = f"transformer.blocks.{number}.", f"encoder.layer.{number}."
            for name, stored in _BLOCK.items():
                tensors[f"{stored_layer}{name}.{kind}"] = state[f"{own}{stored}.{kind}"]
            parts = state[f"{own}attention.query_key_value.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                tensors[f"{stored_layer}attention.self.{name}.{kind}"] = part.clone()
    return tensors
