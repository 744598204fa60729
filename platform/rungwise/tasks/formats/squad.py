"""SQuAD's JSON, versions 1.1 and 2.0, and data sets in the same form, such as CMRC 2018.

Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822, `is_impossible`). Offsets count
characters of the context from 0, code points unless `offsets` says otherwise. Plausible answers of
impossible questions are not read. An answer that is not at its offset is Damage: a model would
learn other words.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    Units,
    code_point,
    quote,
    suggest_units,
    words,
)
from rungwise.tasks.formats.records import read_json, read_objects
from rungwise.tasks.kinds.examples import Answer, Question


class SquadFormat(FormatConfig):
    """SQuAD JSON, version 1.1 or 2.0; the questions show which."""

    fixed_kind = "span"

    kind: Literal["squad"] = "squad"
    # squad: as published; mrqa: a context with its questions per line, as MRQA publishes many data
    # sets; others: an object per question, with its context and answers: {text: [...],
    # answer_start: [...]}, as other tools export it
    layout: Literal["squad", "mrqa", "json_lines", "json", "parquet"] = "squad"
    # questions without an answer; drop turns version 2.0 into 1.1
    unanswerable: Literal["keep", "drop"] = "keep"
    offsets: Units = "code_points"  # what `answer_start` counts

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Question]:
        for place, context, entry in self._entries(file, counts):
            with self.skip_damage(counts, (context, entry)):
                id_ = str(_value(entry, "id", place, str | int))
                where = f"{file.uri}, question {id_}"
                question = words(_value(entry, "question", where, str), where, "the question")
                impossible = entry.get("is_impossible", False)
                answers = () if impossible else tuple(self._answers(entry, context, where, counts))
                if impossible and self.unanswerable == "drop":
                    counts["unanswerable_questions_left_out"] += 1
                    continue
                if not impossible and not answers:
                    raise Damage(
                        f"{where}: expected an answer, or is_impossible: true, found neither; mend "
                        "the question, or use a file with answers",
                        "want_of_an_answer",
                    )
                yield Question(f"{file.name}:{id_}", id_, question, context, answers)

    def _entries(
        self, file: SourceFile, counts: Counter[str]
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield (place, context, question with its answers) in SQuAD's form."""
        if self.layout == "squad":
            data = read_json(file, self.encoding)
            if not isinstance(data, dict):
                raise _unexpected(file.uri, 'an object with "data"', data)
            for place, article in _list_objects(data, "data", f"{file.uri}, "):
                for where, paragraph in _list_objects(article, "paragraphs", f"{place}."):
                    with self.skip_damage(counts, paragraph):
                        value = _value(paragraph, "context", where, str)
                        context = words(value, where, "the context")
                        for at, entry in _list_objects(paragraph, "qas", f"{where}."):
                            yield at, context, entry
            return
        layout = "json_lines" if self.layout == "mrqa" else self.layout
        for line, record in read_objects(self, layout, file, counts):
            if self.layout == "mrqa" and "header" in record:
                continue
            where = f"{file.uri}:{line}"
            with self.skip_damage(counts, record):
                context = words(record.get("context"), where, "the context")
                if self.layout != "mrqa":
                    answers = _paired_answers(_value(record, "answers", where, dict), where)
                    none = {"is_impossible": not answers}
                    yield where, context, none | record | {"answers": answers}
                    continue
                for at, entry in _list_objects(record, "qas", f"{where}, "):
                    with self.skip_damage(counts, (context, entry)):
                        answers = [
                            {
                                "text": answer.get("text"),
                                "answer_start": span[0]
                                if isinstance(span, list) and span
                                else None,
                            }
                            for place, answer in _list_objects(entry, "detected_answers", f"{at}.")
                            for span in _value(answer, "char_spans", place, list)
                        ]
                        yield at, context, {**entry, "id": entry.get("qid"), "answers": answers}

    def _answers(
        self, entry: dict[str, Any], context: str, where: str, counts: Counter[str]
    ) -> Iterator[Answer]:
        for place, answer in _list_objects(entry, "answers", f"{where}, "):
            with self.skip_damage(counts, "", "answers"):
                text = words(_value(answer, "text", place, str), place, "the answer")
                offset = _value(answer, "answer_start", place, int)
                start = code_point(context, offset, self.offsets)
                stands = "" if start is None else context[start : start + len(text)]
                if start is None or stands != text:
                    raise Damage(
                        f"{place}: expected {quote(text)} in the context from character {offset} "
                        f"on, found {quote(stands)}{suggest_units(context, offset, text)}; mend "
                        "the answer, or leave such answers out with data.format.on_error: drop",
                        "not_being_in_the_context",
                    )
                yield Answer(text, start)


def _paired_answers(lists: dict[str, Any], where: str) -> list[dict[str, Any]]:
    texts, starts = (_value(lists, key, where, list) for key in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise Damage(
            f"{where}: expected a start for each answer, found {len(texts)} texts and "
            f"{len(starts)} starts; mend the line",
            "an_answer_without_a_start",
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _list_objects(
    record: dict[str, Any], key: str, before: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list, each with its place, which begins with `before`."""
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


def _unexpected(where: str, expected: str, value: Any) -> Damage:
    return Damage(
        f"{where}: expected {expected} but found {quote(value)}; mend the file, or change "
        "data.format.kind",
        "what_is_missing",
    )
