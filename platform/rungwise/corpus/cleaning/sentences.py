"""Sentence segmentation by one regular expression.

    segment('Dr. Smith paid $3.50. "Why?" he asked.') ==
        ["Dr. Smith paid $3.50.", '"Why?" he asked.']

A sentence ends at . ! ? … with its closing quotes and brackets, before white space and a capital, a
digit or an opening quote; in Chinese and Japanese at 。！？. A full stop does not end one after a
title or a Latin abbreviation, after a counting word or a month before a digit, after a word that
may end a sentence (etc., U.S.) unless an opener follows, nor after the number of a list item. In a
text without capitals, a small letter opens a sentence too. A line break always ends one."""

# ruff: noqa: RUF001, RUF002  (quotes and stops of other scripts are the subject here)
import re
from collections.abc import Iterator

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
