"""Read tokenizers from files, an artifact's or other people's; the roles of their special tokens;
and the clean-up that corpus/cleaning/text.py does, for text from outside the corpus.

Patterns that take the library for ever are refused by a bounded trial: repeated more often each
time, what a pattern may match, and then what it may not. A trial cannot prove that there is none.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import SourceFile, find_files
from rungwise.core.tokens import KNOWN_NAMES, ROLE_NAMES, UNK, SpecialIds
from rungwise.corpus.cleaning import text as cleaning
from rungwise.tokenizer.config import TokenizerFileConfig, TrainedConfig

FILE = "tokenizer.json"
_VOCAB_TXT, _VOCAB_JSON, _MERGES = "vocab.txt", "vocab.json", "merges.txt"
_TRANSFORMERS_JSON = "tokenizer_config.json"
_KEY = "tokenizer.path"
EVERY_CHARACTER = r"[\s\S]"
SPECIAL_IS_TEXT = r"\[(?=(?:PAD|UNK|CLS|SEP|MASK)\])"


def load_tokenizer(folder: Folder) -> Tokenizer:
    """Return the tokenizer of an artifact. `[MASK]` or `[SEP]` in a text is split like any text and
    never becomes a special token."""
    data = folder.read_bytes(FILE)
    if b'"Regex"' in data:
        refuse_slow_patterns(json.loads(data), folder.path(FILE))
    return disable_extras(Tokenizer.from_str(data.decode("utf-8")))


def disable_extras(tokenizer: Tokenizer) -> Tokenizer:
    """Turn off special tokens, truncation and padding, so that all ids of a text return."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tokenizer(config: TokenizerFileConfig) -> Tokenizer:
    """Read the tokenizer at `config.path`. Raises DataError naming the file, and the line if any,
    if it is missing or malformed."""
    files = {file.name.rpartition("/")[2]: file for file in _files(config)}
    if {_VOCAB_JSON, _MERGES} <= files.keys():
        file = files[_VOCAB_JSON]
        tokenizer = _read_gpt2(file, files[_MERGES])
    else:
        [(name, file)] = files.items()
        tokenizer = _read_json(file) if name.endswith(".json") else _read_vocab_txt(file, config)
    ids = sorted(tokenizer.get_vocab().values())
    if ids != [*range(len(ids))]:
        raise DataError(
            f"{_KEY}: {file.uri}: expected the ids 0 to {len(ids) - 1:,} for its {len(ids):,} "
            f"tokens, found others up to {max(ids):,}; number the tokens without gaps"
        )
    return disable_extras(tokenizer)


def input_digests(config: TrainedConfig | TokenizerFileConfig) -> dict[str, Any]:
    """Return the digest of a vocabulary read from a file; nothing for a trained one. Raises
    DataError if the file is missing, or states another treatment of letters."""
    if not isinstance(config, TokenizerFileConfig):
        return {}
    digest = hashlib.sha256()
    files = _files(config)
    if files[0].name == _VOCAB_TXT:
        _check_transformers(config, files[0])
    for file in files:
        with file.open() as stream:
            file_digest = hashlib.sha256(stream.read()).hexdigest()
        digest.update(file_digest.encode())
    return {"path": {"sha256": digest.hexdigest()}}


def _files(config: TokenizerFileConfig) -> list[SourceFile]:
    with explain_connection_errors(config.path, _KEY):
        files = find_files(config.path)
    by_name = {file.name: file for file in files}
    for names in ((FILE,), (_VOCAB_JSON, _MERGES), (_VOCAB_TXT,)):
        if all(name in by_name for name in names):
            return [by_name[name] for name in names]
    if len(files) == 1 and files[0].name.endswith((".txt", ".json")):
        return files
    raise DataError(
        f"{_KEY}: expected vocab.txt, tokenizer.json, or a folder with one of them or with "
        f"vocab.json and merges.txt, found {', '.join(sorted(by_name)[:5]) or 'nothing'} at "
        f"{config.path}"
    )


def _check_transformers(config: TokenizerFileConfig, vocabulary: SourceFile) -> None:
    """Compare with what transformers wrote beside a vocab.txt, which cannot state it itself."""
    uri = vocabulary.uri.removesuffix(_VOCAB_TXT) + _TRANSFORMERS_JSON
    for file in find_files(uri):
        settings = _parse_json(file, read_text(file, _KEY))
        if not isinstance(settings, dict):
            raise _fault(file, f"expected an object, found a {type(settings).__name__}")
        case = settings.get("do_lower_case", config.lowercase)
        accents = settings.get("strip_accents")
        strips = config.lowercase if config.strip_accents is None else config.strip_accents
        for key, name, stated, own in (
            ("lowercase", "do_lower_case", case, config.lowercase),
            ("strip_accents", "strip_accents", case if accents is None else accents, strips),
        ):
            if stated != own:
                raise DataError(
                    f"tokenizer.{key} is {json.dumps(getattr(config, key))}, but {name} is "
                    f"{json.dumps(stated)} in {uri}; set tokenizer.{key}={json.dumps(stated)}"
                )
        if settings.get("tokenize_chinese_chars") is False:
            raise DataError(
                f"{uri}: tokenize_chinese_chars is false, but a vocab.txt is read with true; load "
                "the tokenizer with AutoTokenizer of transformers and save it, which writes the "
                f"{FILE} that says so"
            )


def _read_vocab_txt(file: SourceFile, config: TokenizerFileConfig) -> Tokenizer:
    # Only a line feed ends a line: vocabularies contain other line separators as pieces.
    lines = read_text(file, _KEY).removesuffix("\n").split("\n")
    pieces: dict[str, int] = {}
    for index, line in enumerate(lines):
        piece = line.removesuffix("\r")
        if not piece:
            raise _fault(file, "expected a piece, found nothing", index + 1)
        if piece in pieces:
            raise _fault(file, f"{piece!r} is on line {pieces[piece] + 1} too", index + 1)
        pieces[piece] = index
    unknown = next((name for name in ROLE_NAMES["unk"] if name in pieces), None)
    if unknown is None:
        names = ", ".join(ROLE_NAMES["unk"])
        problem = f"no unknown token among its {len(pieces):,} lines (looked for {names})"
        raise _fault(file, f"{problem}; is it a WordPiece vocabulary?")
    tokenizer = wordpiece(pieces, config.lowercase, config.strip_accents, unknown)
    tokenizer.add_special_tokens([name for name in KNOWN_NAMES if name in pieces])
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


def _read_json(file: SourceFile) -> Tokenizer:
    text = read_text(file, _KEY)
    refuse_slow_patterns(_parse_json(file, text), f"{_KEY}: {file.uri}")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:
        raise DataError(
            f"{_KEY}: {file.uri} is JSON, but not a tokenizer.json of the tokenizers library "
            f"({error}); a vocab.json needs its merges.txt beside it, give the folder of both"
        ) from error


def _read_gpt2(vocabulary_file: SourceFile, merges_file: SourceFile) -> Tokenizer:
    vocabulary = _parse_json(vocabulary_file, read_text(vocabulary_file, _KEY))
    if not isinstance(vocabulary, dict):
        raise _fault(vocabulary_file, "expected an object of token to id")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(merges_file, _KEY).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            problem = f"expected two tokens of {vocabulary_file.name} that are one together"
            raise _fault(merges_file, f"{problem}, found {line!r}", number)
        merges.append((left, right))
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except TypeError as error:  # half of a character, or an id that is no index
        detail = str(error).splitlines()[min(1, str(error).count("\n"))]
        raise _fault(vocabulary_file, f"expected an object of token to id: {detail}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([name for name in KNOWN_NAMES if name in vocabulary])
    return tokenizer


def read_text(file: SourceFile, key: str) -> str:
    """Read a file in UTF-8; raises DataError that names its line and the config key `key`."""
    with file.open() as stream:
        data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{key}: {file.uri} line {line} is not UTF-8: {error.reason}") from error


def _parse_json(file: SourceFile, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _fault(file, f"not JSON: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise _fault(file, f"not JSON that can be read: {error}") from error  # a huge number
    except RecursionError:
        problem = "expected a vocabulary, found values that are nested too deeply"
        raise _fault(file, problem) from None


def _fault(file: SourceFile, problem: str, line: int | None = None) -> DataError:
    place = file.uri if line is None else f"{file.uri} line {line}"
    return DataError(f"{_KEY}: {place}: {problem}")


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """Return the roles of the special tokens of `tokenizer`. Special tokens are added tokens marked
    as such, and the model's unknown token. A word that only looks like one, such as `<unk>` in a
    vocabulary of words, is not."""
    special = {
        token.content: index
        for index, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    unknown = _unknown_token(tokenizer)
    if unknown is not None and (index := tokenizer.token_to_id(unknown)) is not None:
        special.setdefault(unknown, index)
    roles = {
        role: next((special[name] for name in names if name in special), None)
        for role, names in ROLE_NAMES.items()
    }
    if roles["unk"] is None and unknown is not None:
        roles["unk"] = special.get(unknown)
    return SpecialIds(**roles, ids=tuple(sorted(special.values())))


def _unknown_token(tokenizer: Tokenizer) -> str | None:
    model = tokenizer.model
    if not isinstance(model, models.Unigram):
        return getattr(model, "unk_token", None)
    # A Unigram model states its unknown id only in its file.
    index = json.loads(model.__getstate__())["unk_id"]
    return None if index is None else tokenizer.id_to_token(index)


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, by id: its content if byte-level, else UTF-8 of the piece
    with its marks (`##ing`, `▁the`); empty for an id without a token."""
    pieces = [
        tokenizer.id_to_token(index) or ""
        for index in range(tokenizer.get_vocab_size(with_added_tokens=True))
    ]
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        return [piece.encode() for piece in pieces]
    # GPT-2's letters: printable Latin-1 for itself, other bytes in order from U+0100.
    letters = {chr(byte): byte for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [byte for byte in range(256) if chr(byte) not in letters]
    letters |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return [
        bytes(letters[letter] for letter in piece)
        if all(letter in letters for letter in piece)
        else piece.encode()  # added as it stands
        for piece in pieces
    ]


_STEPS = (
    normalizers.Replace(
        Regex(f"[{cleaning.CONTROLS}{cleaning.INVISIBLE}{cleaning.UNREADABLE}]"), ""
    ),
    normalizers.Replace(Regex(f"[\t{cleaning.ODD_BLANKS}]"), " "),
    normalizers.Replace(Regex(f"[\v\f\r{cleaning.LINE_BREAKS}]"), "\n"),
    normalizers.NFC(),
    normalizers.Replace(Regex(cleaning.JOINERS), ""),
    normalizers.NFC(),  # without the joiner, a letter and its accent may meet
    normalizers.Replace(Regex(cleaning.HTML_BREAK), " "),
    normalizers.Replace(Regex("[ \n]{2,}|\n"), " "),
    normalizers.Strip(),
)
CLEAN_UP = normalizers.Sequence(list(_STEPS))
_BEFORE = "a"  # a word of its own in every vocabulary


def load_reader(folder: Folder) -> Tokenizer:
    """Return the tokenizer of an artifact for text from outside the corpus: it cleans up first."""
    tokenizer = load_tokenizer(folder)
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([*_STEPS, *own])  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def remove_clean_up(tokenizer: Tokenizer) -> Tokenizer:
    """Take the clean-up off the tokenizer of an export, and return it: the corpus is clean, and the
    encoders know the normalizer that is left."""
    normalizer = tokenizer.normalizer
    is_sequence = isinstance(normalizer, normalizers.Sequence)
    steps = list(normalizer) if is_sequence else []  # pyright: ignore[reportArgumentType]
    first, own = steps[: len(_STEPS)], steps[len(_STEPS) :]
    if [each.__getstate__() for each in first] == [each.__getstate__() for each in _STEPS]:
        # The library writes a sequence in a sequence as one.
        rest = own[0] if len(own) == 1 else normalizers.Sequence(own) if own else None
        tokenizer.normalizer = rest  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def ids_after_blank(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the ids of each word as after a blank in a text, which some vocabularies write into
    the word, and the clean-up takes from its front."""
    (alone, *both) = tokenizer.encode_batch_fast(
        [_BEFORE, *(f"{_BEFORE} {word}" for word in words)], add_special_tokens=False
    )
    return [encoding.ids[len(alone.ids) :] for encoding in both]


_SECONDS = 0.02  # of the processor, for a text of at most a few hundred characters
_COUNTS = (12, 20, 30, 50, 100)  # of repetitions: a slow one is found before the library gives up
_MOST_ATOMS, _WIDEST = 60, 3
_STOPS = ("!", "\n", "\0")
_CHARACTERS = "aAzZ09 _-.,'\n\xe9\u0301\u4e2d"
_ATOM = re.compile(
    r"""\(\?\#[^)]*\) | \(\?(?:<?[=!]|>|<\w+>|[\w-]*:)? | \{\d*,?\d*\} | [()|*+?^$]  # no atom
    | (?P<atom>\\[pP]\{[^}]*\} | \\. | \[(?:\\.|\[(?:\\.|[^\]])*\]|(?<=\[)\^?\]|[^\]])*\] | .)""",
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Any, source: str) -> None:
    """Raise DataError for a tokenizer.json, parsed, with a pattern that may take for ever."""
    match tokenizer:
        case {"Regex": str(pattern)}:
            if (text := find_slow_text(pattern)) is not None:
                raise DataError(
                    f"{source}: the pattern {pattern!r:.80} may take for ever, as on {text!r:.60}; "
                    "write it so that a text can be matched in one way only"
                )
        case dict():
            # Not the vocabulary, which has no patterns and millions of entries.
            for key in tokenizer.keys() - {"model", "added_tokens"}:
                refuse_slow_patterns(tokenizer[key], source)
        case list():
            for each in tokenizer:
                refuse_slow_patterns(each, source)


@functools.cache
def find_slow_text(pattern: str) -> str | None:
    """Return a text on which the pattern takes too long; None if none of those tried does."""
    try:
        splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # no pattern, which whoever builds the tokenizer says
        return None
    for text in _texts(pattern):
        start = time.thread_time()
        try:
            with refuse_panic():
                splitter.pre_tokenize_str(text)
        except DataError:
            return text
        if time.thread_time() - start > _SECONDS:
            return text
    return None


def _texts(pattern: str) -> Iterator[str]:
    """Yield a few characters that atoms of the pattern match, repeated, behind those that the atoms
    before match, or behind nothing. What all atoms match stands at the end: without it the library
    may see that there is nothing to search."""
    atoms = [match["atom"] for match in _ATOM.finditer(pattern) if match["atom"]][:_MOST_ATOMS]
    samples = [_samples(atom, pattern) for atom in atoms] or [[""]]
    texts = ["".join(each) for each in zip(*samples, strict=True)]
    units = {
        (before, text[place : place + width]): None
        for text in texts
        for place in range(len(atoms))
        for width in range(1, _WIDEST + 1)
        for before in ("", texts[0][:place])
    }
    ends = ["", *(stop + texts[0] for stop in _STOPS)]
    for (before, unit), end, count in itertools.product(units, ends, _COUNTS):
        yield before + unit * count + end


def _samples(atom: str, pattern: str) -> list[str]:
    """Three characters that an atom matches, not always different ones."""
    try:
        remover = normalizers.Replace(Regex(atom), "")
    except Exception:  # a part of something else, such as a back reference
        return [atom[-1:]] * 3
    letters = sorted({*pattern, *_CHARACTERS})
    matches = [each for each in letters if not remover.normalize_str(each)] or [atom[-1:]]
    return [matches[0], matches[len(matches) // 2], matches[-1]]


@contextlib.contextmanager
def refuse_panic() -> Iterator[None]:
    """Raise DataError where the tokenizers library gives up on a text: it panics, with an exception
    that is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizers library gives up on a text ({error}); simplify the patterns of "
            "tokenizer.json, or leave the text out"
        ) from error
