"""The model families as one union tagged by `kind`. A new family adds its name here."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from rungwise.models.families.awd_lstm import AwdLstmConfig
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.bidirectional import BidirectionalConfig
from rungwise.models.families.bigram import BigramConfig
from rungwise.models.families.brown import BrownConfig
from rungwise.models.families.cove import CoveConfig
from rungwise.models.families.elmo import ElmoConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig
from rungwise.models.families.ngram import NgramConfig
from rungwise.models.families.nnlm import LogBilinearConfig, NnlmConfig
from rungwise.models.families.recurrent import LstmConfig, RnnConfig
from rungwise.models.families.senna import SennaConfig
from rungwise.models.families.sentence_encoder import SentenceEncoderConfig
from rungwise.models.family import Family
from rungwise.models.word_vectors.glove import GloveConfig
from rungwise.models.word_vectors.lsa import LsaConfig
from rungwise.models.word_vectors.paragraph_vectors import ParagraphVectorsConfig
from rungwise.models.word_vectors.prototypes import PrototypesConfig
from rungwise.models.word_vectors.word2vec import Word2vecConfig

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
