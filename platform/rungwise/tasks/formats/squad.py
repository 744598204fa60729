"""SQuAD's JSON, versions 1.1 and 2.0, and data sets published in the same form, such as CMRC 2018.

Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822, `is_impossible`). Offsets count
characters (code points) of the context from 0. Plausible answers of impossible questions are not
answers. Some data sets have answers with wrong offsets, from which a model would learn other words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import Answer, Kind, Question
from rungwise.tasks.formats.base import FormatConfig, shown, words
from rungwise.tasks.formats.rows import json_of


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

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Question]:
        data = json_of(file, self.encoding)
        if not isinstance(data, dict):
            raise _unexpected(file.uri, 'an object with "data"', data)
        for place, article in _objects(data, "data", f"{file.uri}, "):
            for where, paragraph in _objects(article, "paragraphs", f"{place}."):
                context = words(_value(paragraph, "context", where, str), where, "the context")
                for asked, entry in _objects(paragraph, "qas", f"{where}."):
                    id_ = str(_value(entry, "id", asked, str | int))
                    yield from self._question(entry, id_, context, file, counts)

    def _question(
        self, entry: dict[str, Any], id_: str, context: str, file: SourceFile, counts: Counter[str]
    ) -> Iterator[Question]:
        where = f"{file.uri}, question {id_}"
        question = words(_value(entry, "question", where, str), where, "the question")
        impossible = entry.get("is_impossible", False)
        answers = () if impossible else tuple(self._answers(entry, context, where, counts))
        if impossible and self.unanswerable == "drop":
            counts["unanswerable_questions_left_out"] += 1
        elif impossible or answers:
            yield Question(f"{file.name}:{id_}", id_, question, context, answers)
        elif self.bad_answers == "drop" and entry.get("answers"):
            counts["questions_dropped_without_an_answer"] += 1
        else:
            raise DataError(
                f"{where}: expected an answer, or is_impossible: true, found neither; mend the "
                "question, or use a file with answers"
            )

    def _answers(
        self, entry: dict[str, Any], context: str, where: str, counts: Counter[str]
    ) -> Iterator[Answer]:
        for place, answer in _objects(entry, "answers", f"{where}, "):
            text = words(_value(answer, "text", place, str), place, "the answer")
            start = _value(answer, "answer_start", place, int)
            stands = context[start : start + len(text)] if start >= 0 else ""
            if stands == text:
                yield Answer(text, start)
            elif self.bad_answers == "drop":
                counts["answers_dropped_that_are_not_in_the_context"] += 1
            else:
                raise DataError(
                    f"{place}: expected {shown(text)} in the context from character {start} on, "
                    f"found {shown(stands)}; mend the answer, or leave such answers out with "
                    "data.format.bad_answers: drop"
                )


def _objects(record: dict[str, Any], key: str, before: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place, which begins with `before`."""
    for number, entry in enumerate(_value(record, key, before.rstrip(" ,."), list)):
        place = f"{before}{key}[{number}]"
        if not isinstance(entry, dict):
            raise _unexpected(place, "an object", entry)
        yield place, entry


def _value(record: dict[str, Any], key: str, where: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _unexpected(where, f"{key!r}, as in SQuAD's JSON,", value)
    return value


def _unexpected(where: str, expected: str, value: Any) -> DataError:
    return DataError(
        f"{where}: expected {expected} but found {shown(value)}; mend the file, or change "
        "data.format.kind"
    )
