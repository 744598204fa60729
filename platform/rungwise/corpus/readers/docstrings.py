"""Convert a docstring to English prose: paragraphs of sentences, without code, tables and markup.

    prose("Shift it.\\n\\nParameters\\n----------\\naxis : int\\n    The `axis`.\\n\\n>>> shift(x)")
        == ["Shift it.", "axis: The axis."]

Docstrings mix reST, the numpy and Google dialects and Markdown, so this works line by line: it
skips doctests, directives that hold code, literal and fenced blocks, and tables; turns a parameter
into "name: description"; strips inline markup; and drops lines that still do not read as words. A
line break in a paragraph ends a sentence.
"""

import re
from collections.abc import Iterator

# Directives that contain prose; all others contain code, tables or lists of names.
_PROSE_DIRECTIVE = re.compile(
    r"note|warning|version\w+|deprecated(?:-removed)?|seealso|admonition|tip|caution|important|hint|"
    r"attention|danger|error|topic|epigraph"
)
_SECTION_NAME = re.compile(
    r"(?:(?:other |keyword )?(?:parameters|arguments|args)|returns?|yields?|receives|raises|warns|"
    r"warnings?|see also|notes?|references|examples?|attributes|methods|kwargs|usage|todo|synopsis)"
    r"\s?:?",
    re.IGNORECASE,
)
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_<>])\1{2,}$")
_TABLE_BORDER = re.compile(r"(?:[=\-]{2,}(?:\s+[=\-]{2,})+|\+[-=+]{3,}|\|.*\||[│┌├└─].*)$")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\|[^|]+\|\s+)?([\w:.-]+?)::(?:\s+(.*))?$")
_FOOTNOTE = re.compile(r"\.\.\s+\[[^\]]+\]\s+(.*)$")
_OPTION = re.compile(r":[\w-]+:(?:\s.*)?$")
_FENCE = re.compile(r"(?:```|~~~)")
_BULLET = re.compile(r"(?:[*+•\-]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:(?:\s+(.*))?$")
_NUMPY_PARAMETER = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: :(?: .*)?|:|)$")
_GOOGLE_PARAMETER = re.compile(r"(\*{0,2}\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*:\s+(?=\S)")
_TEMPLATE = re.compile(r"[%{$]\(?\w*[)}]?s?$")
_CODE = re.compile(
    r"(?:def|class|import|from|return|async|await|assert|raise|print|@\w+|\$|%|#!|<\w|</|pip|cmake)\b"
    r".*[()=;:<>.]|(?:if|elif|else|for|while|with|try|except|finally)\b.*:$|.*::=|\w[\w.\[\]]*\s*=\s|[A-Za-z_][\w.]*\([^)]*\)\s*$|[\]})]"
)

_ROLE = re.compile(r":[\w:+.-]+:`([^`]+)`")
_LINK = re.compile(r"`([^`<]*?)\s*<[^`>]+>`_{0,2}")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]+)\]\((?:https?:)?[^()\s]+\)")
_LITERAL = re.compile(r"(`{1,3})([^`]+)\1_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\w)([^*]{1,200}?)(?<=[\w.!?)])\1(?![\w*])")
_REFERENCE = re.compile(r"\s*\[[#\w-]{0,20}\]_")
# TeX commands that only format; the names of all others are kept.
_TEX_SHAPES = re.compile(
    r"\\(?:mathtt|mathrm|mathbf|mathcal|mathbb|mathit|text\w*|operatorname|boldsymbol|bm|left|right|"
    r"[dt]?frac|[bB]igg?[lr]?|q?quad|limits|displaystyle|[^a-zA-Z])|[{}$\\]"
)
# Prefixes that Sphinx uses to look a name up and does not print.
_RELATIVE = re.compile(r"^(?:!|\.|_[a-z]+\.(?=[A-Za-z]))")
_WORD = re.compile(r"[^\W\d_]{2,}")
_NOT_PROSE = re.compile(r"[^\w\s.,;:!?'\"()-]|_|\d")
_MOST_SYMBOLS = 0.12


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring (dedented by `inspect.cleandoc`), none empty."""
    paragraphs = []
    for block in _blocks(docstring.split("\n")):
        sentences = [sentence for line in _logical_lines(block) if (sentence := _readable(line))]
        if sentences:
            paragraphs.append("\n".join(sentences))
    return paragraphs


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    deeper_than: int | None = None  # skip what is indented more than this
    until_blank = False
    in_fence = False
    for line in lines:
        stripped = line.strip()
        if in_fence:
            in_fence = not _FENCE.match(stripped)
            continue
        if not stripped:
            until_blank = False
            if block:
                yield block
                block = []
            continue
        indent = len(line) - len(line.lstrip())
        if deeper_than is not None:
            if indent > deeper_than:
                continue
            deeper_than = None
        if until_blank:
            continue
        if _FENCE.match(stripped):
            # A fence may open and close in one line.
            in_fence = not _FENCE.search(stripped[3:])
        elif stripped.startswith((">>>", "In [")):
            until_blank = True
        elif directive := _DIRECTIVE.match(stripped):
            if _PROSE_DIRECTIVE.fullmatch(directive[1]):
                argument = directive[2] or ""
                if "versio" in directive[1]:
                    # "versionadded:: 1.2" alone says nothing; the text after the number does.
                    argument = re.sub(r"^[\d.]+\s*", "", argument)
                if argument:
                    block.append(" " * indent + argument)
            else:
                deeper_than = indent
        elif footnote := _FOOTNOTE.match(stripped):
            block.append(" " * indent + "- " + footnote[1])
        elif stripped.startswith(".. ") or stripped == "..":
            deeper_than = indent
        elif stripped.endswith("::"):
            if len(stripped) > 2:
                block.append(line.rstrip()[:-1])
            deeper_than = indent
        elif not _OPTION.match(stripped) or _SPHINX_FIELD.match(stripped):
            block.append(line)
    if block:
        yield block


def _logical_lines(block: list[str]) -> Iterator[str]:
    """Join wrapped lines; yield list items and parameters apart."""
    if any(_TABLE_BORDER.match(line.strip()) for line in block):
        return
    pieces: list[str] = []
    indents = [len(line) - len(line.lstrip()) for line in block]
    for index, line in enumerate(block):
        text = line.strip()
        # The line above an underline was a title.
        if _UNDERLINE.match(text) or _SECTION_NAME.fullmatch(text) or _TEMPLATE.match(text):
            yield " ".join(pieces)
            pieces = []
            continue
        deeper_follows = index + 1 < len(block) and indents[index + 1] > indents[index]
        opened = _opening(text, deeper_follows)
        if (
            opened is not None
            or _CODE.match(text)
            or (index and indents[index] < indents[index - 1])
        ):
            yield " ".join(pieces)
            pieces = []
        if opened != "":
            pieces.append(text if opened is None else opened)
    yield " ".join(pieces)


def _opening(text: str, deeper_follows: bool) -> str | None:
    """Return the text of a line that opens an item, field or parameter ("" drops it), or None."""
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
    elif field := _SPHINX_FIELD.match(text):
        kind, name, description = field[1], field[2] or "", field[3] or ""
        if kind in ("type", "rtype") or not description:
            return ""
        return f"{name.split()[-1]}: {description}" if name.strip() else description
    if parameter := _GOOGLE_PARAMETER.match(text):
        return f"{parameter[1].lstrip('*')}: {text[parameter.end() :]}"
    if bullet:
        return text
    if parameter := _NUMPY_PARAMETER.match(text):
        # The type after the colon is not English; without a description, drop the line.
        if deeper_follows:
            return f"{parameter[1].lstrip('*')}:"
        if " :" in text:
            return ""
    if re.match(r"\*{0,2}\w+: \S", text):
        return text.lstrip("*")
    return None


def _readable(line: str) -> str:
    """Strip inline markup; return "" if the rest is not words."""
    text = line
    if "`" in text:
        text = _ROLE.sub(lambda role: _title_or_name(role[1]), text)
        text = _LINK.sub(r"\1", text)
        text = _LITERAL.sub(lambda literal: _title_or_name(literal[2]), text)
    if "](" in text:
        text = _MARKDOWN_LINK.sub(r"\1", text)
    if "*" in text:
        text = _EMPHASIS.sub(r"\2", text)
    if "]_" in text:
        text = _REFERENCE.sub("", text)
    text = " ".join(text.split())
    words = _WORD.findall(text)
    if len(words) < 2 or _CODE.match(text):
        return ""
    symbols = sum(map(len, _NOT_PROSE.findall(text)))
    return text if symbols <= _MOST_SYMBOLS * len(text) else ""


def _title_or_name(target: str) -> str:
    """`Title <pkg.Class>` -> Title, `~pkg.Class` -> Class, TeX without braces and backslashes."""
    if target.endswith(">") and "<" in target:
        target = target[: target.rindex("<")].strip() or target[target.rindex("<") + 1 : -1]
    if target.startswith("~"):
        return target.rpartition(".")[2].lstrip("~")
    if "\\" in target:
        return " ".join(_TEX_SHAPES.sub(" ", target).split())
    return _RELATIVE.sub("", target)
