"""Tokenizer stage: learn a vocabulary from a sample of the training documents, or read one; write
`tokenizer.json`, and measure it on held-out documents."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import SPECIAL_TOKENS, UNK, UNK_ID
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary, count_units
from rungwise.tokenizer import files
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    CountedConfig,
    TokenizerFileConfig,
    TrainedConfig,
    WordPieceConfig,
)
from rungwise.tokenizer.encoder import make_encoder
from rungwise.tokenizer.token_stage import TokenizerSummary

_EVALUATED_CHARACTERS = 1_000_000  # of held-out text, to measure on
_BATCH_SENTENCES = 1000
_FEW_ACCENTS = 0.01  # in English about 0.002, in Dutch 0.01, in Spanish 0.1


def train_tokenizer(
    config: TrainedConfig | TokenizerFileConfig, inputs: Inputs, output: Folder, context: Context
) -> TokenizerSummary:
    """Train or read a tokenizer, write `tokenizer.json`, and measure it on held-out text. Raises
    DataError if the text cannot fill the vocabulary, or the file is not a vocabulary."""
    corpus = inputs["corpus"]
    if isinstance(config, TokenizerFileConfig):
        tokenizer, characters = files.remove_clean_up(files.read_tokenizer(config)), 0
    else:
        sample = _SentenceSample(corpus, "train", config.sample_megabytes * 1e6)
        tokenizer = train(_choose_accents(config, sample, context), sample)
        characters = sample.characters
        if isinstance(config, WordPieceConfig | ByteBpeConfig):
            _check_size(config, tokenizer, characters)
    with output.staged(files.FILE) as path:
        tokenizer.save(str(path))
    tokenizer = files.load_tokenizer(output)
    size = tokenizer.get_vocab_size()
    measured = _measure(tokenizer, corpus)
    return TokenizerSummary(
        kind=config.kind,
        vocab_size=size,
        special=files.special_ids(tokenizer),
        sample_characters=characters,
        **measured,
        headline=f"{config.kind} V={size:,}  {_rate(measured)}  "
        f"{measured['unknown_rate']:.3%} unknown",
    )


def _choose_accents(
    config: TrainedConfig, sentences: Iterable[str], context: Context
) -> TrainedConfig:
    """Keep accents where the config leaves them open and many words of the text have them, so that
    they belong to the spelling of the language."""
    is_open = isinstance(config, WordPieceConfig) and config.strip_accents is None
    if not is_open or not config.lowercase:
        return config
    counts: Counter[str] = Counter()
    for sentence in sentences:
        words = sentence.split()
        counts.update({"": len(words)} if sentence.isascii() else words)
    changes = {word: count for word, count in counts.items() if _strip_accents(word) != word}
    share = sum(changes.values()) / max(1, counts.total())
    if share < _FEW_ACCENTS:
        return config
    example = max(changes, key=lambda word: (changes[word], word))
    context.report.note(
        f"accents and other marks are kept, since {share:.0%} of the words have them: {example} "
        f"would be {_strip_accents(example)}; tokenizer.strip_accents decides"
    )
    return config.model_copy(update={"strip_accents": False})


def _strip_accents(text: str) -> str:
    """Return the text decomposed and without nonspacing marks, as BERT's tokenizer does."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(each for each in decomposed if unicodedata.category(each) != "Mn")


def _check_size(config: TrainedConfig, tokenizer: Tokenizer, characters: int) -> None:
    pieces = tokenizer.get_vocab_size()
    if pieces == config.vocab_size:
        return
    problem = (
        f"the text has so many different characters that {pieces:,} pieces are needed; raise it to "
        f"more than {pieces:,}"
        if pieces > config.vocab_size
        else f"{characters:,} characters of text fill only {pieces:,}; set tokenizer.vocab_size to "
        f"{pieces:,} or less, lower tokenizer.min_frequency, or add text"
    )
    raise DataError(f"tokenizer.vocab_size: {config.vocab_size:,} asked, but {problem}")


def _rate(measured: dict[str, Any]) -> str:
    """Format the tokens per word, or per character of text that blanks do not cut into words."""
    characters = round(measured["tokens_per_word"] * measured["characters_per_token"])
    _, unit = count_units(1, characters)
    rate = measured["tokens_per_word"] / (characters if unit == "characters" else 1)
    return f"{rate:.2f} tokens a {unit.removesuffix('s')}"


def _measure(tokenizer: Tokenizer, corpus: Artifact) -> dict[str, Any]:
    encoder = make_encoder(tokenizer)
    unknown_id = files.special_ids(tokenizer).unk
    held_out = _SentenceSample(corpus, "validation", _EVALUATED_CHARACTERS)
    tokens = unknown = words = 0
    iterator = iter(held_out)
    while batch := list(islice(iterator, _BATCH_SENTENCES)):
        words += sum(len(sentence.split()) for sentence in batch)
        encoded = encoder.encode(pa.array(batch, pa.string()))
        tokens += len(encoded.ids)
        if unknown_id is not None:
            unknown += int(np.count_nonzero(encoded.ids == unknown_id))
    return {
        "unknown_rate": unknown / max(tokens, 1),
        "tokens_per_word": tokens / max(words, 1),
        "characters_per_token": held_out.characters / max(tokens, 1),
    }


class _SentenceSample:
    """Up to so many characters of the sentences of a split, of all files alike, since documents are
    sorted by source: of each those at the start. Counts them."""

    def __init__(self, corpus: Artifact, split: str, limit: float) -> None:
        rows = [row for row in CorpusSummary.of(corpus).files if row.split == split]
        share = min(1.0, int(limit) / max(1, sum(row.characters for row in rows)))
        self._folder = corpus.folder
        self._quotas = {row.file: math.ceil(share * row.characters) for row in rows}
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        self.characters = 0
        for file, quota in self._quotas.items():
            end = self.characters + quota
            documents = read_documents(self._folder, file)
            for sentence in (line for document in documents for line in document.sentences):
                if self.characters >= end:
                    break
                self.characters += len(sentence)
                yield sentence


_SENTENCES_AT_ONCE = 20_000
# Models of whole words or pieces would turn `[MASK]` in a text into the special token, so its
# bracket is made a word of its own.
_BRACKET_ALONE = pre_tokenizers.Split(Regex(files.SPECIAL_IS_TEXT), "isolated")


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
        tokenizer = files.wordpiece({}, config.lowercase, config.strip_accents)
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
    tokenizer = files.wordpiece(pieces, config.lowercase, config.strip_accents)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
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
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(files.EVERY_CHARACTER), "isolated")
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
