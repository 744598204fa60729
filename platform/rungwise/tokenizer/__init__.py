"""Tokenizers, trained on the corpus or read from a file, and fast encoders that apply them."""

# ruff: noqa: F401  (names for the packages above)
from rungwise.core.tokens import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_TOKENS, UNK_ID, SpecialIds
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TokenizerConfig,
    TokenizerFileConfig,
    WordConfig,
    WordPieceConfig,
    identity,
)
from rungwise.tokenizer.encoder import (
    Encoded,
    EncoderChoice,
    TextEncoder,
    choose_encoder,
    make_encoder,
    open_encoder,
)
from rungwise.tokenizer.files import (
    CLEAN_UP,
    FILE,
    ids_after_blank,
    input_digests,
    load_reader,
    load_tokenizer,
    read_tokenizer,
    refuse_panic,
    special_ids,
    token_bytes,
)
from rungwise.tokenizer.token_stage import TOKENIZER, TokenizerSummary
