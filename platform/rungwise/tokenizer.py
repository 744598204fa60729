"""Tokenizer stage: WordPiece or byte-level BPE, trained on a stated sample of training documents.

Both kinds carry BERT's special tokens, first and in this order, so their ids are 0 to 4 whatever
the vocabulary. WordPiece as in Devlin et al. 2019 (arXiv:1810.04805), byte-level BPE as in Radford
et al. 2019; the file is `tokenizer.json` of the `tokenizers` library, which also does the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.corpus.document import read_documents
from rungwise.errors import DataError
from rungwise.storage import Folder

FILE = "tokenizer.json"
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)

_EVALUATED_CHARACTERS = 1_000_000  # of held-out text, for the unknown rate and tokens a word
_BATCH_SENTENCES = 1000


class TokenizerConfig(Config):
    """What the vocabulary is learned from and how large it is."""

    kind: Literal["wordpiece", "byte_bpe"] = "wordpiece"
    vocab_size: int = Field(default=30_522, ge=16)  # with the special tokens; BERT's own number
    lowercase: bool = True
    min_frequency: int = Field(default=2, ge=1)
    sample_megabytes: float = Field(default=64.0, gt=0)  # characters of training text, in millions


def run(
    config: TokenizerConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Train on the corpus, write `tokenizer.json`, measure it on the held-out documents.

    Raises DataError if the text cannot fill the vocabulary.
    """
    corpus = inputs["corpus"]
    limit = int(config.sample_megabytes * 1e6)
    sample = _Sample(corpus, "train", limit)
    tokenizer = train(config, sample)
    found = tokenizer.get_vocab_size()
    if found > config.vocab_size:
        raise DataError(
            f"tokenizer.vocab_size: {config.vocab_size:,} asked, but the text has so many "
            f"different characters that {found:,} pieces are needed; "
            f"raise it to more than {found:,}"
        )
    if found < config.vocab_size:
        raise DataError(
            f"tokenizer.vocab_size: {config.vocab_size:,} asked, but {sample.characters:,} "
            f"characters of text fill only {found:,}; set tokenizer.vocab_size to {found:,} "
            f"or less, lower tokenizer.min_frequency, or add text"
        )
    with output.staged(FILE) as path:
        tokenizer.save(str(path))
    tokenizer = load(output)
    held_out = _Sample(corpus, "validation", _EVALUATED_CHARACTERS)
    tokens = unknown = words = 0
    iterator = iter(held_out)
    while batch := list(islice(iterator, _BATCH_SENTENCES)):
        words += sum(len(sentence.split()) for sentence in batch)
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            tokens += len(encoding.ids)
            unknown += encoding.ids.count(UNK_ID)
    return {
        "kind": config.kind,
        "vocab_size": found,
        "sample_characters": sample.characters,
        "unknown_rate": unknown / max(tokens, 1),
        "tokens_per_word": tokens / max(words, 1),
        "characters_per_token": held_out.characters / max(tokens, 1),
        "headline": f"{config.kind} V={found:,}  {tokens / max(words, 1):.2f} tokens a word  "
        f"{unknown / max(tokens, 1):.3%} unknown",
    }


def train(config: TokenizerConfig, sentences: Iterable[str]) -> Tokenizer:
    """A tokenizer learned from `sentences`, which are gone through twice for WordPiece.

    The same sentences give the same vocabulary, in any process.
    """
    tokenizer = _untrained(config)
    if config.kind == "byte_bpe":
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
    # The library numbers single characters in the order of a hash map, which differs from process
    # to process, and breaks ties between merges by these numbers. So a first pass finds the
    # characters and merges nothing, and the second is given them sorted, as if they were special
    # tokens.
    alphabet = _wordpiece_vocabulary(tokenizer, sentences, config, list(SPECIAL_TOKENS), size=0)
    known = [*SPECIAL_TOKENS, *sorted(alphabet.keys() - set(SPECIAL_TOKENS))]
    vocabulary = _wordpiece_vocabulary(tokenizer, sentences, config, known, config.vocab_size)
    trained = _untrained(config, vocabulary)
    trained.add_special_tokens(list(SPECIAL_TOKENS))
    return trained


def _wordpiece_vocabulary(
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    config: TokenizerConfig,
    first: list[str],
    size: int,
) -> dict[str, int]:
    """Learn `size` pieces, of which `first` get the first ids."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=config.min_frequency,
        special_tokens=first,
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer.get_vocab()


def _untrained(config: TokenizerConfig, vocabulary: dict[str, int] | None = None) -> Tokenizer:
    if config.kind == "wordpiece":
        pieces = vocabulary or {}
        model = models.WordPiece(pieces, unk_token=UNK, max_input_chars_per_word=100)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    if config.lowercase:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load(folder: Folder) -> Tokenizer:
    """The tokenizer of an artifact.

    Text that happens to contain `[MASK]` or `[SEP]` is text: it is split like any other and never
    becomes a special token.
    """
    tokenizer = Tokenizer.from_str(folder.read_bytes(FILE).decode("utf-8"))
    tokenizer.encode_special_tokens = True
    return tokenizer


class _Sample:
    """Sentences of a split until `limit` characters have passed; says how many did.

    They come file after file: each file is a fair sample, so the first are as good as any.
    """

    def __init__(self, corpus: Artifact, split: str, limit: int) -> None:
        self._files = [row["file"] for row in corpus.summary["files"] if row["split"] == split]
        self._folder = corpus.folder
        self._limit = limit
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        self.characters = 0
        for file in self._files:
            for document in read_documents(self._folder, file):
                for sentence in document.sentences:
                    if self.characters >= self._limit:
                        return
                    self.characters += len(sentence)
                    yield sentence
