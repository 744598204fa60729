"""Recognise the encoding of bytes that state none, for corpora and labelled data alike.

    byte order mark, or zero bytes in the places of UTF-16 and UTF-32 ──> that
    valid UTF-8                                                      ──> UTF-8
    frequent characters of Chinese, Japanese or Korean               ──> their encoding
    anything else                                                    ──> charset-normalizer's guess

among the encodings of one byte that the Encoding Standard (https://encoding.spec.whatwg.org) lists.
"""

import codecs

# Of a file: to guess its encoding from, and to recognise UTF-16 and what is no text.
HEAD_BYTES, SHORT_HEAD_BYTES = 1 << 20, 1 << 12
_SAMPLE_BYTES = 1 << 16  # of lines with bytes beyond ASCII
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16: it begins with that mark
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
# Control characters that text does not hold; about every third byte of UTF-16 is one.
CONTROLS = bytes(sorted({*range(32)} - {*b"\t\n\v\f\r\x1b"}))
_FEWEST_CONTROLS, _PRINTABLE, _FEWEST_BLANKS = 0.02, 0.98, 0.002
_BLANKS = " \n\r\t\u3000"
_ARCHIVES = {
    b"\x1f\x8b": "a gzip file: give it a name in .gz",
    b"BZh": "a bzip2 file: give it a name in .bz2",
    b"\xfd7zXZ\0": "an xz file: give it a name in .xz",
    b"\x28\xb5\x2f\xfd": "a zstandard file: give it a name in .zst",
    b"PK\3\4": "a zip archive: unpack it",
    b"%PDF": "a PDF: extract its text",
}
_TAR, _TAR_AT = b"ustar", 257
# The most frequent characters of each language, which are hardly any text in another encoding.
_FREQUENT = {
    "gb18030": "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着"
    "下自之年过发后作里\uff0c。、之其不曰道",
    "big5": "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著"
    "下自之年過發後作裡\uff0c。、之其不曰道",
    "cp932": "のにはをたがでてとしれさいるなかもら、。こあっりすくきよまうだ",
    "euc_jp": "のにはをたがでてとしれさいるなかもら、。こあっりすくきよまうだ",
    "cp949": "이다는의에을가를은고하지로사기도한인리어그아자나서대들",
}
_FEWEST_FREQUENT = 0.1
# In order of preference: several may be equally likely.
_SINGLE_BYTE = [
    *("cp1252", "cp1251", "koi8_r", "cp1250", "iso8859_2", "cp1253", "iso8859_7", "cp1254"),
    *("cp1255", "cp1256", "cp1257", "cp1258", "cp866", "tis_620"),
]
_NEARLY_CHAOS, _NEARLY_LIKE = 0.02, 0.05


def wide_encoding(head: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 in which a file begins, or ""."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "")
    head = head[:SHORT_HEAD_BYTES]
    if marked or len(head) - len(head.translate(None, CONTROLS)) < _FEWEST_CONTROLS * len(head):
        return marked
    best, most = "", 0.0
    for name in _WIDE:
        try:
            text = codecs.getincrementaldecoder(name)().decode(head)
        except UnicodeDecodeError:
            continue
        printable = sum(one.isprintable() or one in _BLANKS for one in text)
        blanks = sum(one in _BLANKS for one in text)
        if printable >= _PRINTABLE * len(text) and blanks > max(most, _FEWEST_BLANKS * len(text)):
            best, most = name, blanks
    return best


def detect_encoding(content: bytes) -> str | None:
    """The encoding of a file or its beginning, which may cut a character; None if nothing fits."""
    if wide := wide_encoding(content):
        return wide
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        return guess_encoding(content[:HEAD_BYTES].rpartition(b"\n")[0] or content[:HEAD_BYTES])
    return "utf-8"


def archive_kind(head: bytes) -> str:
    """Return what a file that is no text is, and what to do, or ""."""
    if head[_TAR_AT:].startswith(_TAR):
        return "a tar archive: unpack it"
    return next((kind for magic, kind in _ARCHIVES.items() if head.startswith(magic)), "")


def guess_encoding(content: bytes) -> str | None:
    """Guess the encoding of whole lines that are not UTF-8; None if nothing fits, or for ASCII."""
    sample = b""
    for line in content.splitlines(keepends=True):
        if not line.isascii():
            sample += line
        if len(sample) > _SAMPLE_BYTES:
            break
    if not sample:
        return None
    shares = {name: _share_of_frequent(sample, name) for name in _FREQUENT}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= _FEWEST_FREQUENT else _guess_single_byte(sample)


def _share_of_frequent(sample: bytes, name: str) -> float:
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample)
    except UnicodeDecodeError:
        return 0.0
    letters = [one for one in text if not one.isascii()]
    return sum(one in _FREQUENT[name] for one in letters) / max(1, len(letters))


def _guess_single_byte(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes

    # Disorder and, against it, likeness to a language, of each encoding that decodes the sample.
    scores = {
        name: (match.chaos, match.coherence)
        for match in from_bytes(sample, cp_isolation=_SINGLE_BYTE)
        for name in match.could_be_from_charset
    }
    if not scores:
        return None
    least = min(chaos for chaos, _ in scores.values())
    likely = {
        name: like for name, (chaos, like) in scores.items() if chaos <= least + _NEARLY_CHAOS
    }
    most = max(likely.values())
    return next(name for name in _SINGLE_BYTE if likely.get(name, -1.0) >= most - _NEARLY_LIKE)
