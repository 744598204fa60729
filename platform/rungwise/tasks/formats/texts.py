"""Files whose examples are texts: a row or object each, such as pairs and questions with options;
SQuAD; a folder or a file per class; parallel files; and bracketed parse trees.

    ( (S (NP-SBJ (NNP Mr.) (NNP Vinken) ) (VP (VBZ is) (ADJP-PRD (JJ old) )) (. .) ))

    text      Mr. Vinken is old .
    target    (S (NP XX XX) (VP XX (ADJP XX)) XX)

A word of the linearised tree is XX, and labels have no functions (Vinyals et al. 2015, "Grammar as
a foreign language", arXiv:1412.7449). Empty elements, of label -NONE-, are left out."""

import itertools
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers.streams import compression_suffix
from rungwise.tasks.formats import base
from rungwise.tasks.formats.base import Column, Damage, FormatConfig, Labels, RecordsFormat
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Kind, Question, Text

# A list that was written as text: of JSON, Python (in pandas' CSV) or NumPy, which has no commas.
_LIST = re.compile(r"\s*\[([^\[\]]*)\]\s*")
_ITEM = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,'"][^,'"]*)""")


class ColumnsConfig(Config):
    """The columns of a table: names in the header, indexes from 0, or JSON fields, with a dot for
    nested ones. The texts of several columns are joined."""

    text: base.TextColumn = "text"
    second: base.TextColumn | None = None  # second text of a pair
    label: Column | None = None  # the class, in classification
    # any number of labels: a list, text with `label_separator` or like ['a', 'b'], or columns of 0
    # and 1
    labels: base.TextColumn | None = None
    score: Column | None = None  # the number to predict, in regression
    target: base.TextColumn | None = None  # the text to write, in generation

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if len(self.targets) > 1:
            raise ValueError(f"{' and '.join(self.targets)} are both set; a table has one target")
        if self.second is not None and self.target is not None:
            raise ValueError(
                "second and target are both set, and one text is written after one other; join the "
                "columns of the first: text: [title, body]"
            )
        if any(isinstance(value, int) and value < 0 for _, value in self):
            raise ValueError("an index of a column is 0 or more")
        return self

    @property
    def targets(self) -> list[str]:
        """The target keys that are set."""
        return [
            key for key in ("label", "labels", "score", "target") if getattr(self, key) is not None
        ]


class TableFormat(RecordsFormat):
    """A table with one example per row or, in JSON, per object."""

    kind: Literal["table"] = "table"
    columns: ColumnsConfig
    # {value in the file: name}, or a list of the allowed values; null: any value
    labels: Labels | None = None
    label_separator: str = Field(default=",", min_length=1)  # separates several labels in one text
    # leave out rows with these labels or scores, such as SNLI's "-", or "" for none
    skip_labels: tuple[str, ...] = ()

    @property
    def task_kind(self) -> Kind:
        if self.columns.labels is not None:
            return "multilabel"
        if self.columns.target is not None:
            return "generation"
        return "classification" if self.columns.score is None else "regression"

    def example(self, row: base.Row, place: str, where: str, counts: Counter[str]) -> Text | None:
        """Return the example of a row; its target is None if there is no target column."""
        values = self._values_of_labels(row, where)
        score = [base.plain(row["columns.score"])] if "columns.score" in row else []
        if not {*self.skip_labels}.isdisjoint([*values, *score]):
            counts["rows_dropped_for_their_label"] += 1
            return None
        names = [base.label_name(each, self.labels, where) for each in values]
        target = names[0] if names else None
        if "columns.labels" in row:
            target = tuple(sorted({*names}))
        elif "columns.score" in row:
            target = self._score(row["columns.score"], where)
        elif "columns.target" in row:
            target = base.words(row["columns.target"], where, "the target")
        text, second = base.words(row["columns.text"], where, "the text"), None
        if "columns.second" in row:
            second = base.words(row["columns.second"], where, "the second text")
        return Text(place, text, second, target)

    def _values_of_labels(self, row: Mapping[str, Any], where: str) -> list[str]:
        if "columns.label" in row:
            return [_label_text(row["columns.label"], where)]
        value = row.get("columns.labels", [])
        if isinstance(self.columns.labels, tuple):
            marked = zip(self.columns.labels, value, strict=True)
            return [str(column) for column, mark in marked if _is_marked(mark, where)]
        if isinstance(value, str) and (items := split_list(value)) is not None:
            return items
        if isinstance(value, str):
            return [each.strip() for each in value.split(self.label_separator) if each.strip()]
        several = value if isinstance(value, list) else [value]
        return [_label_text(each, where) for each in several]

    def _score(self, value: Any, where: str) -> float:
        if isinstance(value, str) and self.delimiter == ";":
            value = value.replace(",", ".")
        try:
            # float(True) is 1.0, but `true` among scores is a mistake.
            score = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise Damage.explain(where, "a number as the score", base.quote(value), "columns.score")
        return score


def split_list(text: str) -> list[str] | None:
    """Return the items of a list that is written in brackets; None for any other text."""
    if (inside := _LIST.fullmatch(text)) is None:
        return None
    return [item[item.lastindex or 0].strip() for item in _ITEM.finditer(inside[1])]


def _is_marked(value: Any, where: str) -> bool:
    mark = str(value).strip().lower()
    if mark not in ("0", "1", "0.0", "1.0", "false", "true"):
        expected = "0 or 1 in each column of a label"
        raise Damage.explain(where, expected, base.quote(value), "columns.labels")
    return mark in ("1", "1.0", "true")


def _label_text(value: Any, where: str) -> str:
    """Return a label as text, "" for null; in JSON and Parquet it may be a whole number, a boolean,
    or a list of one of them."""
    match value:
        case [only]:
            return _label_text(only, where)
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value).strip()
        case float() if value.is_integer():
            return str(int(value))
        case None:
            return ""
    expected = "text or a whole number as a label, or a list of one"
    raise Damage.explain(where, expected, base.quote(value), "columns.label")


class ChoiceColumns(Config):
    """The columns of a multiple-choice table, named as in a table."""

    context: base.TextColumn | None = None  # text that comes first; set this, `question` or both
    question: base.TextColumn | None = None  # the question about it
    options: base.TextColumn  # a column per option, or one column with a JSON list
    names: Column | None = None  # names of the options, a JSON list, if `answer` is one of them
    begins: Column | None = None  # text that begins every option, as in SWAG
    answer: Column  # the right answer

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.context is None and self.question is None:
            raise ValueError("expected context or question, found neither")
        return self


class ChoiceFormat(RecordsFormat):
    """Multiple choice, with an example per row or object."""

    fixed_kind = "choice"

    kind: Literal["choice"] = "choice"
    columns: ChoiceColumns
    # what `columns.answer` holds: the option's number, its letter or its text
    answer: Literal["index", "letter", "text"] = "index"
    first: int = Field(default=0, ge=0, le=1)  # number of the first option

    def example(self, row: base.Row, place: str, where: str, counts: Counter[str]) -> ChoiceExample:
        options = _check_options(row["columns.options"], where)
        target = self._target(row, options, where)
        texts = [
            base.words(row[f"columns.{name}"], where, f"the {name}")
            for name in ("context", "question")
            if f"columns.{name}" in row
        ]
        begins = str(row.get("columns.begins") or "").strip()
        options = tuple(f"{begins} {option}" if begins else option for option in options)
        second = texts[1] if len(texts) > 1 else None
        return ChoiceExample(place, texts[0], second, options, target)

    def _target(self, row: base.Row, options: Sequence[str], where: str) -> int:
        value = base.plain(row["columns.answer"])
        values = [str(place + self.first) for place in range(len(options))]
        if "columns.names" in row:
            names = row["columns.names"]
            if not isinstance(names, list) or len(names) != len(options):
                expected = f"a name for each of the {len(options)} options"
                raise Damage.explain(where, expected, base.quote(names), "columns.names")
            values = [base.plain(name) for name in names]
        elif self.answer == "letter":
            values, value = list(string.ascii_uppercase[: len(options)]), value.upper()
        elif self.answer == "text":
            values = [option.strip() for option in options]
        if values.count(value) != 1:
            expected = f"one of {base.join_names(values)} as the answer"
            found = base.quote(value) + base.suggest(value, values)
            found += " (published tests may have no answers)"
            raise Damage.explain(where, expected, found, "answer or first")
        return values.index(value)


def _check_options(options: Any, where: str) -> tuple[str, ...]:
    if not isinstance(options, list) or len(options) < 2:
        number = str(len(options)) if isinstance(options, list) else base.quote(options)
        raise Damage.explain(where, "two options or more", number, "columns")
    return tuple(
        base.words(option, where, f"option {place}") for place, option in enumerate(options)
    )


class SquadFormat(FormatConfig):
    """SQuAD JSON, version 1.1 or 2.0 (Rajpurkar et al. 2016, arXiv:1606.05250; 2018,
    arXiv:1806.03822), and data sets in the same form, such as CMRC 2018. Plausible answers of
    impossible questions are not read."""

    fixed_kind = "span"

    kind: Literal["squad"] = "squad"
    # squad: as published; others: an object per question, with its context and answers: {text:
    # [...], answer_start: [...]}, as other tools export it
    layout: Literal["squad", "json_lines", "json", "parquet"] = "squad"
    # questions without an answer; drop turns version 2.0 into 1.1
    unanswerable: Literal["keep", "drop"] = "keep"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Question]:
        for place, entry in self._entries(file, counts):
            with self.skip_damage(counts):
                where = f"{file.uri}:{place}"
                context = base.words(_value(entry, "context", where, str), where, "the context")
                id_ = str(_value(entry, "id", where, str | int))
                where = f"{file.uri}, question {id_}"
                question = base.words(_value(entry, "question", where, str), where, "the question")
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
                    raise Damage.explain(where, "an answer, or is_impossible: true", "neither")
                yield Question(f"{file.name}:{id_}", id_, question, context, answers)

    def _entries(self, file: SourceFile, counts: Counter[str]) -> Iterator[base.Record]:
        """Yield each question with the fields of its paragraph."""
        if self.layout != "squad":
            yield from base.read_objects(self, self.layout, file, counts)
            return
        for place, record in base.read_objects(self, "json", file, counts):
            with self.skip_damage(counts):
                lists = "data.paragraphs.qas"
                yield from base.list_records(record, lists, place, file.uri, "data.format.layout")

    def _answers(
        self, stated: list[Any], context: str, where: str, counts: Counter[str]
    ) -> Iterator[Answer]:
        for number, answer in enumerate(stated):
            place = f"{where}, answers[{number}]"
            with self.skip_damage(counts, "answers_dropped_as_not_in_the_context"):
                if not isinstance(answer, dict):
                    raise Damage.explain(place, "an object", base.quote(answer), "kind")
                text = base.words(_value(answer, "text", place, str), place, "the answer")
                start = _value(answer, "answer_start", place, int)
                content = context[start : start + len(text)] if start >= 0 else ""
                if content != text:
                    expected = f"{base.quote(text)} in the context from character {start} on"
                    raise Damage.explain(place, expected, base.quote(content), "on_error to drop")
                yield Answer(text, start)


def _pair_answers(lists: dict[str, Any], where: str) -> list[dict[str, Any]]:
    texts, starts = (_value(lists, key, where, list) for key in ("text", "answer_start"))
    pairs = itertools.zip_longest(texts, starts)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _value(record: dict[str, Any], key: str, where: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Damage.explain(where, f"{key!r} as in SQuAD's JSON", base.quote(value), "kind")
    return value


class FoldersFormat(FormatConfig):
    """The name of a file, or of its folder, is the class of its content."""

    fixed_kind = "classification"

    kind: Literal["folders"] = "folders"
    # whose name is the class; a file's is taken without .txt
    label: Literal["folder", "file"] = "folder"
    example: Literal["file", "line"] = "file"  # what an example is; blank lines are skipped
    # {name of the folder or file: class}, or a list of the allowed names; null: any name
    labels: Labels | None = None
    skip_labels: tuple[str, ...] = ()  # folders or files to leave out

    def select_files(self, files: base.Files, counts: Counter[str]) -> base.Files:
        """Leave out files beside the folders of classes, such as a README or a list of names."""
        if self.label == "file":
            return files
        folders = [PurePosixPath(file.uri).parent for file in files]
        above = {parent for folder in folders for parent in folder.parents}
        inside = [file for file, folder in zip(files, folders, strict=True) if folder not in above]
        if len(inside) < len(files):
            counts["files_left_out_beside_the_folders_of_classes"] += len(files) - len(inside)
        return inside

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        *_, folder, name = file.uri.split("/")
        name = name.removesuffix(compression_suffix(name)).removesuffix(".txt")
        label_text = folder if self.label == "folder" else name
        if label_text in self.skip_labels:
            counts["files_left_out_for_their_label"] += 1
            return
        text = base.read_text(file, self.encoding)
        with self.skip_damage(counts):
            label = base.label_name(label_text, self.labels, file.uri)
            if self.example == "file":
                yield Text(file.name, base.words(text.strip(), file.uri, "the text"), None, label)
                return
            for line, each in enumerate(base.split_lines(text), start=1):
                if each.strip():
                    yield Text(f"{file.name}:{line}", each.strip(), None, label)


class ParallelFormat(FormatConfig):
    """Two files of aligned lines: texts, and the texts to write for them."""

    fixed_kind = "generation"

    kind: Literal["parallel"] = "parallel"
    # parts of the names of both files, between dots: en and de of train.en.gz and train.de.gz
    source: str = Field(min_length=1)
    target: str = Field(min_length=1)

    def select_files(self, files: base.Files, counts: Counter[str]) -> base.Files:
        """Return the files of sources. Raises DataError if one lacks its partner."""
        uris = {file.uri for file in files}
        sources = [file for file in files if self._other(file.uri) != file.uri]
        if not sources or any(self._other(file.uri) not in uris for file in sources):
            raise DataError(
                f"expected files with .{self.source} and .{self.target} in their names, side by "
                f"side, found {', '.join(sorted(uris))}; name both, or change data.format.source "
                "or data.format.target"
            )
        return sources

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        other = replace(file, uri=self._other(file.uri), name=self._other(file.name), tag="")
        texts = (base.read_text(each, self.encoding) for each in (file, other))
        sources, targets = map(base.split_lines, texts)
        if len(sources) != len(targets):
            raise DataError(
                f"expected aligned lines, found {len(sources):,} in {file.uri} and "
                f"{len(targets):,} in {other.uri}; mend the files"
            )
        for line, pair in enumerate(zip(sources, targets, strict=True), start=1):
            where = f"{file.uri}:{line}"
            with self.skip_damage(counts):
                source, target = (base.words(each.strip(), where, "the text") for each in pair)
                yield Text(f"{file.name}:{line}", source, None, target)

    def _other(self, path: str) -> str:
        """The name of the file of targets; the same if the file is none of sources."""
        folder, slash, name = path.rpartition("/")
        parts = [self.target if part == self.source else part for part in name.split(".")]
        return folder + slash + ".".join(parts)


_PIECES = re.compile(r"\(\s*(?P<label>[^\s()]*)|\)|[^\s()]+")
_FUNCTIONS = re.compile(r"(?<=[^-=])[-=].*")  # behind a label: NP-SBJ-1, NP=2
_EMPTY, _WORD = "-NONE-", "XX"
_SIGNS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}


class ParsesFormat(FormatConfig):
    """Bracketed parse trees: sentences, and their trees without the words."""

    fixed_kind = "generation"

    kind: Literal["parses"] = "parses"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        text = base.read_text(file, self.encoding)
        for begin, content in _split_trees(text):
            before = begin + len(content) - len(content.lstrip())
            line = text.count("\n", 0, before) + 1
            with self.skip_damage(counts):
                words, tree = _linearise(content, f"{file.uri}:{line}")
                yield Text(f"{file.name}:{line}", " ".join(words), None, tree)


def _split_trees(text: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the content of each outermost bracket, what stands before it included."""
    begin, depth = 0, 0
    for match in re.finditer("[()]", text):
        depth += 1 if match.group() == "(" else -1
        if depth <= 0:  # a tree ends, or a bracket that nothing opened
            yield begin, text[begin : match.end()]
            begin, depth = match.end(), 0
    if text[begin:].strip():
        yield begin, text[begin:]


def _linearise(content: str, where: str) -> tuple[list[str], str]:
    """Return the words of a tree, and the tree without them."""
    words: list[str] = []
    nodes: list[tuple[str, list[str]]] = [("", [])]  # labels and parts, "" for a word
    for match in _PIECES.finditer(content):
        piece, label = match.group(), nodes[-1][0]
        if match["label"] is not None:
            nodes.append((match["label"], []))
        elif piece != ")":
            if label != _EMPTY:
                nodes[-1][1].append("")
                words.append(_SIGNS.get(piece, piece))
        elif len(nodes) == 1:
            raise Damage(f"{where}: ) closes nothing; mend the file")
        else:
            label, parts = nodes.pop()
            tree = " ".join(part or _WORD for part in parts)
            if label and parts != [""]:  # more than the part of speech of a word
                tree = f"({_FUNCTIONS.sub('', label)} {tree})"
            nodes[-1][1].extend([tree] if parts else [])
    if len(nodes) > 1 or not words:
        content = f"{len(nodes) - 1} open brackets" if len(nodes) > 1 else "no words"
        raise Damage.explain(where, "a tree of words", content)
    return words, " ".join(nodes[0][1])
