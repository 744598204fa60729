"""The same weights and shapes under the names of Hugging Face transformers, both ways.

    rungwise                          transformers
    BertForPretraining                bert: BertForPreTraining; without NSP BertForMaskedLM
    HeadedEncoder of a BERT           bert, by its head:
        sequence, pooling cls             BertForSequenceClassification
        token                             BertForTokenClassification
        span                              BertForQuestionAnswering
        choice, pooling cls               BertForMultipleChoice
    LeftToRight of a BERT             bert: BertLMHeadModel, export only
    any of these, pre-norm            roberta-prelayernorm: RobertaPreLayerNormFor... the same head,
                                      MaskedLM (without an NSP head) or CausalLM
    GptForPretraining, pre-norm       gpt2: GPT2LMHeadModel
    GptForPretraining, post-norm      openai-gpt: OpenAIGPTLMHeadModel
    ModernBertForPretraining          modernbert: ModernBertForMaskedLM
    LeftToRight of a ModernBERT       modernbert-decoder: ModernBertDecoderForCausalLM, export only
    ReplacedTokensModel of a BERT     electra: ElectraForPreTraining, without generator, export only
    LlamaForPretraining               llama: LlamaForCausalLM; with query_key_norm
                                      qwen3: Qwen3ForCausalLM
    SentenceEncoder                   bert: BertModel, roberta-prelayernorm: the same,
                                      modernbert: ModernBertModel, and the files of
                                      sentence-transformers, export only
    SentenceModel                     sentence_encoders.py

This module maps configs, tensors.py tensors. Apart from names, their BERT and Llama have queries,
keys and values in three matrices, their NSP classes are in reverse order, and their GPT stores each
matrix transposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rungwise.models.families.bert import NUM_SEGMENTS, BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig

Known = BertConfig | GptConfig | ModernBertConfig | LlamaConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # a pickle, of older versions of transformers
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
INDEX = ".index.json"  # ends the name of the file that lists shards
FILES = (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG)
# Additional files of sentence-transformers.
MODULES, SENTENCES, POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling"


@dataclass(frozen=True)
class Format:
    """How transformers stores one `model_type`."""

    config: type[Known]
    prefix: str  # of every encoder tensor, unless only the encoder was saved
    sizes: Mapping[str, str]  # keys of their config.json by those of rungwise
    dropouts: tuple[str, ...]
    # Keys that are fixed here, with the values that are allowed. If a key is missing, the first
    # value holds.
    settings: Mapping[str, tuple[Any, ...]]
    # Copies of tied tensors: they must be equal, and are dropped.
    tied: Mapping[str, str]
    usual_dropout: float = 0.0  # if the keys are missing


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
_GPT2_SETTINGS = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    **_GPT_NORM,
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    **_NO_CROSS,
    **_TIED,
    **_NO_ROTARY,
}
# The "gelu" of this family is the tanh form too.
_OPENAI_SETTINGS = {"afn": ("gelu", "gelu_new"), **_GPT_NORM, **_TIED, **_NO_ROTARY}
_MODERN_SETTINGS = {
    "hidden_activation": ("gelu",),
    "classifier_activation": ("gelu",),
    "norm_eps": (ModernBertConfig.layer_norm_epsilon,),
    "decoder_bias": (True,),
    **{f"{part}_bias": (False,) for part in ("norm", "attention", "mlp", "classifier")},
    **_TIED,
}
_LLAMA_SETTINGS = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
_BERT = Format(
    config=BertConfig,
    prefix="bert.",
    sizes=_BERT_SIZES,
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    settings=_BERT_SETTINGS,
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    usual_dropout=0.1,
)
_GPT2 = Format(
    config=GptConfig,
    prefix="transformer.",
    sizes=_GPT_SIZES,
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    settings=_GPT2_SETTINGS,
    tied={"lm_head.weight": "transformer.wte.weight"},
    usual_dropout=0.1,
)
_LLAMA = Format(
    config=LlamaConfig,
    prefix="model.",
    sizes=_BERT_SIZES,
    dropouts=("attention_dropout",),
    settings=_LLAMA_SETTINGS,
    tied={"lm_head.weight": "model.embed_tokens.weight"},
)
FORMATS: Mapping[str, Format] = {
    "bert": _BERT,
    "gpt2": _GPT2,
    "openai-gpt": replace(
        _GPT2, settings=_OPENAI_SETTINGS, tied={"lm_head.weight": "transformer.tokens_embed.weight"}
    ),
    "modernbert": Format(
        config=ModernBertConfig,
        prefix="model.",
        sizes={**_BERT_SIZES, "local_window": "local_attention"},
        dropouts=("attention_dropout", "embedding_dropout", "mlp_dropout"),
        settings=_MODERN_SETTINGS,
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    ),
    "llama": _LLAMA,
    "roberta-prelayernorm": replace(
        _BERT,
        prefix="roberta_prelayernorm.",
        tied={
            "lm_head.decoder.weight": "roberta_prelayernorm.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    ),
    "qwen3": replace(_LLAMA, settings={**_LLAMA_SETTINGS, "use_sliding_window": (False,)}),
}
# What is written and not read.
ELECTRA, MODERN_DECODER = "electra", "modernbert-decoder"
EXPORTED: Mapping[str, Format] = {
    **FORMATS,
    ELECTRA: replace(_BERT, prefix="electra.", tied={}),
    MODERN_DECODER: FORMATS["modernbert"],
}
# Heads, which have no prefix.
HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.", "head.", "decoder.")
# Masks and counters that old versions saved.
BUFFERS = ("embeddings.position_ids", ".attn.bias", ".attn.masked_bias", ".position_ids")


def auto_class(architecture: str) -> str:
    """The auto class of transformers that loads a class that is exported."""
    if architecture.endswith("LMHeadModel"):
        return "AutoModelForCausalLM"
    _, has_head, head = architecture.partition("For")
    return f"AutoModelFor{head}" if has_head else "AutoModel"


def model_type(config: Known) -> str:
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


def count_unused_positions(data: Mapping[str, Any]) -> int:
    """How many unused rows their position table has before the first position."""
    padding = data.get("pad_token_id", 1)
    return 1 + (padding or 0) if data["model_type"] == "roberta-prelayernorm" else 0
