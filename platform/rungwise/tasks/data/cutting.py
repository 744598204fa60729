"""Measure what `sequence_length` cuts off a split, and read inputs for prediction.

task                       text lines   columns of TSV or CSV, keys of JSON Lines
single texts, generation   the text     text
pairs                      -            text, second
tagging                    words        words (JSON: a list), or text, split at blanks
span                       -            question, context, optionally id
choice                     -            context, question (may be empty), option0, option1, ...
                                        (JSON: options, a list)
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.summary import SummaryPart
from rungwise.tasks.formats.base import Damage
from rungwise.tasks.formats.records import missing_column, number_rows, parse_json, read_cells
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import Example, Kind, TaskInfo, Text, join_parts
from rungwise.tasks.kinds.items import WORD, Cut, Item
from rungwise.tasks.kinds.kind import Record

NOTED = 0.05  # cuts in more than this share of the examples are reported


class CutShare(SummaryPart):
    """Counts of a split: examples, examples that lost something, examples read in several items,
    words, and words not read completely. Rows of `length` tokens would cut at most 5 % of the
    examples; None: no row is long enough, because of another limit.
    """

    examples: int
    cut_examples: int
    windowed_examples: int
    words: int
    cut_words: int
    length: int | None

    @property
    def of_examples(self) -> float:
        return self.cut_examples / self.examples

    @property
    def windowed(self) -> float:
        return self.windowed_examples / self.examples

    @property
    def of_words(self) -> float:
        return self.cut_words / max(1, self.words)


def cut_share(
    examples: Sequence[Any], items: Sequence[Item], tokenizer: Tokenizer, kind: Kind
) -> CutShare:
    """Count what `items` lost of `examples`. A word is a run without blanks, or a Han character."""
    needs = [0.0] * len(examples)
    for item in items:
        needs[item.example] = max(needs[item.example], item.needs)
    cuts = [cut for item in items for cut in item.cut]
    texts = [join_parts(example) for example in examples]
    if KINDS[kind].writes:  # the target is a text too, and can lose words
        texts += [str(each.target) for each in examples if isinstance(each, Text)]
    enough = sorted(needs)[len(needs) - 1 - int(NOTED * len(needs))]
    return CutShare(
        examples=len(examples),
        cut_examples=len({item.example for item in items if item.cut}),
        windowed_examples=sum(n > 1 for n in Counter(item.example for item in items).values()),
        words=sum(len(WORD.findall(text)) for text in texts),
        cut_words=sum(_lost(cuts, tokenizer)),
        length=None if math.isinf(enough) else int(enough),
    )


def note(sequence_length: int, shares: dict[str, CutShare]) -> str | None:
    """Describe what is cut or read in windows; None if that is little."""
    cut = {split: share for split, share in shares.items() if share.of_examples > NOTED}
    if not cut:
        long = {split: each.windowed for split, each in shares.items() if each.windowed > NOTED}
        parts = ", ".join(f"{share:.1%} of the {split} examples" for split, share in long.items())
        line = (
            f"{parts} do not fit into finetune.sequence_length {sequence_length} and are "
            "read in several rows, so that nothing is cut"
        )
        return line if long else None
    parts = ", ".join(
        f"{share.of_examples:.1%} of the {split} examples ({share.of_words:.1%} of the words)"
        for split, share in cut.items()
    )
    lengths = [share.length for share in cut.values()]
    if None in lengths:
        return (
            f"{parts} are cut, and no finetune.sequence_length would cut at most {NOTED:.0%}: "
            "texts to write are cut at finetune.max_answer_tokens, questions at 64 tokens"
        )
    return (
        f"finetune.sequence_length {sequence_length} cuts {parts}; "
        f"{max(filter(None, lengths))} would cut at most {NOTED:.0%} of the examples"
    )


def _lost(cuts: Sequence[Cut], tokenizer: Tokenizer) -> list[int]:
    """Count for each cut text the words that its kept tokens do not cover completely."""
    texts = list(dict.fromkeys(cut.text for cut in cuts))
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    offsets_of = {text: each.offsets for text, each in zip(texts, encodings, strict=True)}
    counts = []
    for cut in cuts:
        offsets = offsets_of[cut.text]
        begin = offsets[cut.begin][0] if cut.begin < len(offsets) else len(cut.text)
        end = offsets[cut.end][0] if cut.end < len(offsets) else len(cut.text)
        first = 0 if cut.begin == 0 else begin
        words = WORD.finditer(cut.text)
        counts.append(sum(word.start() < first or word.end() > end for word in words))
    return counts


Format = Literal["text", "tsv", "csv", "jsonl"]
SUFFIXES: Mapping[str, Format] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


def read_lines(
    lines: Iterable[str], form: Format, info: TaskInfo, source: str
) -> Iterator[Example]:
    """Yield an example per line. An empty line is an example in text files, and else skipped.

    Raises DataError with `source` and the line if a line does not fit.
    """
    match form:
        case "text":
            name = text_column(info)
            for number, line in enumerate(lines, start=1):
                yield parse_example({name: line.rstrip("\r\n")}, info, f"{source}:{number}")
        case "jsonl":
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    problem = "expected one JSON object a line, found no JSON"
                    values = parse_json(line.rstrip(), source, number, problem, "mend the line")
                    where = f"{source}:{number}"
                    if not isinstance(values, dict):
                        raise Damage.explain(where, "a JSON object", type(values).__name__)
                    yield parse_example(values, info, where)
        case "tsv":
            yield from _table(read_cells(lines, "\t", quoting=False), info, source)
        case "csv":
            yield from _table(read_cells(lines, ",", quoting=True), info, source)


def parse_examples(inputs: Any, info: TaskInfo) -> list[Example]:
    """Return the examples of a call: a text, an object with named values, or a list of these.

    Raises DataError naming `input 1` and so on if one does not fit.
    """
    if isinstance(inputs, str | Mapping):
        inputs = [inputs]
    if not isinstance(inputs, Sequence):
        raise DataError(
            "expected a text, an object with named values, or a list of these, found "
            f"{inputs!r:.80}"
        )
    records = (each if isinstance(each, Mapping) else {text_column(info): each} for each in inputs)
    return [parse_example(each, info, f"input {n}") for n, each in enumerate(records, start=1)]


def text_column(info: TaskInfo) -> str:
    """Return the column that a line of text fills; DataError if an example has several."""
    kind = task_kind(info)
    if kind.is_one_text:
        return "text"
    raise DataError(
        f"a bare line of text is not enough for this model: it needs {', '.join(kind.columns)}; "
        "give a table with a header, or JSON Lines, with these"
    )


def parse_example(values: Mapping[str, Any], info: TaskInfo, where: str) -> Example:
    """Make an example from named values. Raises DataError with `where` and what is missing."""
    kind = task_kind(info)
    return kind.parse(Record(values, where, kind.columns))


def _table(reader: Any, info: TaskInfo, source: str) -> Iterator[Example]:
    rows = number_rows(reader, source, "give the data as TSV or JSON Lines")
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if twice := [name for name in task_kind(info).columns if header.count(name) > 1]:
        times = header.count(twice[0])
        raise missing_column(twice[0], header, f"{source}:1", "the header", times)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{source}:{line}: expected {len(header)} columns ({', '.join(header)}), found "
                f"{len(row)}"
            )
        yield parse_example(dict(zip(header, row, strict=True)), info, f"{source}:{line}")
