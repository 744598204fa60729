"""Export: a model and its tokenizer as a folder that transformers loads.

Their models lack two features: sinusoidal positions are written as a table, and rows that pad the
vocabulary are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import ConfigError
from rungwise.finetune.model import HeadedEncoder, TaskModel
from rungwise.models.families.bert import Bert, BertConfig, BertForPretraining, LeftToRight
from rungwise.models.families.gpt import DecoderFamily, GptForPretraining
from rungwise.models.families.llama import LlamaConfig, LlamaForPretraining
from rungwise.models.families.modern_bert import (
    ModernBert,
    ModernBertConfig,
    ModernBertForPretraining,
)
from rungwise.models.families.sentence_encoder import SentenceEncoderConfig, SentenceModel
from rungwise.models.family import Family
from rungwise.models.losses.replaced_tokens import ReplacedTokensModel
from rungwise.models.losses.sentences import SentenceEncoder
from rungwise.serving.hugging_face.modern import llama_keys, modern_bert_keys
from rungwise.serving.hugging_face.modules import (
    add_frame,
    read_tokenizer,
    write_json,
    write_modules,
    write_pooling,
)
from rungwise.serving.hugging_face.names import (
    CONFIG,
    ELECTRA,
    EXPORTED,
    MODERN_DECODER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Known,
    count_unused_positions,
    model_type,
)
from rungwise.serving.hugging_face.sentence_encoders import export_sentence_encoder
from rungwise.serving.hugging_face.tensors import list_entries, rename_headed
from rungwise.tasks.kinds.heads import (
    ChoiceHead,
    CrfHead,
    PooledHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)

# The `model_type` of classes whose config alone does not say it.
_KINDS = {"ModernBertDecoderForCausalLM": MODERN_DECODER, "ElectraForPreTraining": ELECTRA}
_MARKS = ("cls_token", "sep_token")


def export_model(
    model: nn.Module,
    config: Family,
    tokenizer_file: Path,
    folder: Path,
    labels: Sequence[str] = (),
    longest: int | None = None,
) -> str:
    """Write `model` and its tokenizer to `folder`, created if needed; returns their class name, ""
    for an encoder of sentences, which sentence-transformers loads.

    `labels` names the classes or tags of a HeadedEncoder, `longest` is the longest row it was
    fine-tuned on. A BERT tokenizer that frames nothing gets [CLS] A [SEP] B [SEP], as in training.
    Raises ConfigError for a model without a counterpart, DataError for a tokenizer of another size.
    """
    if isinstance(model, SentenceModel):
        assert isinstance(config, SentenceEncoderConfig)
        export_sentence_encoder(model, config, tokenizer_file, folder)
        return ""
    config, vocab_size, architecture = _find_counterpart(model, config)
    kind = _KINDS.get(architecture) or model_type(config)
    layout = EXPORTED[kind]
    is_masked = isinstance(config, BertConfig | ModernBertConfig)
    tokenizer, roles = read_tokenizer(tokenizer_file, vocab_size, is_masked)
    if is_masked and tokenizer.post_processor is None:
        add_frame(tokenizer, roles)
    data = {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": vocab_size,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **{key: getattr(config, name) for name, key in layout.sizes.items()},
        **dict.fromkeys(layout.dropouts, config.dropout),
        "initializer_range": config.initializer_range,
        **{key: allowed[0] for key, allowed in layout.settings.items() if allowed[0]},
        **{
            f"{role}_id": tokenizer.token_to_id(roles[role]) if role in roles else None
            for role in ("pad_token", "bos_token", "eos_token")
        },
    }
    if isinstance(config, ModernBertConfig):  # their own defaults are of another vocabulary
        marks = {role: tokenizer.token_to_id(roles[role]) for role in _MARKS if role in roles}
        cls, sep = (marks.get(role) for role in _MARKS)
        data |= {"cls_token_id": cls, "sep_token_id": sep, "bos_token_id": cls, "eos_token_id": sep}
    if kind == ELECTRA:
        data["embedding_size"] = config.hidden_size
    if kind == "gpt2":
        data["n_inner"] = config.intermediate_size
    if isinstance(config, ModernBertConfig):
        data |= modern_bert_keys(config)
        if kind == MODERN_DECODER:  # it counts a token itself among those that it sees
            data["local_attention"] = 2 * (config.local_window // 2 + 1)
    if isinstance(config, LlamaConfig):
        data |= llama_keys(config)
    if isinstance(model, HeadedEncoder):
        data |= _label_keys(model, labels)
    if isinstance(model, LeftToRight) and isinstance(config, BertConfig):
        data["is_decoder"] = True  # their word for a left-to-right model
    tensors = _convert_tensors(model, config, vocab_size, kind)
    if before := count_unused_positions(data):
        data["max_position_embeddings"] += before
        name = "roberta_prelayernorm.embeddings.position_embeddings.weight"
        tensors[name] = functional.pad(tensors[name], (0, 0, before, 0))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, data)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer.save(str(folder / TOKENIZER))
    inputs = ["input_ids", "attention_mask"]
    if isinstance(config, BertConfig):
        inputs.insert(1, "token_type_ids")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest or config.max_position_embeddings,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / TOKENIZER_CONFIG, {**settings, **roles})
    if isinstance(model, SentenceEncoder):
        sizes = config.hidden_size, config.max_position_embeddings
        write_modules(folder, write_pooling(folder, *sizes, "mean_tokens"))
    return architecture


def _find_counterpart(model: nn.Module, config: Family) -> tuple[Known, int, str]:
    """The config, the vocabulary size, and their class."""
    if isinstance(config, DecoderFamily) and config.output_bias:
        raise ConfigError(
            "model.output_bias is true, and the classes of transformers have no place for that "
            "bias; train with false to export the model"
        )
    match model:
        case BertForPretraining():
            bert, name = model.bert, "BertForPreTraining" if model.nsp else "BertForMaskedLM"
        case HeadedEncoder():
            bert, name = _find_headed(model)
            # Fine-tuning has a dropout of its own.
            config = config.model_copy(update={"dropout": bert.config.dropout})
        case SentenceEncoder():
            own = cast(Bert | ModernBert, model.body).config
            # Its objective may have a dropout of its own.
            config = config.model_copy(update={"dropout": own.dropout})
            if isinstance(own, ModernBertConfig):
                return own, model.body.vocab_size, "ModernBertModel"
            bert, name = cast(Bert, model.body), "BertModel"
        case LeftToRight(body=ModernBert() as body):
            return body.config, body.vocab_size, "ModernBertDecoderForCausalLM"
        case LeftToRight(body=Bert() as bert):
            name = "BertLMHeadModel"
        case ReplacedTokensModel(body=Bert(config=BertConfig(norm="post")) as bert):
            name = "ElectraForPreTraining"
        case GptForPretraining():
            assert config == model.gpt.config, "the config of another model"
            own = model.gpt.config
            name = "GPT2LMHeadModel" if own.norm == "pre" else "OpenAIGPTLMHeadModel"
            if own.norm == "post" and own.intermediate_size != 4 * own.hidden_size:
                raise ConfigError(
                    f"model.intermediate_size is {own.intermediate_size}, and {name} has always "
                    f"4 · hidden_size, here {4 * own.hidden_size}; it cannot be exported"
                )
            return own, model.gpt.vocab_size, name
        case ModernBertForPretraining():
            own = model.modern_bert.config
            return own, model.modern_bert.vocab_size, "ModernBertForMaskedLM"
        case LlamaForPretraining():
            own = model.llama.config
            name = "Qwen3ForCausalLM" if own.query_key_norm else "LlamaForCausalLM"
            if not own.query_key_norm and own.hidden_size % own.num_heads:
                raise ConfigError(
                    f"model.hidden_size is {own.hidden_size}, and {name} takes only multiples of "
                    f"num_heads, here {own.num_heads}, whatever head_size is; it cannot be exported"
                )
            return own, model.llama.vocab_size, name
        case _:
            raise ConfigError(
                f"a {type(model).__name__} has no counterpart in transformers, so it cannot be "
                "exported; expected a model.kind of bert, gpt, modern_bert or llama, or a "
                "HeadedEncoder of a bert"
            )
    assert config == bert.config, "the config of another model"
    if bert.config.norm == "pre":
        kind = "ForCausalLM" if isinstance(model, LeftToRight) else "ForMaskedLM"
        if isinstance(model, HeadedEncoder | SentenceEncoder):
            kind = name.removeprefix("Bert")
        name = f"RobertaPreLayerNorm{kind}"
    return bert.config, bert.vocab_size, name


def _find_headed(model: HeadedEncoder) -> tuple[Bert, str]:
    encoder, head = model.encoder, model.head
    bert = encoder.body
    if isinstance(model, TaskModel) and model.kind.writes:
        raise ConfigError(
            "transformers has no model that reads one text both ways and writes another with the "
            "same layers; expected a task of another kind, or the model before fine-tuning"
        )
    if not isinstance(bert, Bert) or bert.causal:
        raise ConfigError(
            "a model for a task can be exported if its encoder is a bert that sees both sides; "
            "what reads from left to right has marks of its own, which no tokenizer of "
            "transformers knows"
        )
    if model.top is not None or model.mixed or isinstance(head, CrfHead):
        raise ConfigError(
            "transformers has no model with a BiLSTM or a mix of layers below its head, nor with a "
            "conditional random field; expected finetune.top.kind linear, finetune.adaptation.kind "
            "other than features, and no finetune.crf"
        )
    if isinstance(model, TaskModel) and model.config.pairs != "joined":
        raise ConfigError(
            f"finetune.pairs is {model.config.pairs}, and transformers has no model that reads a "
            "pair in two rows; expected joined, or --format onnx"
        )
    match head:
        case SequenceHead():
            name = "BertForSequenceClassification"
        case ChoiceHead():
            name = "BertForMultipleChoice"
        case TokenHead():
            name = "BertForTokenClassification"
        case SpanHead():
            name = "BertForQuestionAnswering"
    if isinstance(head, PooledHead) and head.pool.dense is None:
        raise ConfigError(
            f"finetune.pooling is {head.pool.pooling} without a pooler, and {name} has one; "
            "expected cls, of a model that was pretrained on pairs"
        )
    return bert, name


def _convert_tensors(
    model: nn.Module, config: Known, vocab_size: int, kind: str
) -> dict[str, Tensor]:
    state = dict(model.state_dict())
    if isinstance(model, SentenceEncoder):
        state = {name: state[name] for name in state if name.startswith(f"{model.body.name}.")}
    if isinstance(model, ReplacedTokensModel):  # their model has no generator
        state = {name: state[name] for name in state if not name.startswith(("mlm.", "generator."))}
    if isinstance(model, HeadedEncoder):
        state = rename_headed(state, model.head, config)
    for name in (f"{config.kind}.token_embedding.weight", "output.weight"):
        if name in state:
            state[name] = state[name][:vocab_size]
    if isinstance(config, BertConfig) and config.positions == "sinusoid":
        bert = model.encoder.bert if isinstance(model, HeadedEncoder) else model.bert
        assert isinstance(bert, Bert)
        table_TD = bert.position_vectors(config.max_position_embeddings)
        state["bert.position_embedding.weight"] = table_TD
    if isinstance(model, BertForPretraining) and config.norm == "pre":
        # Their class has no head for pairs.
        state = {
            name: tensor
            for name, tensor in state.items()
            if not name.startswith(("bert.pooler.", "nsp."))
        }
    tensors: dict[str, Tensor] = {}
    for entry in list_entries(config, kind):
        if entry.name in state:
            parts = entry.split(state.pop(entry.name).detach().cpu())
            tensors |= zip(entry.parts, (t.contiguous().clone() for t in parts), strict=True)
    assert not state, f"no place for {sorted(state)}"
    return tensors


def _label_keys(model: HeadedEncoder, labels: Sequence[str]) -> dict[str, Any]:
    if isinstance(model.head, SpanHead):
        return {}
    data: dict[str, Any] = {"classifier_dropout": model.head.dropout.p}
    if isinstance(model.head, ChoiceHead):
        return data
    count = model.head.linear.out_features
    names = list(labels) or [f"LABEL_{index}" for index in range(count)]
    if len(names) != count:
        raise ConfigError(f"labels: expected {count} names, one a class, found {len(names)}")
    data["id2label"] = {str(index): name for index, name in enumerate(names)}
    data["label2id"] = {name: index for index, name in enumerate(names)}
    if isinstance(model.head, SequenceHead):
        several = isinstance(model, TaskModel) and model.kind.labelled and not model.kind.one_label
        one = "single_label_classification" if count > 1 else "regression"
        data["problem_type"] = "multi_label_classification" if several else one
    return data
