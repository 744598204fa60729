"""The encoder of a tokenizer: the fastest that is proved on the text at hand. All give the ids of
the `tokenizers` library, without special tokens. The packages `nanotoken` (WordPiece) and
`gigatoken` (byte-level BPE) are used only if they are right on a megabyte of the text and on 2,000
hard texts. The memo encoder serves the others: it tokenises only pieces that it has not seen
before, and cuts a text where pre-tokens end whatever surrounds them and the normalizer does not act
across:

    blanks   before an ASCII blank: nothing composes with it
    marks    also on both sides of ASCII punctuation before an ASCII byte; before another byte it
             may be the base of a composed letter, as in = + U+0338
    classes  also between ASCII letters, digits and punctuation, except after an apostrophe ('s is
             one pre-token): no other alternative of GPT-2's expression mixes two of these
"""

# ruff: noqa: RUF001
import contextlib
import functools
import itertools
import json
import os
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import repeat
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, Tokenizer, models, pre_tokenizers

from rungwise.core.arrays import Bools, Ints
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import Ids
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusFile
from rungwise.tokenizer import files

_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True)
class Encoded:
    """The tokens of some texts. P texts, N tokens in all. `ids` [N]: of all texts in order; uint16
    if every id of the vocabulary fits, else uint32. `lengths` [P]: the tokens of each text.
    `word_starts` [N]: True where a word (a pre-token of the tokenizer) begins; None unless
    requested."""

    ids: Ids
    lengths: NDArray[np.int64]
    word_starts: NDArray[np.bool_] | None = None


class TextEncoder(Protocol):
    """Encodes texts as ids. Not thread-safe."""

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        """Return the tokens without special ones; with `words`, also where words begin."""
        ...


class ReferenceEncoder:
    """Encodes every text with the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        return self.join(self.encodings(texts.to_pylist(), words), words)

    def join(self, encodings: list[Encoding], words: bool) -> Encoded:
        """Return the tokens of the library's encodings."""
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        tokens = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        ids = np.fromiter(tokens, self._dtype, int(lengths.sum()))
        if not words:
            return Encoded(ids, lengths)
        starts = [np.empty(0, np.bool_), *map(word_starts, encodings)]
        return Encoded(ids, lengths, np.concatenate(starts))

    def encodings(self, texts: list[str], words: bool) -> list[Encoding]:
        """Return the library's encodings; with `words` they cost more."""
        encode = self._tokenizer.encode_batch if words else self._tokenizer.encode_batch_fast
        with one_thread(), files.refuse_panic():
            return encode(texts, add_special_tokens=False)


def word_starts(encoding: Encoding) -> NDArray[np.bool_]:
    """Return [N]: True at the first token of each word of `encoding`."""
    # A token without a word is one itself: None becomes NaN, which differs from itself.
    numbers = np.array(encoding.word_ids, np.float64)
    starts = np.ones(len(numbers), np.bool_)
    starts[1:] = numbers[1:] != numbers[:-1]
    return starts


def copy_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the same model that finds no special tokens and truncates nothing."""
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return files.disable_extras(Tokenizer.from_str(tokenizer.to_str()))
    # Special tokens are not recognised, so they are left out and the model is shared.
    copy = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer
    return copy


def id_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Return the smallest type for every id of the vocabulary, which may have gaps."""
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    return np.uint16 if largest <= np.iinfo(np.uint16).max else np.uint32


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep the library to one thread, since a task has one core."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


CutRule = Literal["blanks", "marks", "classes"]

_BLANK, _LETTER, _DIGIT, _MARK = 1, 2, 3, 4
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[ord(" ")] = _BLANK
_CLASSES[list(string.ascii_letters.encode())] = _LETTER
_CLASSES[list(string.digits.encode())] = _DIGIT
_CLASSES[list(string.punctuation.encode())] = _MARK


def find_cuts(data: NDArray[np.uint8], rule: CutRule) -> Bools:
    """Return True at each byte of UTF-8 `data` where a piece may begin."""
    classes = np.take(_CLASSES, data)
    cuts = classes == _BLANK
    left, right = classes[:-1], classes[1:]
    if rule == "marks":
        alone = classes == _MARK
        alone[:-1] &= data[1:] < 0x80
        cuts[1:] |= alone[:-1]
        # A mark after a blank forms one piece with it.
        alone[1:] &= left != _BLANK
        cuts |= alone
    elif rule == "classes":
        cuts[1:] |= (left != right) & (left > _BLANK) & (right > _BLANK) & (data[:-1] != ord("'"))
    return cuts


def is_border(piece: str) -> bool:
    """Whether a piece that was cut off before its blank, if any, is one of the whole text. GPT-2's
    expression takes white space up to the last blank as one pre-token."""
    return piece[:1] != " " or (len(piece) > 1 and not piece[1].isspace())


def find_rule(tokenizer: Tokenizer) -> CutRule | None:
    """Return the rule for `tokenizer`, or None if cutting its texts is not known to be safe."""
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    if any(getattr(tokenizer.model, name, None) for name in ("dropout", "alpha", "nbest_size")):
        # Sampling: no two calls give the same pieces.
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if max(vocabulary.values(), default=-1) >= len(vocabulary):
        # The separator of _PieceTokenizer would get an id in use.
        return None
    normalizer, splitter = (
        None if part is None else json.loads(part.__getstate__())
        for part in (tokenizer.normalizer, tokenizer.pre_tokenizer)
    )
    normalizers = {part["type"] for part in _parts(normalizer, "normalizers")}
    composes = normalizers <= {"NFC", "NFD", "Lowercase"}
    drops_blanks = normalizers <= {"NFC", "NFD", "Lowercase", "StripAccents", "BertNormalizer"}
    match [_split_kind(part) for part in _parts(splitter, "pretokenizers")]:
        case ["bert"] if drops_blanks:
            return "marks"
        case ["blank"] | ["blank", "bracket"] if drops_blanks:
            return "blanks"
        case ["metaspace"] if composes:
            return "blanks"
        case ["bytes"] if composes:
            return "classes"
        case ["character"] if composes:
            return "marks"
    return None


def _parts(data: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if data is None:
        return []
    if data["type"] == "Sequence":
        return [inner for part in data[key] for inner in _parts(part, key)]
    return [data]


def _split_kind(part: Mapping[str, Any]) -> str:
    match part:
        case {"type": "BertPreTokenizer"}:
            return "bert"
        case {"type": "WhitespaceSplit"}:
            return "blank"
        # Scheme "first" depends on a piece's position in the text.
        case {"type": "Metaspace", "split": True, "prepend_scheme": "always" | "never"}:
            return "metaspace"
        case {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}:
            return "bytes"
        case {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": pattern}:
            # "bracket" is the rule that keeps `[MASK]` as text; it ignores blanks.
            kinds = {files.EVERY_CHARACTER: "character", files.SPECIAL_IS_TEXT: "bracket"}
            return kinds.get(pattern.get("Regex", ""), "unknown")
    return "unknown"


_MOST_CHARACTERS = 8_000_000  # of a memo's pieces; a full one takes some 300 MB
_PIECES_A_CALL = 100  # the library is slower again with several hundred
_PRIVATE_USE = range(0xE000, 0xF900)


class MemoEncoder:
    """Encodes by looking up pieces; a full memo is emptied, which changes no id."""

    def __init__(self, tokenizer: Tokenizer, rule: CutRule) -> None:
        self._rule: CutRule = rule
        self._pieces = _PieceTokenizer(tokenizer)
        self._dtype = id_type(tokenizer)
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}  # of each piece, its place in `lengths`
        self.characters = 0
        self._ids = np.zeros(0, self._dtype)
        self._lengths = np.zeros(0, np.int64)
        self._word_starts = np.zeros(0, np.bool_)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        offsets, data = text_bytes(texts)
        opens_text = np.zeros(len(data), np.bool_)
        opens_text[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
        cuts = opens_text | find_cuts(data, self._rule)
        pieces, numbers = _number_pieces(data, cuts)
        is_unsafe = np.array([not is_border(piece) for piece in pieces], np.bool_)
        if is_unsafe.any():
            begins = np.flatnonzero(cuts)
            text = np.searchsorted(offsets, begins, side="right") - 1
            cuts[begins[np.isin(text, text[is_unsafe[numbers]])]] = False
            cuts |= opens_text
            pieces, numbers = _number_pieces(data, cuts)
        entries = self._look_up(pieces)[numbers]
        counts = self._lengths[entries]
        sources = (np.cumsum(self._lengths) - self._lengths)[entries]
        ends = np.append(0, np.cumsum(counts))
        # [N]: index of each token in those of the memo, consecutive for each piece.
        places = np.repeat(sources - ends[:-1], counts)
        places += np.arange(len(places))
        first_pieces = np.searchsorted(np.flatnonzero(cuts), offsets)  # [P + 1]: of each text
        return Encoded(
            np.take(self._ids, places),
            np.diff(ends[first_pieces]),
            np.take(self._word_starts, places) if words else None,
        )

    def _look_up(self, pieces: list[str]) -> Ints:
        """Return the entry of each piece; new pieces get one."""
        if self.characters > _MOST_CHARACTERS:
            self._clear()
        entries = np.fromiter(map(self._numbers.get, pieces, repeat(-1)), np.int64, len(pieces))
        missing = np.flatnonzero(entries < 0)
        if len(missing):
            new = [pieces[index] for index in missing.tolist()]
            entries[missing] = len(self._lengths) + np.arange(len(new))
            self._numbers |= zip(new, entries[missing].tolist(), strict=True)
            self.characters += sum(map(len, new))
            ids, lengths, starts = self._pieces.encode(new)
            self._ids = np.concatenate([self._ids, ids.astype(self._dtype)])
            self._lengths = np.concatenate([self._lengths, lengths])
            self._word_starts = np.concatenate([self._word_starts, starts])
        return entries


class _PieceTokenizer:
    """Tokenises many pieces in one call, which costs as much as several words: they are joined by a
    separator that is a special token here, the only one, and the ids are split at it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._separator = next(
            chr(code) for code in _PRIVATE_USE if tokenizer.token_to_id(chr(code)) is None
        )
        self._tokenizer.add_special_tokens([AddedToken(self._separator, normalized=False)])
        self._cut = self._tokenizer.token_to_id(self._separator)
        self._alone = ReferenceEncoder(tokenizer)

    def encode(self, pieces: list[str]) -> tuple[NDArray[np.integer], Ints, Bools]:
        """Return all ids, the tokens of each piece, and True at the first token of each word."""
        ids, lengths, starts = [], [], []
        for begin in range(0, len(pieces), _PIECES_A_CALL):
            batch = pieces[begin : begin + _PIECES_A_CALL]
            text = self._separator.join(batch)
            if text.count(self._separator) == len(batch) - 1:
                encoding = self._tokenizer.encode(text, add_special_tokens=False)
                joined = np.array(encoding.ids, np.int64)
                cuts = joined == self._cut
                places = np.concatenate([[-1], np.flatnonzero(cuts), [len(joined)]])
                ids.append(joined[~cuts])
                lengths.append(np.diff(places) - 1)
                starts.append(word_starts(encoding)[~cuts])
            else:
                alone = self._alone.encode(pa.array(batch, pa.string()), words=True)
                ids.append(alone.ids)
                lengths.append(alone.lengths)
                starts.append(alone.word_starts)
        return np.concatenate(ids), np.concatenate(lengths), np.concatenate(starts)


def _number_pieces(data: NDArray[np.uint8], cuts: Bools) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct pieces of `data`, which begin at `cuts`, and the number of each piece."""
    begins = np.flatnonzero(cuts)
    offsets = pa.py_buffer(np.append(begins, len(data)).astype(np.int32))
    pieces = pa.StringArray.from_buffers(len(begins), offsets, pa.py_buffer(data))
    encoded = pieces.dictionary_encode()
    return encoded.dictionary.to_pylist(), int32_values(encoded.indices)


def text_bytes(texts: pa.StringArray) -> tuple[Ints, NDArray[np.uint8]]:
    """Return the offsets of the texts, [P + 1], in their joined bytes, and these, not copied."""
    assert texts.null_count == 0, "a text is missing"
    _, offsets_buffer, data_buffer = texts.buffers()
    if len(texts) == 0 or offsets_buffer is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    return (offsets - offsets[0]).astype(np.int64), data[offsets[0] : offsets[-1]]


def int32_values(numbers: pa.Int32Array) -> NDArray[np.int32]:
    """View `numbers`, without nulls. `to_numpy` would import pandas: a quarter second."""
    buffer = numbers.buffers()[1]
    assert buffer is not None or len(numbers) == 0, "numbers without values"
    values = np.frombuffer(buffer, np.int32) if buffer else np.zeros(0, np.int32)
    return values[numbers.offset :][: len(numbers)]


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


def list_versions() -> dict[str, str]:
    """Return the versions of the installed packages that encode."""
    packages = ("tokenizers", *get_args(Package))
    return {name: version(name) for name in packages if find_spec(name)}


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
        # [V]: whether each token begins a word.
        self._begins_word = np.ones(max(vocabulary.values(), default=-1) + 1, np.bool_)
        inner = [index for piece, index in vocabulary.items() if piece.startswith("##")]
        self._begins_word[inner] = False

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

PROOF_BYTES, LEAST_PROOF_BYTES, REPEATED_PROOF_BYTES = 1_000_000, 1 << 17, 1 << 15
_HARD_TEXTS = 2000
_SAMPLED_FILES = 16
_SHOWN_CHARACTERS = 80


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
    return _open_encoder(folder.read_bytes(files.FILE), choice)


@functools.lru_cache(maxsize=2)  # each may take 300 MB
def _open_encoder(data: bytes, choice: EncoderChoice) -> TextEncoder:
    return make_encoder(Tokenizer.from_str(data.decode("utf-8")), choice.backend)


def choose_encoder(
    tokenizer: Tokenizer, sample: pa.StringArray, with_hard_texts: bool = True
) -> EncoderChoice:
    """Return the package made for this tokenizer, proved on the first PROOF_BYTES of `sample` and
    on adversarial texts, or the memo; where it replaces a package that is missing or errs, the
    choice says why."""
    package = matching_package(tokenizer)
    if package is None:
        return EncoderChoice()
    try:
        encoder = make_encoder(tokenizer, package)
        text = _first_difference(encoder, tokenizer, sample, with_hard_texts)
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


def sample_corpus(
    corpus: Folder, files: Sequence[CorpusFile], num_bytes: int = PROOF_BYTES
) -> pa.StringArray:
    """Return about `num_bytes` of sentences, or a tenth of little text, from files spread evenly.
    Raises DataError for an unreadable file."""
    sample = files[:: max(1, len(files) // _SAMPLED_FILES)]
    little = max(LEAST_PROOF_BYTES, sum(file.bytes for file in files) // 10)
    sentences: list[str] = []
    for file in sample:
        remaining = min(num_bytes, little) // len(sample)
        for document in read_documents(corpus, file.file):
            sentences += document.sentences
            remaining -= sum(map(len, document.sentences))
            if remaining <= 0:
                break
    return pa.array(sentences, pa.string())


def _first_difference(
    encoder: TextEncoder, tokenizer: Tokenizer, sample: pa.StringArray, with_hard_texts: bool
) -> str | None:
    """Return a text that `encoder` and the library encode differently, words included."""
    reference = ReferenceEncoder(tokenizer)
    offsets, _ = text_bytes(sample)
    first = sample.slice(0, int(np.searchsorted(offsets, PROOF_BYTES, side="right")) - 1)
    for texts in (*([hard_texts(0, _HARD_TEXTS)] if with_hard_texts else []), first):
        expected = _by_text(reference.encode(texts, words=True))
        encoded = _by_text(encoder.encode(texts, words=True))
        ids_alone = _by_text(encoder.encode(texts))
        rows = zip(texts.to_pylist(), expected, encoded, ids_alone, strict=True)
        for text, tokens, others, (ids, _) in rows:
            if others != tokens or ids != tokens[0]:
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
