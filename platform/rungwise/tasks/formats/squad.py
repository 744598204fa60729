"""SQuAD's JSON, versions 1.1 and 2.0, and data sets in the same form, such as CMRC 2018.

Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822, `is_impossible`). Plausible
answers of impossible questions are not read. An answer that is not at its place, in code points, is
Damage: a model would learn other words.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, FormatConfig, quote, words
from rungwise.tasks.formats.records import Record, list_records, read_objects
from rungwise.tasks.kinds.examples import Answer, Question

_FIELDS = ("context", "id", "question", "answers")  # the words of a damaged question


class SquadFormat(FormatConfig):
    """SQuAD JSON, version 1.1 or 2.0; the questions show which."""

    fixed_kind = "span"

    kind: Literal["squad"] = "squad"
    # squad: as published; others: an object per question, with its context and answers: {text:
    # [...], answer_start: [...]}, as other tools export it
    layout: Literal["squad", "json_lines", "json", "parquet"] = "squad"
    # questions without an answer; drop turns version 2.0 into 1.1
    unanswerable: Literal["keep", "drop"] = "keep"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Question]:
        for place, entry in self._entries(file, counts):
            with self.skip_damage(counts, [entry.get(key) for key in _FIELDS]):
                where = f"{file.uri}:{place}"
                context = words(_value(entry, "context", where, str), where, "the context")
                id_ = str(_value(entry, "id", where, str | int))
                where = f"{file.uri}, question {id_}"
                question = words(_value(entry, "question", where, str), where, "the question")
                stated = _value(entry, "answers", where, list | dict)
                impossible = entry.get("is_impossible", False)
                if isinstance(stated, dict):
                    stated = _pair_answers(stated, where)
                    impossible = impossible or not stated
                answers = () if impossible else tuple(self._answers(stated, context, where, counts))
                if impossible and self.unanswerable == "drop":
                    counts["unanswerable_questions_left_out"] += 1
                    continue
                if not impossible and not answers:
                    raise Damage(
                        f"{where}: expected an answer, or is_impossible: true, found neither; mend "
                        "the question, or use a file with answers"
                    )
                yield Question(f"{file.name}:{id_}", id_, question, context, answers)

    def _entries(self, file: SourceFile, counts: Counter[str]) -> Iterator[Record]:
        """Yield each question with the fields of its paragraph."""
        if self.layout != "squad":
            yield from read_objects(self, self.layout, file, counts)
            return
        for place, record in read_objects(self, "json", file, counts):
            with self.skip_damage(counts, record):
                lists = "data.paragraphs.qas"
                yield from list_records(record, lists, place, file.uri, "data.format.layout")

    def _answers(
        self, stated: list[Any], context: str, where: str, counts: Counter[str]
    ) -> Iterator[Answer]:
        for number, answer in enumerate(stated):
            place = f"{where}, answers[{number}]"
            with self.skip_damage(counts, "", "answers_dropped_as_not_in_the_context"):
                if not isinstance(answer, dict):
                    raise _type_error(place, "an object", answer)
                text = words(_value(answer, "text", place, str), place, "the answer")
                start = _value(answer, "answer_start", place, int)
                content = context[start : start + len(text)] if start >= 0 else ""
                if content != text:
                    raise Damage(
                        f"{place}: expected {quote(text)} in the context from character {start} "
                        f"on, found {quote(content)}; mend the answer (places count code points), "
                        "or leave such answers out with data.format.on_error: drop"
                    )
                yield Answer(text, start)


def _pair_answers(lists: dict[str, Any], where: str) -> list[dict[str, Any]]:
    texts, starts = (_value(lists, key, where, list) for key in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise Damage(
            f"{where}: expected a start for each answer, found {len(texts)} texts and "
            f"{len(starts)} starts; mend the line"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _value(record: dict[str, Any], key: str, where: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _type_error(where, f"{key!r}, as in SQuAD's JSON,", value)
    return value


def _type_error(where: str, expected: str, value: Any) -> Damage:
    return Damage(
        f"{where}: expected {expected} but found {quote(value)}; mend the file, or change "
        "data.format.kind"
    )
