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
from rungwise.tokenizer.encoder import EncoderChoice, open_encoder, choose_encoder, make_encoder
from rungwise.tokenizer.files import FILE, load_tokenizer, input_digests, read_tokenizer
from rungwise.tokenizer.patterns import refuse_panic
from rungwise.tokenizer.reading import CLEAN_UP, ids_after_blank, load_reader
from rungwise.tokenizer.reference import Encoded, TextEncoder
from rungwise.tokenizer.special import special_ids, token_bytes
from rungwise.tokenizer.stage import TOKENIZER, TokenizerSummary
from rungwise.tokenizer.training import train
