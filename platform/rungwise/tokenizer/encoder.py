"""The encoder of a tokenizer: the fastest that is proved on the text at hand.

All give the ids of the `tokenizers` library, and no special tokens. The packages `nanotoken`
(WordPiece) and `gigatoken` (byte-level BPE) are young, so they are used only if ids and word starts
are right on a megabyte of the text and on 2,000 hard texts; else `memo` (memo.py) encodes.
"""

# ruff: noqa: RUF001
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import read_documents
from rungwise.tokenizer.files import FILE
from rungwise.tokenizer.memo import MemoEncoder, find_rule, text_bytes
from rungwise.tokenizer.reference import (
    Encoded,
    ReferenceEncoder,
    TextEncoder,
    copy_tokenizer,
    id_type,
)

# Blanks are repeated, so that they occur often.
FRAGMENTS = tuple(
    [" "] * 12
    + ["  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t ", "\x0b", "\x0c", "\x1c", "\x1f"]
    + ["\u00a0", "\u2003", "\u2000", "\u3000", "\u1680", "\u2028", "\u2029", "\u0085", "\u202f"]
    + ["\x00", "\x07", "\x1b", "\x7f", "\x9d", "\ufffd", "\u00ad", "\u200b", "\u200d", "\ufeff"]
    + ["\u0301", "\u0308", "\u0338", "\u0323", "\u20dd", "\ufe0f", "\u0307", " \u0301", "=\u0338"]
    + ["a\u0338", ">\u0338", "e\u0301", "E\u0301", "I\u0307", "中\u0338", "中\u0301"]
    + ["\u1100\u1161", "´", "`", "¨", "^", "ª", "²", "½", "ﬁ", "Å", "\u212b", "\u212a", "\u037e"]
    + ["\u1fef", "ΟΔΟΣ", "Σ", "ς", "İ", "ı", "ß", "ẞ", "ǅ", "Straße", "naïve", "CAFÉ", "Ω"]
    + ["🎉", "👩\u200d👩\u200d👧", "🇩🇪", "1️⃣", "💩", "\U0001d400", "\U000e0001", "\ue000", "\uf8ff"]
    + ["\U0010ffff", "私", "中文", "一", "鿿", "\u3400", "\U00020000", "豈", "、", "。", "，", "《"]
    + ["한국어", "ひら", "が", "שלום", "العربية", "हिन्दी", "ไทย", "Привет", "\u0e33", "\u0600"]
    + ["[MASK]", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[mask]", "<|endoftext|>", "<unk>", "<s>"]
    + ["##ing", "##", "\u2581", "\u2581a", " \u2581", "Ġ", "Ġthe", "Ċ", "</w>", "[MASK", "MASK]"]
    + ["'s", "'S", "'t", "'re", "'", "''", "'ll", "don't", "DON'T", "'1", "\u2019s", "'\u0301s"]
    + list('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')
    + ["...", "--", "1,234.5", "3rd", "a1b2", "x_y", "e.g.", "http://a.b/c?d=e", "(word)", "$3"]
    + ["the", "The", "THE", "playing", "play", "berries", "unwanted", "a", "I", "word " * 3]
    + ["ab" * 40, "z" * 99, "z" * 100, "z" * 101, "z" * 130, "x" * 300, "，" * 90, "中" * 60]
    + ["\u4dc0\u4dff", "a\u4dc0b"]
)


def hard_texts(seed: int, number: int) -> pa.StringArray:
    """Return texts of random fragments in a row; some are empty."""
    rng = random.Random(seed)
    texts = [
        "".join(rng.choices(FRAGMENTS, k=rng.choice((0, 1, 2, 3, 5, 8, 13)))) for _ in range(number)
    ]
    return pa.array(texts, pa.string())


Package = Literal["nanotoken", "gigatoken"]


def matching_package(tokenizer: Tokenizer) -> Package | None:
    """Return the package made for `tokenizer`, installed or not."""
    rule = find_rule(tokenizer)
    model, splitter = tokenizer.model, tokenizer.pre_tokenizer
    # WordPiece as BERT's: each mark is a word, so no word begins with "##" and pieces show words.
    if (
        rule == "marks"
        and isinstance(model, models.WordPiece)
        and isinstance(splitter, pre_tokenizers.BertPreTokenizer)
        and model.continuing_subword_prefix == "##"
    ):
        return "nanotoken"
    return "gigatoken" if rule == "classes" and tokenizer.normalizer is None else None


class NanoEncoder:
    """Encodes every text with nanotoken, in this thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        nanotoken, text = import_module("nanotoken"), copy_tokenizer(tokenizer).to_str()
        self._encode = nanotoken.WordPieceTokenizer.from_json(text).encode_batch
        self._dtype = id_type(tokenizer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        # [V]: whether each token begins a word; `[UNK]` is a whole word.
        self._begins_word = np.ones(max(vocabulary.values(), default=-1) + 1, np.bool_)
        inner = [index for piece, index in vocabulary.items() if piece.startswith("##")]
        self._begins_word[inner] = False
        unknown = tokenizer.token_to_id(tokenizer.model.unk_token)
        if unknown is not None:
            self._begins_word[unknown] = True

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        ids, ends = self._encode(texts.to_pylist(), add_special_tokens=False, parallel=False)
        starts = np.take(self._begins_word, ids) if words else None
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends), starts)


class GigaEncoder:
    """Encodes every text with gigatoken, in this thread; the memo finds word starts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        gigatoken, text = import_module("gigatoken"), copy_tokenizer(tokenizer).to_str()
        self._encode = gigatoken.Tokenizer.from_json(text).encode_batch
        self._awkward = import_module("awkward")
        self._memo = MemoEncoder(tokenizer, "classes")
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        if words:
            return self._memo.encode(texts, words=True)
        offsets, data = text_bytes(texts)
        contents = self._awkward.contents
        characters = contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            self._awkward.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        layout = self._encode(self._awkward.Array(strings), parallel=False).layout
        ends = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data)[ends[0] : ends[-1]]
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends))


Backend = Literal["memo"] | Package

PROOF_BYTES = 1_000_000
_HARD_TEXTS = 2000
_SAMPLED_FILES = 16
_SHOWN_CHARACTERS = 80
_CACHED = 2  # each may take 300 MB; the oldest is dropped
_cache: "dict[tuple[str, EncoderChoice], TextEncoder]" = {}


@dataclass(frozen=True)
class EncoderChoice:
    """A backend, and why it is not faster (`notice`). Sent to every worker, so that the proof runs
    once per stage."""

    backend: Backend = "memo"
    notice: str | None = None


def make_encoder(tokenizer: Tokenizer, backend: Backend = "memo") -> TextEncoder:
    """Return an encoder for `tokenizer`, which must not be trained further. With "memo", one whose
    texts cannot be cut safely gets the library itself; a package is for what it matches."""
    match backend:
        case "nanotoken":
            return NanoEncoder(tokenizer)
        case "gigatoken":
            return GigaEncoder(tokenizer)
        case "memo":
            rule = find_rule(tokenizer)
            return MemoEncoder(tokenizer, rule) if rule else ReferenceEncoder(tokenizer)


def open_encoder(folder: Folder, choice: EncoderChoice = EncoderChoice()) -> TextEncoder:
    """Return the encoder of the artifact in `folder`, cached in this process with its memo. A Ray
    worker process runs one task after another; each would start with an empty memo."""
    data = folder.read_bytes(FILE)
    key = (hashlib.sha256(data).hexdigest(), choice)
    if key not in _cache:
        while len(_cache) >= _CACHED:
            del _cache[next(iter(_cache))]
        _cache[key] = make_encoder(Tokenizer.from_str(data.decode("utf-8")), choice.backend)
    return _cache[key]


def choose_encoder(tokenizer: Tokenizer, sample: pa.StringArray) -> EncoderChoice:
    """Return the package made for this tokenizer, proved on the first PROOF_BYTES of `sample`, or
    the memo; where it replaces a package that is missing or errs, the choice says why."""
    package = matching_package(tokenizer)
    if package is None:
        return EncoderChoice()
    try:
        text = _first_difference(make_encoder(tokenizer, package), tokenizer, sample)
    except ImportError:
        problem = f"{package}, which is several times faster, is not installed"
    except Exception as error:  # another version of a package may raise anything
        problem = f"{package} {version(package)} fails: {error}"
    else:
        if text is None:
            return EncoderChoice(package)
        problem = f"{package} {version(package)} and the tokenizers library disagree on the text "
        problem += repr(text[:_SHOWN_CHARACTERS])
    return EncoderChoice(notice=f"encoding with 'memo': {problem}")


def sample_corpus(corpus: Folder, files: Sequence[str]) -> pa.StringArray:
    """Return about PROOF_BYTES of sentences, from files spread evenly over a corpus. Raises
    DataError for an unreadable file."""
    sample = files[:: max(1, len(files) // _SAMPLED_FILES)]
    sentences: list[str] = []
    for file in sample:
        remaining = PROOF_BYTES // len(sample)
        for document in read_documents(corpus, file):
            sentences += document.sentences
            remaining -= sum(map(len, document.sentences))
            if remaining <= 0:
                break
    return pa.array(sentences, pa.string())


def _first_difference(
    encoder: TextEncoder, tokenizer: Tokenizer, sample: pa.StringArray
) -> str | None:
    """Return a text that `encoder` and the library encode differently, words included."""
    reference = ReferenceEncoder(tokenizer)
    offsets, _ = text_bytes(sample)
    first = sample.slice(0, int(np.searchsorted(offsets, PROOF_BYTES, side="right")) - 1)
    for texts in (hard_texts(0, _HARD_TEXTS), first):
        for words in (False, True):
            expected = _by_text(reference.encode(texts, words))
            encoded = _by_text(encoder.encode(texts, words))
            pairs = zip(texts.to_pylist(), expected, encoded, strict=True)
            for text, tokens, others in pairs:
                if tokens != others:
                    return text
    return None


def _by_text(encoded: Encoded) -> Iterator[Any]:
    """Yield the ids of each text, and where words begin in it."""
    ids, starts = encoded.ids.tolist(), encoded.word_starts
    starts = None if starts is None else starts.tolist()
    end = 0
    for length in encoded.lengths.tolist():
        begin, end = end, end + length
        yield ids[begin:end], starts and starts[begin:end]
