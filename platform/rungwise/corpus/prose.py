"""Guess the language of a text, and how its lines, paragraphs and documents lie in a file."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

# Language is detected in pieces; shorter texts are left out where there are longer ones.
_FEWEST_CHARACTERS, _PIECE_CHARACTERS = 200, 2000
_NEARLY_ALL, _UNCLEAR, _MOST_LANGUAGES = 0.9, 0.3, 4
_LATIN = "Latin letters"
_LINE_END = re.compile("[.!?\u3002\uff01\uff1f\u2026][\"')\\]\u201d\u2019\u300d\u300f]*\\s*$")
_SENTENCE_END = re.compile("[.!?](?=\\s)|[\u3002\uff01\uff1f]")
# Scripts, and the least share of letters that shows them; Japanese first, as it also writes Han.
_SCRIPTS = {
    "Japanese": (re.compile("[\u3040-\u30ff]"), 0.1),
    "Korean": (re.compile("[\uac00-\ud7a3]"), 0.3),
    "Chinese": (re.compile("[\u3400-\u9fff]"), 0.3),
}
# The most frequent words of languages in Latin letters.
_COMMON = {
    "English": "the of and to in that is was it for",
    "German": "der die und das ist nicht ein zu den mit",
    "French": "le la les et des est une dans que pour",
    "Spanish": "el la los que y en una por con del",
    "Italian": "il che di e la un per non con sono",
    "Portuguese": "o que de e a os um para com n\u00e3o",
    "Dutch": "de het een en van is niet dat op te",
}


def guess_layout(text: str) -> str:
    """Guess the value of `lines` of a source."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return "wrapped"
    lengths = sorted(map(len, lines))
    ends = sum(bool(_LINE_END.search(line)) for line in lines) / len(lines)
    if lengths[len(lines) * 95 // 100] <= 100 and ends < 0.6 and lengths[len(lines) // 2] > 30:
        return "wrapped"
    inside = sum(len(_SENTENCE_END.findall(line.rstrip()[:-2])) for line in lines) / len(lines)
    return "sentence" if ends > 0.8 and inside < 0.25 else "paragraph"


def split_documents(text: str, separator: str) -> list[str]:
    pattern = r"\n(?:[ \t]*\n)+" if separator == "blank_line" else r"\n"
    return [part for part in re.split(pattern, text) if part.strip()]


def guess_separator(text: str, layout: str) -> str:
    """Guess what separates documents within a file, "" for nothing."""
    if layout == "wrapped":
        return ""
    blocks = [block.splitlines() for block in split_documents(text, "blank_line")]
    if len(blocks) >= 5 and statistics.mean(map(len, blocks)) >= 3:
        return "blank_line"
    lines = split_documents(text, "line")
    indented = sum(line[0].isspace() for line in lines) / max(1, len(lines))
    short = sum(len(line) < 60 for line in lines) / max(1, len(lines))
    if layout == "paragraph" and len(lines) >= 20 and indented < 0.2 and short < 0.15:
        return "line"
    return ""


def languages(texts: Sequence[tuple[str, float]]) -> str:
    """Return the language of weighted texts, or the shares of several if none dominates."""
    long = [each for each in texts if len(each[0]) >= _FEWEST_CHARACTERS]
    shares: dict[str, float] = defaultdict(float)
    for text, weight in long or [("\n".join(text for text, _ in texts), 1.0)]:
        for begin in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[begin : begin + _PIECE_CHARACTERS]
            shares[language(piece)] += weight * len(piece) / len(text)
    if 0 < shares.get(_LATIN, 0.0) < _UNCLEAR * sum(shares.values()):
        del shares[_LATIN]  # pieces with too few words to tell
    most = sorted(shares, key=lambda name: -shares[name])[:_MOST_LANGUAGES]
    total = sum(shares.values())
    if not most or shares[most[0]] >= _NEARLY_ALL * total:
        return most[0] if most else "no text"
    parts = [f"{shares[name] / total:.0%} {name}" for name in most if shares[name] > 0.005 * total]
    return f"mixed languages ({', '.join(parts)})"


def language(text: str) -> str:
    """Guess the language or script of a text by its letters and most frequent words."""
    letters = sum(map(str.isalpha, text)) or 1
    for name, (pattern, share) in _SCRIPTS.items():
        if len(pattern.findall(text)) / letters > share:
            return name
    words = Counter(text.lower().split())
    counts = {name: sum(words[word] for word in common.split()) for name, common in _COMMON.items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] / (words.total() or 1) > 0.08:
        return best
    latin = sum(letter.isascii() and letter.isalpha() for letter in text) / letters
    return _LATIN if latin > 0.7 else "letters other than Latin"
