"""The model families as one union tagged by `kind`. A new family adds its name here."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from rungwise.models.families.bert import BertConfig, ModernBertConfig
from rungwise.models.families.counts_and_network import CountsAndNetworkConfig
from rungwise.models.families.elmo import BidirectionalConfig, ElmoConfig
from rungwise.models.families.gpt import GptConfig, LlamaConfig
from rungwise.models.families.ngram import BrownConfig, NgramConfig
from rungwise.models.families.nnlm import BigramConfig, LogBilinearConfig, NnlmConfig, SennaConfig
from rungwise.models.families.recurrent import AwdLstmConfig, CoveConfig, LstmConfig, RnnConfig
from rungwise.models.families.sentence_encoder import SentenceEncoderConfig
from rungwise.models.family import Family
from rungwise.models.losses.objectives import Objective
from rungwise.models.word_vectors.lsa import LsaConfig, PrototypesConfig
from rungwise.models.word_vectors.paragraph_vectors import ParagraphVectorsConfig
from rungwise.models.word_vectors.word2vec import GloveConfig, Word2vecConfig

ModelConfig = Annotated[
    BertConfig
    | GptConfig
    | BidirectionalConfig
    | ModernBertConfig
    | LlamaConfig
    | LstmConfig
    | RnnConfig
    | AwdLstmConfig
    | ElmoConfig
    | CoveConfig
    | NnlmConfig
    | LogBilinearConfig
    | BigramConfig
    | SennaConfig
    | SentenceEncoderConfig
    | NgramConfig
    | CountsAndNetworkConfig
    | BrownConfig
    | Word2vecConfig
    | GloveConfig
    | LsaConfig
    | PrototypesConfig
    | ParagraphVectorsConfig,
    Field(discriminator="kind"),
]

FAMILIES: tuple[type[Family], ...] = get_args(get_args(ModelConfig)[0])
DEFAULT_KIND: str = BertConfig.model_fields["kind"].default


def model_config(data: Mapping[str, Any]) -> Family:
    """Validate a family's config from plain data, as in a record."""
    return TypeAdapter(ModelConfig).validate_python(data)


def name_models(models: Mapping[str, tuple[Family, Objective]]) -> dict[str, str]:
    """Name the model of each variant, `{"bert_frozen": "BERT (frozen)"}`: by its kind, and in
    brackets by what the variant's own name adds if several are of that kind."""
    kinds = {
        variant: model.page_name(objective).removesuffix(" model")
        for variant, (model, objective) in models.items()
    }
    names: dict[str, str] = {}
    for variant, kind in kinds.items():
        addition = variant.removeprefix(models[variant][0].kind).replace("_", " ").strip()
        is_alone = list(kinds.values()).count(kind) == 1
        names[variant] = kind if is_alone or not addition else f"{kind} ({addition})"
    return names
