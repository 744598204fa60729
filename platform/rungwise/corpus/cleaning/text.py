"""Clean-up of the text of a document: its characters, its sentences, and whether it is prose.

    clean("na\\u0308ive\\u00a0text\\r\\n") == Cleaned("näive text\\n", removed=0, replaced=0)
    segment('Dr. Smith paid $3.50. "Why?" he asked.') ==
        ["Dr. Smith paid $3.50.", '"Why?" he asked.']

Characters that look the same are unified, and invisible ones removed, on UTF-8 bytes, at a
nanosecond a byte per step. Line breaks stay, since readers and segmentation need them, and HTML's
become such.

Sentences are found by one regular expression. One ends at . ! ? … with its closing quotes and
brackets, before white space and a capital, a digit or an opening quote; in Chinese and Japanese at
。！？. A full stop does not end one after a title or a Latin abbreviation, after a counting word or
a month before a digit, after a word that may end a sentence (etc., U.S.) unless an opener follows,
nor after the number of a list item. In a text without capitals, a small letter opens a sentence
too. A line break always ends one.

The rules that tell prose from tables, lists, blobs and boilerplate in any language are after Rae et
al. 2021 (arXiv:2112.11446, appendix A1.1), without blanks or word lists."""

# ruff: noqa: RUF001, RUF002  (quotes and stops of other scripts are the subject here)
import functools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_ASCII = bytes(range(128))
_MAPPED = bytes.maketrans(b"\t\v\f\r", b" \n\n\n")
# The characters of each kind, in strings, since tokenizer/files.py writes patterns of them.
CONTROLS = "".join(map(chr, [*range(9), *range(0x0E, 0x20), 0x7F]))
# Marks between paragraphs and documents: clean text holds no control characters.
PARAGRAPH, DOCUMENT = "\1", "\2"
_MARKS = re.compile("[\1\2]")
_CONTROLS = CONTROLS.encode()
_CONTROLS_BUT_MARKS = _CONTROLS.translate(None, b"\1\2")
# Also line breaks: NEL and the Unicode separators.
LINE_BREAKS = "\x85\u2028\u2029"
ODD_BLANKS = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Soft hyphen, zero-width space, direction marks, word joiner and its kin, BOM.
INVISIBLE = "\u00ad\u180e\u200b\u200e\u200f\ufeff" + "".join(
    map(chr, (*range(0x202A, 0x202F), *range(0x2060, 0x2070)))
)
# C1 controls and noncharacters, as ranges.
UNREADABLE = "\x80-\x84\x86-\x9f\ufdd0-\ufdef\ufffe\uffff"
# And lone surrogates: JSON can hold them, UTF-8 cannot.
_UNREADABLE = re.compile(f"[{UNREADABLE}\ud800-\udfff]")
# Zero-width (non-)joiners spell Persian, Indic scripts and emoji; beside ASCII they are noise.
JOINERS = "(?<![^\x00-\x7f])[\u200c\u200d]++|(?<=[^\x00-\x7f])[\u200c\u200d]++(?![^\x00-\x7f])"
_JOINERS = re.compile(JOINERS)
HTML_BREAK = "<[bB][rR] */?>"
_HTML_BREAK = re.compile(HTML_BREAK.encode())


class Cleaned(NamedTuple):
    """The text, the unreadable characters removed, and the U+FFFD left in it."""

    text: str
    removed: int
    replaced: int


def clean(text: str) -> Cleaned:
    """Return `text` in NFC, with plain line breaks, single spaces and no invisible characters.
    Replacement characters (U+FFFD) stay, since they mark lost text, and are counted."""
    if text.isascii() and text.isprintable() and "  " not in text and "<" not in text:
        return Cleaned(text.strip(" "), 0, 0)
    return _clean(text, _CONTROLS)


def clean_all(documents: Sequence[Sequence[str]]) -> Cleaned:
    """Clean the paragraphs of many documents at once, in a tenth of the time. In the result, a line
    of `PARAGRAPH` separates paragraphs and a line of `DOCUMENT` documents."""
    between = f"\n{PARAGRAPH}\n"
    joined = f"\n{DOCUMENT}\n".join(map(between.join, documents))
    num_marks = sum(max(0, len(paragraphs) - 1) for paragraphs in documents)
    removed = joined.count(PARAGRAPH) - num_marks
    removed += joined.count(DOCUMENT) - max(0, len(documents) - 1)
    if removed:
        plain = ([_MARKS.sub("", text) for text in paragraphs] for paragraphs in documents)
        joined = f"\n{DOCUMENT}\n".join(map(between.join, plain))
    cleaned = _clean(joined, _CONTROLS_BUT_MARKS)
    return cleaned._replace(removed=cleaned.removed + removed)


def _clean(text: str, controls: bytes) -> Cleaned:
    data = text.encode("utf-8", "surrogatepass")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    length = len(data)
    data = data.translate(_MAPPED, controls)
    removed = length - len(data)
    if text.isascii():
        return Cleaned(_single_blanks(data).decode("ascii").strip(), removed, 0)
    others = data.translate(None, _ASCII).decode("utf-8", "surrogatepass")
    codes = np.frombuffer(others.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = frozenset(map(chr, np.unique(codes).tolist()))
    for several, plain in ((LINE_BREAKS, b"\n"), (INVISIBLE, b""), (ODD_BLANKS, b" ")):
        for kind in kinds.intersection(several):
            data = data.replace(kind.encode(), plain)
    text = data.decode("utf-8", "surrogatepass")
    if _UNREADABLE.search("".join(kinds)):
        text, count = _UNREADABLE.subn("", text)
        removed += count
    text = _compose(text)
    if not kinds.isdisjoint("\u200c\u200d"):
        # Without the joiner, a letter and its accent may meet.
        text = _compose(_JOINERS.sub("", text))
    text = _single_blanks(text.encode()).decode().strip()
    return Cleaned(text, removed, text.count("\ufffd"))


def _single_blanks(data: bytes) -> bytes:
    """Write HTML's line breaks plainly; remove blanks after a blank and beside a line break."""
    data = _HTML_BREAK.sub(b"\n", data)
    codes = np.frombuffer(bytearray(data), np.uint8)
    blank = codes == ord(" ")
    again = blank[1:] & blank[:-1]
    if again.any():
        # Zeros are deleted: clean text has no others.
        codes[1:] *= ~again
        codes = np.frombuffer(bytearray(codes.tobytes().translate(None, b"\0")), np.uint8)
        blank = codes == ord(" ")
    line_break = codes == ord("\n")
    beside = blank[1:-1] & (line_break[2:] | line_break[:-2])
    if beside.any():
        codes[1:-1] *= ~beside
        return codes.tobytes().translate(None, b"\0")
    return codes.tobytes()


def _compose(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


# How the bytes of UTF-8 look in Windows' encoding of Western languages: those that begin a
# character of two or three bytes, and those that continue one.
_BYTES = [
    bytes([code]).decode("cp1252", "replace").replace("\ufffd", chr(code)) for code in range(256)
]
_AS_BYTES = {character: code for code, character in enumerate(_BYTES)}
_MORE = "".join(map(re.escape, _BYTES[0x80:0xC0]))
_MISREAD = re.compile(
    f"[{''.join(_BYTES[0xC2:0xE0])}][{_MORE}]|[{''.join(_BYTES[0xE0:0xF0])}][{_MORE}]{{2}}"
)
_WITHOUT_ASCII = bytes(code if code >= 0x80 else ord(" ") for code in range(256))
_FEWEST_MISREAD, _MISREAD_SHARE = 3, 0.2


def describe_lost_characters(text: str) -> list[str]:
    """Return notes on text that was decoded wrongly before it came here."""
    notes = []
    if lost := text.count("\ufffd"):
        notes.append(
            f"{lost:,} characters were lost before (\ufffd), where the text was decoded wrongly"
        )
    data = text.encode("utf-8", "surrogatepass").translate(_WITHOUT_ASCII)
    misread = Counter(_MISREAD.findall(b" ".join(data.split()).decode("utf-8", "surrogatepass")))
    others = len(text) - len(text.encode("ascii", "ignore"))
    if misread.total() >= _FEWEST_MISREAD and 2 * misread.total() >= _MISREAD_SHARE * others:
        usual = misread.most_common(1)[0][0]
        right = bytes(_AS_BYTES[character] for character in usual).decode("utf-8", "replace")
        notes.append(
            f"{misread.total():,} places look like UTF-8 read in another encoding, such as "
            f"{usual} for {right}; mend the text first, for example by ftfy"
        )
    return notes


# Scripts, and the least share of letters that shows them; Japanese first, as it also writes Han.
_SCRIPTS = {
    "Japanese": (re.compile("[\u3040-\u30ff]"), 0.1),
    "Korean": (re.compile("[\uac00-\ud7a3]"), 0.3),
    "Chinese": (re.compile("[\u3400-\u9fff]"), 0.3),
}


def guess_language(text: str) -> str:
    """Guess the language or script of a text by its letters."""
    letters = sum(map(str.isalpha, text)) or 1
    for name, (pattern, share) in _SCRIPTS.items():
        if len(pattern.findall(text)) / letters > share:
            return name
    latin = sum(letter.isascii() and letter.isalpha() for letter in text) / letters
    return "Latin letters" if latin > 0.7 else "letters other than Latin"


_TITLES = (
    "Mr Mrs Ms Mx Dr Drs Prof St Ste Gen Col Lt Capt Cmdr Maj Sgt Rep Reps Sen Sens Gov Pres Rev "
    "Hon Messrs Mme Mlle Mt Ft e.g i.e E.g I.e eg ie vs cf Cf viz ca approx resp w.r.t"
)
_COUNTED = (
    "No no Nos nos Fig Figs fig figs Eq Eqs eq eqs Sec Secs sec Ch ch Vol vol Art art p pp Pp Op "
    "Ref Refs Thm Def Lemma Prop Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
_MAYBE_LAST = (
    "Inc Corp Co Cos Ltd Bros Jr Sr Ph.D M.D B.A M.A etc al a.m p.m A.M P.M Assn Dept Univ Ave Blvd"
)
# Words that open sentences far more often than they follow an abbreviation.
_OPENERS = (
    "The|This|That|These|Those|There|Then|It|Its|If|In|We|You|He|She|They|His|Her|Their|Our|A|An|"
    "And|But|So|For|As|At|By|On|To|When|Where|While|With|Note|Use|Used|Return|Returns|See|Also|"
    "After|Before|However|Only|Each|All|Any|Some|Not|No|What|Who|How|Why"
)
# For texts without capitals: words that hardly ever follow an abbreviation.
_SURE_OPENERS = "The|This|That|These|Those|There|Then|It|If|We|You|He|She|They|But|However"
_LOWER = "a-zß-öø-ÿāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįıĵķĺļľłńņňōŏőœŕřśŝşšţťũūŭůűųŵŷźżžα-ωά-ώа-џ"
_WIDE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana and Han
_WIDE_CLOSING = "”’」』）》】〉〕\"'"
_CLOSING = "\"'”’»)\\]}`*"
_OPENING = "\"'“‘«([{`*¿¡„"


def _same_length(words: str) -> Iterator[str]:
    """Group `words` into alternatives of equal length: look-behinds have a fixed width."""
    by_length: dict[int, list[str]] = {}
    for word in words.split():
        by_length.setdefault(len(word), []).append(re.escape(word))
    return ("|".join(group) for group in by_length.values())


def _exclude_after(words: str) -> str:
    return "".join(rf"(?<!\b(?:{group})\.)" for group in _same_length(words))


def _end(case: str, openers: str, begins: str) -> re.Pattern[str]:
    """Return the pattern of a sentence end; `case` "i" ignores case, `begins` opens a sentence."""
    after_number = "|".join(rf"(?<=\b(?:{words})\.\s[0-9]\.)" for words in _same_length(_COUNTED))
    # The engine scans for the first class; the branches then tell the characters apart.
    return re.compile(
        rf"""
    [.!?…\n。！？．｡]
    (?: (?: (?{case}: (?<=\.) (?!\.)
            {_exclude_after(_TITLES)}
            (?: {_exclude_after(_COUNTED)} | (?! \s+ [0-9(\[] ) )
            (?: {_exclude_after(_MAYBE_LAST)} (?<!\b[A-Z]\.) | (?= \s+ (?:{openers})\b ) )
            (?<! ^ [0-9]\. ) (?<! ^ [0-9][0-9]\. )
            (?: (?<! [.!?:;]\s [0-9]\. ) | {after_number} ) )
          | (?<=\.) (?=\.)
          | (?<=[!?…])
        )
        [.!?…]* [{_CLOSING}]* \s+
        (?= [{_OPENING}]* {begins} )
      | (?: (?<=[。！？｡]) | (?<=．) (?![0-9０-９]) | (?<=[{_WIDE}]…) )
        [。！？…]*+ [{_WIDE_CLOSING}]*+ (?! [，、；：,;] ) \s*
      | (?: (?<=[{_WIDE}][.!?]) (?= [{_WIDE_CLOSING}]* [{_WIDE}A-Z0-9(（\[“‘「『《【] )
          | (?<=[)）\]%％][.!?]) (?= [{_WIDE_CLOSING}]* [{_WIDE}] )
          | (?<=[0-9a-zA-Z][0-9a-zA-Z][.!?]) (?<! [\s;:。；：] [0-9][0-9]\. )
            (?= [{_WIDE_CLOSING}]* [{_WIDE}] )
        )
        [{_WIDE_CLOSING}]*+
      | (?<=\n) \s*
    )
    """,
        re.VERBOSE | re.MULTILINE,
    )


_END = _end("", _OPENERS, rf"[^\W_{_LOWER}]")
_END_WITHOUT_CAPITALS = _end("i", _SURE_OPENERS, r"[^\W_]")
_STOP = re.compile("[.!?…\n。！？．｡]")
# Runs of stops: if the first ends no sentence, none does, since the text behind decides.
_RUN = re.compile(r"(?: [!?…] | \.(?=\.) ) [.!?…]* | [。！？][。！？…]*", re.VERBOSE)


def segment(text: str) -> list[str]:
    """Return the sentences of `text`, none empty; they hold all but its white space."""
    sentences: list[str] = []
    ends = _END_WITHOUT_CAPITALS if text.islower() else _END
    start = counted = quotes = searched = 0
    for candidate in _STOP.finditer(text):
        if (at := candidate.start()) < searched:
            continue
        if text[at] == "\n":
            stop = searched = at + 1
        elif end := ends.match(text, at):
            stop = searched = end.end()
            if text[stop - 1] == '"' and stop - at > 1:
                # The same mark opens and closes; without blanks only its count tells which.
                opened = max(counted, text.rfind("\n", counted, stop) + 1)
                marks = sum(text.count(mark, opened, stop) for mark in '"“”')
                quotes = marks + (quotes if opened == counted else 0)
                counted = stop
                stop -= quotes % 2
        else:
            if run := _RUN.match(text, at):
                searched = run.end()
            continue
        if sentence := text[start:stop].strip():
            sentences.append(sentence)
        start = stop
    if sentence := text[start:].strip():
        sentences.append(sentence)
    return sentences


# Scripts written without blanks: Thai, Lao, Tibetan, Myanmar, Khmer, kana and Han.
_NO_BLANKS_RANGES = (
    "\u0e00\u0fff",
    "\u1000\u109f",
    "\u1780\u17ff",
    "\u2e80\u9fff",
    "\uf900\ufaff",
    "\U00020000\U0003ffff",
)
_NO_BLANKS = re.compile("[" + "".join(map("-".join, _NO_BLANKS_RANGES)) + "]")
_OTHER, _BLANK, _LETTER, _DIGIT, _LOST = range(5)


# Shares of the visible characters.
_LEAST_LETTERS, _MOST_DIGITS, _MOST_LOST = 0.6, 0.2, 0.01
# Characters in a row without a blank, in scripts that use blanks; a longer run is encoded data.
_LONGEST_RUN = 500
# Shares of the text: in sentences that the document has had before, and in all copies of one.
_MOST_REPEATED, _MOST_OF_ONE = 0.3, 0.2


def find_fault(sentences: Sequence[str]) -> str:
    """Return the reason to drop a document, such as "quality: few letters", or ""."""
    text = " ".join(sentences)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(_classes()[codes], minlength=5)
    visible = max(1, int(counts.sum() - counts[_BLANK]))
    words = (word for word in text.split(" ") if len(word) > _LONGEST_RUN)
    repeats = [(len(one), count) for one, count in Counter(sentences).items() if count > 1]
    repeated = sum(length * (count - 1) for length, count in repeats)
    most = max((length * count for length, count in repeats), default=0)
    faults = {
        "many lost characters": counts[_LOST] > _MOST_LOST * visible,
        "few letters": counts[_LETTER] < _LEAST_LETTERS * visible,
        "many digits": counts[_DIGIT] > _MOST_DIGITS * visible,
        "long run without a blank": any(
            len(part) > _LONGEST_RUN for word in words for part in _NO_BLANKS.split(word)
        ),
        "repeated sentences": repeated > _MOST_REPEATED * len(text),
        "one sentence again and again": most > _MOST_OF_ONE * len(text),
    }
    return next((f"quality: {fault}" for fault, is_there in faults.items() if is_there), "")


def is_word(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is a letter, a mark on one, or a digit."""
    classes = _classes().take(codes)
    return (classes == _LETTER) | (classes == _DIGIT)


def is_word_alone(codes: np.ndarray) -> np.ndarray:
    """Whether each code point is of a script written without blanks."""
    alone = np.zeros(len(codes), bool)
    for first, last in _NO_BLANKS_RANGES:
        alone |= (codes >= ord(first)) & (codes <= ord(last))
    return alone


@functools.cache
def _classes() -> np.ndarray:
    class_of = np.full(128, _OTHER, np.uint8)
    class_of[[ord(letter) for letter in "LMNZ"]] = (_LETTER, _LETTER, _DIGIT, _BLANK)
    classes = np.full(sys.maxunicode + 1, _OTHER, np.uint8)
    for plane in (range(0x40000), range(0xE0000, 0xF0000)):  # the others are empty or private
        categories = "".join(map(unicodedata.category, map(chr, plane)))
        classes[plane.start : plane.stop] = class_of[np.frombuffer(categories[::2].encode(), "u1")]
    classes[0xFFFD] = _LOST
    return classes
