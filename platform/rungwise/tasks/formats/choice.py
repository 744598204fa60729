"""Multiple choice: SWAG, CODAH and DREAM as published.

SWAG (Zellers et al. 2018, arXiv:1808.05326): the first sentence is the context, and each option is
the beginning of the second one with an ending. CODAH (Chen et al. 2019, arXiv:1904.04365) has the
same task without a context of its own: a prompt and four endings. DREAM (Sun et al. 2019,
arXiv:1902.00164) asks questions about dialogues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import ChoiceExample, Kind
from rungwise.tasks.formats.base import FormatConfig, listed, nearest, shown, words
from rungwise.tasks.formats.rows import delimited, index_of, json_of

_SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
_CODAH_WIDTH = 7


class _Choice(FormatConfig):
    @property
    def task_kind(self) -> Kind:
        return "choice"


class SwagFormat(_Choice):
    """Comma-separated with quoting; the columns are found by the header."""

    kind: Literal["swag"] = "swag"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        rows = delimited(file, self.encoding, ",", quoting=True)
        for line, header in rows:
            names, where = [cell.strip() for cell in header], f"{file.uri}:{line}"
            indexes = [index_of(name, names, where, "the file") for name in _SWAG]
            break
        else:
            return
        for line, cells in rows:
            _check_width(cells, len(header), f"{file.uri}:{line}")
            context, begins, *endings, label = (cells[index] for index in indexes)
            yield _of_row(file, line, context, begins, endings, label)


class CodahFormat(_Choice):
    """Tab-separated without a header: category, prompt, four endings, label."""

    kind: Literal["codah"] = "codah"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        for line, cells in delimited(file, self.encoding, "\t", quoting=False):
            _check_width(cells, _CODAH_WIDTH, f"{file.uri}:{line}")
            _, prompt, *endings, label = cells
            yield _of_row(file, line, prompt, "", endings, label)


class DreamFormat(_Choice):
    """JSON: a list of [turns of the dialogue, [{question, choice, answer}], id]."""

    kind: Literal["dream"] = "dream"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        data = json_of(file, self.encoding)
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


def _of_row(
    file: SourceFile, line: int, context: str, begins: str, endings: Sequence[str], label: str
) -> ChoiceExample:
    """An example of a row; an option is an ending, after what it `begins` with if anything."""
    where = f"{file.uri}:{line}"
    texts = [words(ending, where, f"ending {n}") for n, ending in enumerate(endings)]
    return ChoiceExample(
        f"{file.name}:{line}",
        words(context, where, "the context"),
        None,
        tuple(f"{begins} {text}" if begins.strip() else text for text in texts),
        _option(label, len(texts), where),
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
