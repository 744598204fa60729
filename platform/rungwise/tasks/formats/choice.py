"""Multiple choice: SWAG, CODAH and DREAM as published.

SWAG (Zellers et al. 2018, arXiv:1808.05326): the first sentence is the context, and each option is
the beginning of the second one with an ending. CODAH (Chen et al. 2019, arXiv:1904.04365) has the
same task without a context of its own: a prompt and four endings. DREAM (Sun et al. 2019,
arXiv:1902.00164) asks questions about dialogues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import ChoiceExample, Kind
from rungwise.tasks.formats.base import FormatConfig, listed, nearest, shown, words
from rungwise.tasks.formats.rows import delimited, index_of
from rungwise.tasks.formats.squad import json_of

_SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
_CODAH_WIDTH = 7


class _Choice(FormatConfig):
    @property
    def task_kind(self) -> Kind:
        return "choice"


class SwagFormat(_Choice):
    """Comma-separated with quoting; the columns are found by the header."""

    kind: Literal["swag"] = "swag"


class CodahFormat(_Choice):
    """Tab-separated without a header: category, prompt, four endings, label."""

    kind: Literal["codah"] = "codah"


class DreamFormat(_Choice):
    """JSON: a list of [turns of the dialogue, [{question, choice, answer}], id]."""

    kind: Literal["dream"] = "dream"


def read(file: SourceFile, form: SwagFormat | CodahFormat | DreamFormat) -> Iterator[ChoiceExample]:
    """Read the questions of one file."""
    match form:
        case SwagFormat():
            yield from _swag(file)
        case CodahFormat():
            yield from _codah(file)
        case DreamFormat():
            yield from _dream(file)


def _swag(file: SourceFile) -> Iterator[ChoiceExample]:
    header: list[str] | None = None
    indexes: list[int] = []
    for line, cells in delimited(file, ",", quoting=True):
        where = f"{file.uri}:{line}"
        if header is None:
            header = [cell.strip() for cell in cells]
            indexes = [index_of(name, header, where, "the file") for name in _SWAG]
            continue
        _check_width(cells, len(header), where)
        context, begins, *endings, label = (cells[index] for index in indexes)
        texts = [words(ending, where, f"ending{n}") for n, ending in enumerate(endings)]
        yield ChoiceExample(
            f"{file.name}:{line}",
            words(context, where, "sent1"),
            None,
            tuple(f"{begins} {text}" if begins.strip() else text for text in texts),
            _option(label, len(texts), where),
        )


def _codah(file: SourceFile) -> Iterator[ChoiceExample]:
    for line, cells in delimited(file, "\t", quoting=False):
        where = f"{file.uri}:{line}"
        _check_width(cells, _CODAH_WIDTH, where)
        _, prompt, *endings, label = cells
        texts = tuple(words(ending, where, f"ending {n}") for n, ending in enumerate(endings))
        option = _option(label, len(texts), where)
        yield ChoiceExample(
            f"{file.name}:{line}", words(prompt, where, "the prompt"), None, texts, option
        )


def _dream(file: SourceFile) -> Iterator[ChoiceExample]:
    data = json_of(file)
    if not isinstance(data, list):
        raise _not_dream(file.uri, data)
    for number, dialogue in enumerate(data):
        match dialogue:
            case [[*turns], [*questions], str(id_)] if turns and questions:
                pass
            case _:
                raise _not_dream(f"{file.uri}, item {number}", dialogue)
        context = "\n".join(words(turn, f"{file.uri}, {id_}", "a turn") for turn in turns)
        for place, question in enumerate(questions):
            where = f"{file.uri}, {id_}, question {place}"
            match question:
                case {"question": str(asked), "choice": [*options], "answer": str(answer)}:
                    pass
                case _:
                    raise _not_dream(where, question)
            yield ChoiceExample(
                f"{file.name}:{id_}:{place}",
                context,
                words(asked, where, "the question"),
                _options(options, where),
                _place_of(answer, options, where),
            )


def _options(options: Sequence[Any], where: str) -> tuple[str, ...]:
    if len(options) < 2:
        raise DataError(f"{where}: expected two options or more, found {len(options)}; mend it")
    return tuple(words(option, where, f"option {n}") for n, option in enumerate(options))


def _place_of(answer: str, options: Sequence[str], where: str) -> int:
    if answer not in options:
        raise DataError(
            f"{where}: expected the answer among the options {listed(options)}, found "
            f"{shown(answer)}{nearest(answer, options)}; mend the question"
        )
    return list(options).index(answer)


def _option(label: str, count: int, where: str) -> int:
    text = label.strip()
    if not (text.isascii() and text.isdigit() and int(text) < count):
        raise DataError(
            f"{where}: expected the index of an option, 0 to {count - 1}, as the label, found "
            f"{shown(label)}; mend the line (the published test file of SWAG has no labels)"
        )
    return int(text)


def _check_width(cells: Sequence[str], width: int, where: str) -> None:
    if len(cells) != width:
        raise DataError(
            f"{where}: expected {width} columns, the options and the label among them, found "
            f"{len(cells)}: {shown(' | '.join(cells))}; mend the row, or change data.format.kind"
        )


def _not_dream(where: str, value: Any) -> DataError:
    return DataError(
        f"{where}: expected [turns, [{{question, choice, answer}}], id] as in DREAM, found "
        f"{shown(value)}; mend the file, or change data.format.kind"
    )
