"""Tokenizers, trained on the corpus or read from a file, and fast encoders that apply them."""

# ruff: noqa: F401  (names for the packages above)
from rungwise.tokenizer.config import TokenizerConfig, TokenizerFileConfig
from rungwise.tokenizer.encoder import Encoded, TextEncoder, choose_encoder, open_encoder
from rungwise.tokenizer.files import (
    CLEAN_UP,
    FILE,
    ids_after_blank,
    load_reader,
    load_tokenizer,
    read_tokenizer,
    refuse_panic,
    special_ids,
    token_bytes,
)
from rungwise.tokenizer.token_stage import TOKENIZER, TokenizerSummary
