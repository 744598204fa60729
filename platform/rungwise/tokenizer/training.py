"""Train tokenizers; the same sentences give the same vocabulary in any process. BERT's special
tokens come first in each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rungwise.core.tokens import SPECIAL_TOKENS, UNK, UNK_ID
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    CountedConfig,
    TrainedConfig,
    WordPieceConfig,
)

_SENTENCES_AT_ONCE = 20_000
EVERY_CHARACTER = r"[\s\S]"
SPECIAL_IS_TEXT = r"\[(?=(?:PAD|UNK|CLS|SEP|MASK)\])"
# Models of whole words or pieces would turn `[MASK]` in a text into the special token, so its
# bracket is made a word of its own.
_BRACKET_ALONE = pre_tokenizers.Split(Regex(SPECIAL_IS_TEXT), "isolated")


def train(config: TrainedConfig, sentences: Iterable[str]) -> Tokenizer:
    """Train a tokenizer on `sentences`, which WordPiece iterates over twice."""
    match config:
        case WordPieceConfig():
            return _train_wordpiece(config, sentences)
        case ByteBpeConfig():
            return _train_byte_bpe(config, sentences)
        case _:
            return from_counts(config, count_words(config, sentences))


def _train_byte_bpe(config: ByteBpeConfig, sentences: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    if config.lowercase or config.strip_accents:
        tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        sentences,
        trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=config.min_frequency,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def _train_wordpiece(config: WordPieceConfig, sentences: Iterable[str]) -> Tokenizer:
    # The library numbers single characters in hash-map order, which differs between processes, and
    # breaks ties between merges by these numbers. So a first pass finds the characters without
    # merging, and the second gets them sorted, as if they were special tokens.
    def vocabulary(first: list[str], size: int) -> dict[str, int]:
        tokenizer = wordpiece({}, config.lowercase, config.strip_accents)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=config.min_frequency,
            special_tokens=first,
            show_progress=False,
        )
        tokenizer.train_from_iterator(sentences, trainer)
        return tokenizer.get_vocab()

    characters = vocabulary(list(SPECIAL_TOKENS), size=0).keys() - set(SPECIAL_TOKENS)
    pieces = vocabulary([*SPECIAL_TOKENS, *sorted(characters)], config.vocab_size)
    tokenizer = wordpiece(pieces, config.lowercase, config.strip_accents)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def wordpiece(
    pieces: dict[str, int], lowercase: bool, strip_accents: bool | None = None, unknown: str = UNK
) -> Tokenizer:
    """Return BERT's tokenizer with the vocabulary `pieces`, without special tokens; accents that
    are left open go with lower-casing."""
    model = models.WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def count_words(config: CountedConfig, sentences: Iterable[str]) -> Counter[str]:
    """Count the words, or characters, of `sentences`. Texts are split at blanks first, and only
    distinct pieces go through the normalizer and pre-tokenizer, which treat each piece alone and
    keep blanks."""
    tokenizer = _count_words(config, {UNK: UNK_ID})
    normalize = tokenizer.normalizer.normalize_str
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    counts: Counter[str] = Counter()
    iterator = iter(sentences)
    while batch := list(islice(iterator, _SENTENCES_AT_ONCE)):
        pieces = pc.split_pattern(pa.array(batch, pa.string()), " ").flatten()  # pyright: ignore[reportAttributeAccessIssue]
        distinct = pieces.value_counts()
        for piece, count in zip(*map(pa.Array.to_pylist, distinct.flatten()), strict=True):
            for word, _ in split(normalize(piece)):
                counts[word] += count
        for word, _ in split(" "):
            counts[word] += len(pieces) - len(batch)
    return counts


def from_counts(config: CountedConfig, counts: Mapping[str, int]) -> Tokenizer:
    """Return the tokenizer of the most frequent words, or characters, of `counts`. Ids follow
    frequency, the highest first; ties are in alphabetical order."""
    frequent = [word for word, count in counts.items() if count >= config.min_frequency]
    frequent.sort(key=lambda word: (-counts[word], word))
    words = [*SPECIAL_TOKENS, *frequent][: config.vocab_size]
    tokenizer = _count_words(config, {word: index for index, word in enumerate(words)})
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _count_words(config: CountedConfig, vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = _normalizer(config)
    if isinstance(config, CharacterConfig):
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(EVERY_CHARACTER), "isolated")
        tokenizer.decoder = decoders.Fuse()
    elif config.split_punctuation:
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), _BRACKET_ALONE]
        )
    return tokenizer


def _normalizer(config: TrainedConfig) -> normalizers.Normalizer:
    # One form per accented letter, however the text composes it.
    steps: list[normalizers.Normalizer] = []
    if config.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    steps.append(normalizers.NFC())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
