"""Find the text of a Project Gutenberg book between its header and licence.

The header ends at a line like `*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***`, before 2003 at
`*END*THE SMALL PRINT! ...*END*`; a note on the file's makers may follow. The text ends at a line
like `*** END OF ...` or `End of the Project Gutenberg Etext of Emma`.
"""

import re

from rungwise.corpus.readers.file_reader import plain_breaks

_NOTE = (
    r"(?: \s* ^[\[(_]? (?: Produced | E-?text\ (?:prepared|produced)"
    r" | This\ e(?:text|book)\ was\ (?:prepared|produced) ) \ by\b .* (?: \n.+ )* )?"
)
_FLAGS = re.VERBOSE | re.MULTILINE | re.IGNORECASE
# The title may continue on a second line, which ends with the stars.
_STARTS = (
    re.compile(
        r"^\*{3}\ ?START\ OF\ (?:THE|THIS)\ PROJECT\ GUTENBERG\b .* (?: (?<!\*)\n.*\*{3}$ )?"
        rf"{_NOTE}",
        _FLAGS,
    ),
    re.compile(rf"^\*END\b .* THE\ SMALL\ PRINT .* {_NOTE}", _FLAGS),
)
_END = re.compile(
    r"^(?: \*{3}\ ?END\ OF\ (?:THE|THIS) | \**\ *End\ of\ (?:(?:the|this)\ )? )"
    r"\ ?(?:Project\ Gutenberg)",
    _FLAGS,
)


def gutenberg_text(text: str) -> str:
    """Return the book; a side without a known marker is kept whole."""
    start, end = _find_book(text)
    return text[start:end]


def gutenberg_lines(content: bytes) -> tuple[int, int, int]:
    """Return the first line of the book in a file and the one after its last, from 0, and the bytes
    around it."""
    # The markers are ASCII, and each byte is a character: no encoding is needed.
    text = plain_breaks(content.decode("latin-1"))
    start, end = _find_book(text)
    before, until = text.count("\n", 0, start), text.count("\n", 0, end)
    whole = end == len(text)
    first, last = before + bool(start), until + whole
    return first, last, len(text) - (end - start)


def _find_book(text: str) -> tuple[int, int]:
    start = next((match.end() for pattern in _STARTS if (match := pattern.search(text))), 0)
    end = _END.search(text, start)
    return start, end.start() if end else len(text)
