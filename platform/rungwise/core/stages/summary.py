"""The summary of a finished stage: one frozen model per stage, stored in the record as JSON.

Adding or removing a field requires raising the version of the stage, unless a new field has a
default that is true of older artifacts.
"""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact


class SummaryPart(BaseModel):
    """Base of summaries and their parts: frozen, refuses unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )


class Summary(SummaryPart):
    """Base of every summary. `headline` is for the terminal. Only the runner uses `sha256` (of
    files hashed where they were written) and `show` (files to log to the tracking server)."""

    headline: str
    sha256: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    show: tuple[str, ...] = Field(default=(), exclude=True, repr=False)

    @property
    def caution(self) -> str:
        """The reason not to use the result, or "". A model with one gets no alias."""
        return ""

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """Parse the summary of a finished stage. Raises DataError if it does not fit this class."""
        summary = artifact.parsed.get(cls)
        if summary is None:
            try:
                summary = cls.model_validate(artifact.record["summary"])
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise DataError(
                    f"{artifact.folder.path(artifacts.RECORD)} holds no {cls.__name__} "
                    f"(summary.{where}: {first['msg'].lower()}); delete the folder to rebuild it"
                ) from error
            artifact.parsed[cls] = summary
        return summary

    def replace_summary(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with this summary instead of its own; writes nothing."""
        record = {**artifact.record, "summary": self.model_dump(mode="json")}
        changed = Artifact(artifact.stage, artifact.fingerprint, artifact.folder, record)
        changed.parsed[type(self)] = self
        return changed


class PerSplit(SummaryPart):
    """A count for each split of a corpus."""

    train: int
    validation: int

    @classmethod
    def sum_rows(cls, rows: Sequence[Any], unit: str) -> Self:
        """Add up the field `unit` of rows of each split."""
        counts = dict.fromkeys(cls.model_fields, 0)
        for row in rows:
            counts[row.split] += getattr(row, unit)
        return cls(**counts)

    @property
    def total(self) -> int:
        return self.train + self.validation
