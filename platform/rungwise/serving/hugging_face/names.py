"""The same weights and shapes under the names of Hugging Face transformers, both ways.

    rungwise                          transformers
    BertForPretraining                bert: BertForPreTraining; without NSP BertForMaskedLM
    HeadedEncoder of a BERT           bert, by its head:
        sequence, pooling cls             BertForSequenceClassification
        token                             BertForTokenClassification
        span                              BertForQuestionAnswering
        choice, pooling cls               BertForMultipleChoice
    BertLeftToRight                   bert: BertLMHeadModel, export only
    any of these, pre-norm            roberta-prelayernorm: RobertaPreLayerNormFor... the same head,
                                      MaskedLM (without an NSP head) or CausalLM
    GptForPretraining, pre-norm       gpt2: GPT2LMHeadModel
    GptForPretraining, post-norm      openai-gpt: OpenAIGPTLMHeadModel
    ModernBertForPretraining          modernbert: ModernBertForMaskedLM
    LlamaForPretraining               llama: LlamaForCausalLM; with query_key_norm
                                      qwen3: Qwen3ForCausalLM
    SentenceEncoder                   bert: BertModel, roberta-prelayernorm: the same,
                                      modernbert: ModernBertModel, and the files of
                                      sentence-transformers, export only

This module maps configs, tensors.py tensors. Apart from names, their BERT and Llama have queries,
keys and values in three matrices, their NSP classes are in reverse order, and their GPT stores each
matrix transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rungwise.models.families.bert import NUM_SEGMENTS, BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig

ModelType = Literal[
    "bert", "roberta-prelayernorm", "gpt2", "openai-gpt", "modernbert", "llama", "qwen3"
]
Known = BertConfig | GptConfig | ModernBertConfig | LlamaConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # a pickle, of older versions of transformers
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
INDEX = ".index.json"  # ends the name of the file that lists shards
FILES = (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG)
# Additional files of sentence-transformers.
MODULES, SENTENCES, POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling"
# The auto class of transformers that loads each exported class.
AUTO_CLASSES: Mapping[str, str] = {
    "BertForPreTraining": "AutoModelForPreTraining",
    "BertLMHeadModel": "AutoModelForCausalLM",
    "RobertaPreLayerNormForCausalLM": "AutoModelForCausalLM",
    **{
        f"{family}For{head}": f"AutoModelFor{head}"
        for family in ("Bert", "RobertaPreLayerNorm")
        for head in (
            *("MaskedLM", "SequenceClassification", "TokenClassification"),
            *("QuestionAnswering", "MultipleChoice"),
        )
    },
    "GPT2LMHeadModel": "AutoModelForCausalLM",
    "OpenAIGPTLMHeadModel": "AutoModelForCausalLM",
    "ModernBertForMaskedLM": "AutoModelForMaskedLM",
    "LlamaForCausalLM": "AutoModelForCausalLM",
    "Qwen3ForCausalLM": "AutoModelForCausalLM",
    "BertModel": "AutoModel",
    "RobertaPreLayerNormModel": "AutoModel",
    "ModernBertModel": "AutoModel",
}


# Keys of their config.json that are fixed here, with the values that are allowed. If a key is
# missing, the first value holds.
_NO_ROTARY = {"rope_parameters": (None,), "rope_scaling": (None,)}
_TIED, _NO_CROSS = {"tie_word_embeddings": (True,)}, {"add_cross_attention": (False,)}
_GPT_NORM = {"layer_norm_epsilon": (GptConfig.layer_norm_epsilon,)}
_BERT_SETTINGS = {
    "position_embedding_type": (None, "absolute"),
    "hidden_act": ("gelu",),
    "layer_norm_eps": (BertConfig.layer_norm_epsilon,),
    "type_vocab_size": (NUM_SEGMENTS,),
    "is_decoder": (False,),
    **_NO_CROSS,
    **_TIED,
    **_NO_ROTARY,
}
_LLAMA_SETTINGS = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
SETTINGS: Mapping[ModelType, Mapping[str, tuple[Any, ...]]] = {
    "bert": _BERT_SETTINGS,
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        **_GPT_NORM,
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        **_NO_CROSS,
        **_TIED,
        **_NO_ROTARY,
    },
    # The "gelu" of this family is the tanh form too.
    "openai-gpt": {"afn": ("gelu", "gelu_new"), **_GPT_NORM, **_TIED, **_NO_ROTARY},
    "modernbert": {
        "hidden_activation": ("gelu",),
        "classifier_activation": ("gelu",),
        "norm_eps": (ModernBertConfig.layer_norm_epsilon,),
        "decoder_bias": (True,),
        **{f"{part}_bias": (False,) for part in ("norm", "attention", "mlp", "classifier")},
        **_TIED,
    },
    "llama": _LLAMA_SETTINGS,
    "roberta-prelayernorm": _BERT_SETTINGS,
    "qwen3": {**_LLAMA_SETTINGS, "use_sliding_window": (False,)},
}

# Keys of their config.json by those of rungwise.
_BERT_SIZES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
}
_GPT_SIZES = {
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
}
SIZES: Mapping[ModelType, Mapping[str, str]] = {
    "bert": _BERT_SIZES,
    "roberta-prelayernorm": _BERT_SIZES,
    "gpt2": _GPT_SIZES,
    "openai-gpt": _GPT_SIZES,
    "modernbert": {**_BERT_SIZES, "local_window": "local_attention"},
    "llama": _BERT_SIZES,
    "qwen3": _BERT_SIZES,
}
_BERT_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_GPT_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
DROPOUTS: Mapping[ModelType, tuple[str, ...]] = {
    "bert": _BERT_DROPOUTS,
    "roberta-prelayernorm": _BERT_DROPOUTS,
    "gpt2": _GPT_DROPOUTS,
    "openai-gpt": _GPT_DROPOUTS,
    "modernbert": ("attention_dropout", "embedding_dropout", "mlp_dropout"),
    "llama": ("attention_dropout",),
    "qwen3": ("attention_dropout",),
}
NO_DROPOUT = ("modernbert", "llama", "qwen3")  # if the keys are missing; 0.1 elsewhere
# Prefix of every encoder tensor, unless only the encoder was saved.
PREFIX: Mapping[ModelType, str] = {
    "bert": "bert.",
    "roberta-prelayernorm": "roberta_prelayernorm.",
    **dict.fromkeys(("gpt2", "openai-gpt"), "transformer."),
    **dict.fromkeys(("modernbert", "llama", "qwen3"), "model."),
}
# Heads, which have no prefix.
HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.", "head.", "decoder.")
# Copies of tied tensors: they must be equal, and are dropped.
TIED: Mapping[ModelType, Mapping[str, str]] = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "roberta-prelayernorm": {
        "lm_head.decoder.weight": "roberta_prelayernorm.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    "gpt2": {"lm_head.weight": "transformer.wte.weight"},
    "openai-gpt": {"lm_head.weight": "transformer.tokens_embed.weight"},
    "modernbert": {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    "llama": {"lm_head.weight": "model.embed_tokens.weight"},
    "qwen3": {"lm_head.weight": "model.embed_tokens.weight"},
}
# Masks and counters that old versions saved.
BUFFERS = ("embeddings.position_ids", ".attn.bias", ".attn.masked_bias", ".position_ids")


def model_type(config: Known) -> ModelType:
    """Their `model_type` of this config."""
    match config:
        case BertConfig():
            return "bert" if config.norm == "post" else "roberta-prelayernorm"
        case GptConfig():
            return "gpt2" if config.norm == "pre" else "openai-gpt"
        case ModernBertConfig():
            return "modernbert"
        case LlamaConfig():
            return "qwen3" if config.query_key_norm else "llama"


def is_masked(config: Known) -> bool:
    """Whether rows are framed by [CLS] and [SEP], and some tokens masked."""
    return isinstance(config, BertConfig | ModernBertConfig)


def positions_before(data: Mapping[str, Any]) -> int:
    """How many unused rows their position table has before the first position."""
    padding = data.get("pad_token_id", 1)
    return 1 + (padding or 0) if data["model_type"] == "roberta-prelayernorm" else 0
