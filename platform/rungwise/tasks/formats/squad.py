"""SQuAD's JSON, versions 1.1 and 2.0, and data sets published in the same form, such as CMRC 2018.

Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822, `is_impossible`). Offsets count
characters (code points) of the context from 0. Plausible answers of impossible questions are not
answers. Some data sets have answers with wrong offsets, from which a model would learn other words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import Answer, Kind, Question
from rungwise.tasks.formats.base import FormatConfig, shown, text_of, words


class SquadFormat(FormatConfig):
    """SQuAD JSON; the questions show the version."""

    kind: Literal["squad"] = "squad"
    # Answers that are not in the context at their offset; `drop` leaves them out, and a question
    # without any other.
    bad_answers: Literal["error", "drop"] = "error"
    # Questions without an answer; dropping them turns version 2.0 into 1.1.
    unanswerable: Literal["keep", "drop"] = "keep"

    @property
    def task_kind(self) -> Kind:
        return "span"


def read(file: SourceFile, form: SquadFormat, counts: Counter[str]) -> Iterator[Question]:
    """Read the questions of one file; `where` is the file and the question's id."""
    for where, paragraph in _paragraphs(file):
        context = words(_of(paragraph, "context", where, str), where, "the context")
        for number, entry in enumerate(_of(paragraph, "qas", where, list)):
            if not isinstance(entry, dict):
                raise _unexpected(f"{where}.qas[{number}]", "an object", entry)
            id_ = str(_of(entry, "id", f"{where}.qas[{number}]", str | int))
            place = f"{file.uri}, question {id_}"
            question = words(_of(entry, "question", place, str), place, "the question")
            answers = tuple(_answers(entry, context, place, form, counts))
            impossible = entry.get("is_impossible", False)
            if impossible and form.unanswerable == "drop":
                counts["unanswerable_questions_left_out"] += 1
                continue
            if not impossible and not answers:
                if form.bad_answers == "drop" and entry.get("answers"):
                    counts["questions_dropped_without_an_answer"] += 1
                    continue
                raise DataError(
                    f"{place}: expected an answer, or is_impossible: true, found neither; mend the "
                    "question, or use a file with answers"
                )
            yield Question(f"{file.name}:{id_}", id_, question, context, answers)


def _paragraphs(file: SourceFile) -> Iterator[tuple[str, dict[str, Any]]]:
    data = json_of(file)
    if not isinstance(data, dict):
        raise _unexpected(file.uri, 'an object with "data"', data)
    for a, article in enumerate(_of(data, "data", file.uri, list)):
        where = f"{file.uri}, data[{a}]"
        if not isinstance(article, dict):
            raise _unexpected(where, "an object", article)
        for p, paragraph in enumerate(_of(article, "paragraphs", where, list)):
            place = f"{where}.paragraphs[{p}]"
            if not isinstance(paragraph, dict):
                raise _unexpected(place, "an object", paragraph)
            yield place, paragraph


def _answers(
    entry: dict[str, Any], context: str, where: str, form: SquadFormat, counts: Counter[str]
) -> Iterator[Answer]:
    if entry.get("is_impossible", False):
        return
    for number, answer in enumerate(_of(entry, "answers", where, list)):
        place = f"{where}, answers[{number}]"
        if not isinstance(answer, dict):
            raise _unexpected(place, "an object", answer)
        text = words(_of(answer, "text", place, str), place, "the answer")
        start = _of(answer, "answer_start", place, int)
        stands = context[start : start + len(text)] if start >= 0 else ""
        if stands == text:
            yield Answer(text, start)
        elif form.bad_answers == "drop":
            counts["answers_dropped_that_are_not_in_the_context"] += 1
        else:
            raise DataError(
                f"{place}: expected {shown(text)} in the context from character {start} on, found "
                f"{shown(stands)}; mend the answer, or leave such answers out with "
                "data.format.bad_answers: drop"
            )


def json_of(file: SourceFile) -> Any:
    """Parse a file of JSON; a DataError with the line if it is not JSON."""
    try:
        return json.loads(text_of(file))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file.uri}:{error.lineno}: expected JSON, found none ({error.msg} at column "
            f"{error.colno}); fetch the file again, or change data.format.kind"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{file.uri}: not JSON that can be read: {error}") from None


def _of(record: dict[str, Any], key: str, where: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _unexpected(where, f"{key!r}, as in SQuAD's JSON,", value)
    return value


def _unexpected(where: str, expected: str, value: Any) -> DataError:
    return DataError(
        f"{where}: expected {expected} but found {shown(value)}; mend the file, or change "
        "data.format.kind"
    )
