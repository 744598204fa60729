"""Published tables with their columns filled in: GLUE's tasks, SICK, STS, SWAG and CODAH.

GLUE (Wang et al. 2018, arXiv:1804.07461) comes as tab-separated files with literal quotes. Columns
are those of its baselines (github.com/nyu-mll/GLUE-baselines): CoLA has no header, as its authors
published it (Warstadt, Singh and Bowman 2018, arXiv:1805.12471); the others are found by name. The
test files have no labels. Metrics are the benchmark's, the first where it has two.

SWAG (Zellers et al. 2018, arXiv:1808.05326): the first sentence is the context, and each option is
the beginning of the second sentence with one ending. CODAH (Chen et al. 2019, arXiv:1904.04365) has
a prompt and four endings.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import FormatConfig
from rungwise.tasks.formats.choice import ChoiceColumns, ChoiceFormat
from rungwise.tasks.formats.records import SplitColumn
from rungwise.tasks.formats.table import ColumnsConfig, TableFormat
from rungwise.tasks.kinds.examples import Example, Kind

GlueTask = Literal[
    "CoLA", "SST-2", "MRPC", "QQP", "STS-B", "MNLI", "SNLI", "QNLI", "RTE", "WNLI", "AX"
]

_NLI = ("entailment", "neutral", "contradiction")
_TWO_WAY = ("not_entailment", "entailment")


def _pair(
    text: str, second: str, label: str, labels: dict[str, str] | tuple[str, ...]
) -> TableFormat:
    columns = ColumnsConfig(text=text, second=second, label=label)
    return TableFormat(columns=columns, labels=labels)


# "-" marks pairs without agreement of the annotators (Bowman et al. 2015, arXiv:1508.05326).
_INFERENCE = _pair("sentence1", "sentence2", "gold_label", _NLI).model_copy(
    update={"skip_labels": ("-",)}
)
_GLUE: dict[GlueTask, TableFormat] = {
    "CoLA": TableFormat(
        columns=ColumnsConfig(text=3, label=1),
        header=False,
        labels={"0": "unacceptable", "1": "acceptable"},
    ),
    "SST-2": TableFormat(
        columns=ColumnsConfig(text="sentence", label="label"),
        labels={"0": "negative", "1": "positive"},
    ),
    "MRPC": _pair("#1 String", "#2 String", "Quality", {"0": "not_equivalent", "1": "equivalent"}),
    "QQP": _pair(
        "question1", "question2", "is_duplicate", {"0": "not_duplicate", "1": "duplicate"}
    ),
    "STS-B": TableFormat(
        columns=ColumnsConfig(text="sentence1", second="sentence2", score="score"),
        score_range=(0, 5),
    ),
    "MNLI": _INFERENCE,
    "SNLI": _INFERENCE,
    "QNLI": _pair("question", "sentence", "label", _TWO_WAY),
    "RTE": _pair("sentence1", "sentence2", "label", _TWO_WAY),
    "WNLI": _pair("sentence1", "sentence2", "label", {"0": "not_entailment", "1": "entailment"}),
    "AX": _pair("Premise", "Hypothesis", "Label", _NLI),  # in diagnostic-full.tsv, which has labels
}
_GLUE_METRICS = {"CoLA": "matthews", "MRPC": "f1", "QQP": "f1", "AX": "matthews"}


class _Preset(FormatConfig):
    @property
    @abstractmethod
    def table(self) -> TableFormat | ChoiceFormat:
        """The table with its columns filled in."""

    @property
    def task_kind(self) -> Kind:
        return self.table.task_kind

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return self.table.stated_labels

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Example]:
        table = self.table.model_copy(update={"encoding": self.encoding, "on_error": self.on_error})
        return table.read(file, split, counts)


class GlueFormat(_Preset):
    """A task of GLUE, or SNLI in the same layout, by the benchmark's name for it."""

    kind: Literal["glue"] = "glue"
    task: GlueTask

    @property
    def table(self) -> TableFormat:
        return _GLUE[self.task]

    @property
    def default_metric(self) -> str | None:
        return _GLUE_METRICS.get(self.task)


class SickFormat(_Preset):
    """SICK: relatedness from 1 to 5, or entailment, of pairs of sentences (Marelli et al. 2014).

    `full` is the single SICK.txt, whose column SemEval_set names the split: give it as train,
    validation and test. `semeval` is the three files of SemEval-2014 task 1 (SICK_train.txt and so
    on), in which the entailment column has another name.
    """

    kind: Literal["sick"] = "sick"
    target: Literal["relatedness", "entailment"] = "relatedness"
    release: Literal["full", "semeval"] = "full"

    @property
    def table(self) -> TableFormat:
        full, rated = self.release == "full", self.target == "relatedness"
        entailment = "entailment_label" if full else "entailment_judgment"
        target = {"score": "relatedness_score"} if rated else {"label": entailment}
        names = {"train": ("TRAIN",), "validation": ("TRIAL",), "test": ("TEST",)}
        return TableFormat(
            columns=ColumnsConfig(text="sentence_A", second="sentence_B", **target),
            score_range=(1, 5) if rated else None,
            labels=None if rated else {name.upper(): name for name in _NLI},
            split=SplitColumn(column="SemEval_set", **names) if full else None,
        )


class StsFormat(_Preset):
    """The STS benchmark: similarity from 0 to 5 (Cer et al. 2017, arXiv:1708.00055).

    `original` is sts-train.csv and so on: tab-separated without quoting, the score in column 4, the
    sentences in 5 and 6, and in some rows their sources after them. `csv` is stsb-en-train.csv and
    so on: sentence, sentence, score.
    """

    kind: Literal["sts"] = "sts"
    layout: Literal["original", "csv"] = "original"

    @property
    def table(self) -> TableFormat:
        csv = self.layout == "csv"
        text, second, score = (0, 1, 2) if csv else (5, 6, 4)
        return TableFormat(
            columns=ColumnsConfig(text=text, second=second, score=score),
            delimiter="," if csv else "\t",
            header=False,
            quoting=csv,
            extra_columns=not csv,
            score_range=(0, 5),
        )


class SwagFormat(_Preset):
    """SWAG: comma-separated with quoting; the columns are found by the header."""

    kind: Literal["swag"] = "swag"

    @property
    def table(self) -> ChoiceFormat:
        endings = tuple(f"ending{number}" for number in range(4))
        columns = ChoiceColumns(context="sent1", begins="sent2", options=endings, answer="label")
        return ChoiceFormat(columns=columns, delimiter=",", quoting=True)


class CodahFormat(_Preset):
    """CODAH: tab-separated without a header: category, prompt, four endings, label."""

    kind: Literal["codah"] = "codah"

    @property
    def table(self) -> ChoiceFormat:
        columns = ChoiceColumns(context=1, options=(2, 3, 4, 5), answer=6)
        return ChoiceFormat(columns=columns, header=False)
