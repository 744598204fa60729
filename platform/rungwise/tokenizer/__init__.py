"""Tokenizers, trained on the corpus or read from a file, and fast encoders that apply them."""

# ruff: noqa: F401  (names for the packages above)
from rungwise.core.tokens import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_TOKENS, UNK_ID, SpecialIds
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TokenizerConfig,
    TokenizerFileConfig,
    UnigramConfig,
    WordConfig,
    WordPieceConfig,
    identity,
)
from rungwise.tokenizer.encoder import EncoderChoice, choose_encoder, make_encoder, open_encoder
from rungwise.tokenizer.files import FILE, input_digests, load_tokenizer, read_tokenizer
from rungwise.tokenizer.patterns import refuse_panic
from rungwise.tokenizer.reference import Encoded, TextEncoder
from rungwise.tokenizer.special import (
    CLEAN_UP,
    ids_after_blank,
    load_reader,
    special_ids,
    token_bytes,
)
from rungwise.tokenizer.stage import TOKENIZER, TokenizerSummary
from rungwise.tokenizer.training import train
