"""The task block: paragraphs of the corpus, or published files and digests; and the stages."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.storage.source_files import (
    Paths,
    SourceFile,
    digest_matching_files,
    list_matching_files,
)
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.formats import texts
from rungwise.tasks.formats.tagged import ConllFormat, ConlluFormat, MarksFormat, TokensFormat
from rungwise.tasks.kinds.examples import SPLITS, Kind, TaskSummary
from rungwise.tokenizer.token_stage import TokensSummary

_OfTexts = texts.TableFormat | texts.FoldersFormat | texts.ParallelFormat | texts.ParsesFormat
_OfWords = ConllFormat | ConlluFormat | TokensFormat | MarksFormat
_OfQuestions = texts.SquadFormat | texts.ChoiceFormat
TaggedFormat = Annotated[_OfTexts | _OfWords | _OfQuestions, Field(discriminator="kind")]


class CorpusTaskConfig(Config):
    """A task made of the paragraphs of the corpus."""

    task_kind: ClassVar[Kind] = "classification"

    minimum_words: int = Field(default=12, ge=1)
    maximum_words: int = Field(default=120, ge=1)
    seed: int = Field(default=0, ge=0)


class ParagraphTaskConfig(CorpusTaskConfig):
    """Classify paragraphs of the corpus by label; each split has equally many of every label."""

    kind: Literal["paragraph_label"] = "paragraph_label"
    num_labels: int = Field(default=10, ge=2)
    train_per_label: int = Field(default=20, ge=1)
    validation_per_label: int = Field(default=30, ge=1)
    test_per_label: int = Field(default=60, ge=1)

    def with_budget(self, budget: int) -> "ParagraphTaskConfig":
        """Limit the training examples. Raises ConfigError for fewer than one a label."""
        if per_label := budget // self.num_labels:
            return self.model_copy(update={"train_per_label": per_label})
        raise ConfigError(
            f"evaluate.label_budgets has {budget}, fewer than one for each of the "
            f"{self.num_labels} labels; raise it"
        )


class MadeTaskConfig(CorpusTaskConfig):
    """A task whose examples a rule makes of the corpus (data/made.py)."""

    kind: Any
    # examples of each split, fewer if the corpus gives no more
    train_examples: int = Field(default=400, ge=2)
    validation_examples: int = Field(default=60, ge=2)
    test_examples: int = Field(default=600, ge=2)

    def with_budget(self, budget: int) -> Self:
        """Return the config with this many training examples."""
        return self.model_copy(update={"train_examples": budget})


class NextParagraphConfig(MadeTaskConfig):
    """Two paragraphs: does the second follow the first?"""

    kind: Literal["next_paragraph"] = "next_paragraph"


class CapitalsConfig(MadeTaskConfig):
    """Words in small letters: which begin with a capital, and which end a sentence?"""

    task_kind: ClassVar[Kind] = "tagging"

    kind: Literal["capitals"] = "capitals"
    minimum_words: int = Field(default=20, ge=1)
    maximum_words: int = Field(default=60, ge=1)


class FilesTaskConfig(Config):
    """A task read from files. A split without files is a share of the training examples."""

    kind: Literal["files"] = "files"
    format: TaggedFormat
    # formats of the validation or test files, where they differ from `format`
    formats: dict[Literal["validation", "test"], TaggedFormat] = Field(default_factory=dict)
    train: Paths
    validation: Paths | None = None  # null: take `validation_fraction`
    test: Paths | None = None  # null: take `test_fraction`
    # share of the training examples; null: read `validation`
    validation_fraction: float | None = Field(default=None, gt=0, lt=1)
    # share of the training examples; null: read `test`
    test_fraction: float | None = Field(default=None, gt=0, lt=1)
    # training examples to use, a label budget: of classes equally many; null: all
    train_examples: int | None = Field(default=None, ge=1)
    max_validation_examples: int | None = Field(default=None, ge=1)  # null: use all
    max_test_examples: int | None = Field(default=None, ge=1)  # null: use all
    # validation and test examples with a label that training lacks; keep: as a label that no model
    # can predict
    unseen_labels: Literal["error", "keep"] = "error"
    # metric that selects a model; null: the data set's own, or the default for its kind
    metric: str | None = None
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for split in SPLITS[1:]:
            path, fraction = getattr(self, split), getattr(self, f"{split}_fraction")
            if (path is None) == (fraction is None):
                fault = "neither is set" if path is None else "both are set"
                raise ValueError(f"expected {split} or {split}_fraction, {fault}")
        if (self.validation_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ValueError("validation_fraction and test_fraction leave nothing to train on")
        for split, form in self.formats.items():
            if getattr(self, split) is None:
                raise ValueError(f"formats.{split}: there is no file that is {split}; name one")
            if form.task_kind != self.task_kind:
                raise ValueError(
                    f"formats.{split}: expected files of {self.task_kind}, as format is, "
                    f"found {form.task_kind}"
                )
        for split in SPLITS:
            parts = getattr(self.split_format(split), "split", None)
            has_values = parts is not None and getattr(parts, split) is not None
            if parts is not None and has_values != (getattr(self, split) is not None):
                raise ValueError(
                    f"{split} and format.split.{split} go together: the file, and the values of "
                    f"the column {parts.column!r} in it; set both or neither"
                )
        if isinstance(self.format, texts.TableFormat) and not self.format.columns.targets:
            raise ValueError("format.columns: a task needs a column for the label or for the score")
        return self

    @property
    def task_kind(self) -> Kind:
        return self.format.task_kind

    def with_budget(self, budget: int) -> "FilesTaskConfig":
        """Return the config with this many training examples."""
        return self.model_copy(update={"train_examples": budget})

    def split_format(self, split: str) -> TaggedFormat:
        own: Mapping[str, TaggedFormat] = {**self.formats}
        return own.get(split, self.format)

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of the splits that have files."""
        return {split: getattr(self, split) for split in SPLITS if getattr(self, split) is not None}


TaskConfig = Annotated[
    ParagraphTaskConfig | NextParagraphConfig | CapitalsConfig | FilesTaskConfig,
    Field(discriminator="kind"),
]


def identity(config: CorpusTaskConfig | FilesTaskConfig) -> dict[str, Any]:
    """Return the part of the config that decides the result: all but the paths."""
    return config.model_dump(mode="json", exclude={*SPLITS})


def input_digests(config: CorpusTaskConfig | FilesTaskConfig) -> dict[str, Any]:
    """Digest the files that the task reads, by split; {} if it reads none. Raises ConfigError if a
    path matches nothing, DataError if the files of a split are empty."""
    if not isinstance(config, FilesTaskConfig):
        return {}
    return {
        split: digest_matching_files(paths, f"data.{split}")
        for split, paths in config.paths().items()
    }


def split_files(config: FilesTaskConfig, split: str) -> list[SourceFile]:
    """Return the files that a split's paths match, sorted, each once."""
    return list_matching_files(config.paths()[split], f"data.{split}")


TASK = StageType(
    "task",
    11,
    LazyFunction("rungwise.tasks.data.files:build_task"),
    TaskSummary,
    identity=identity,
    outside=input_digests,
)


class TaskTextConfig(Config):
    """Which training text of a task to read. Labels only select examples; they are not text."""

    # keep examples with these labels, as pairs that people judged alike; null: all
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)
    # share held out to measure the loss on
    held_out_fraction: float = Field(default=0.1, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)


TASK_TEXT = StageType(
    "task_text", 7, LazyFunction("rungwise.tasks.data.task_text:build_task_text"), CorpusSummary
)


class TaskTokensConfig(Config):
    """Empty: the task and the tokenizer decide everything."""


TASK_TOKENS = StageType(
    "task_tokens", 4, LazyFunction("rungwise.tasks.data.task_text:encode_pairs"), TokensSummary
)
