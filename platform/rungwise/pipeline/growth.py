"""A list of stages that grows: what is finished decides which stages come next.

    known stages ──> finished or failed ──> more known stages ──> ... ──> all known

All state is in the records of finished stages, so a run that was killed grows again to where it
was, and drivers that work on the same recipe grow alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Planned, Stage, plan
from rungwise.core.storage.folder import Folder


@dataclass(frozen=True)
class FinishedStages:
    """The stages that are known so far, inputs first. The run goes on if one of the `optional`
    fingerprints fails; `missing` says what never comes because of such failures."""

    stages: Sequence[Stage]
    optional: frozenset[str] = frozenset()
    missing: str = ""


# What is known once artifacts are finished, and others have failed with these messages; both by
# fingerprint. Whoever is given the same artifacts gives the same stages, and never fewer for more.
Grow = Callable[[Mapping[str, Artifact], Mapping[str, str]], FinishedStages]


class Growth:
    """The plan of a run as far as it is known; `need` is called with the fingerprints of stages
    before they are looked for."""

    def __init__(
        self,
        stages: Sequence[Stage] | Grow,
        root: Folder,
        label: str,
        need: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self.rows: list[Planned] = []
        self.fingerprints: dict[str, str] = {}  # of all rows, by displayed name
        self._make = stages if callable(stages) else lambda *_: FinishedStages(stages)
        self._root, self._label, self._need = root, label, need
        self.known = self._make({}, {})
        # What is known before anything is finished, which identifies a run however far it came.
        self.first = {stage.display_name: stage.fingerprint for stage in self.known.stages}
        self.grow({}, {})

    @property
    def finished(self) -> dict[str, Artifact]:
        """The artifacts that the plan found, by displayed name."""
        return {row.stage.display_name: row.artifact for row in self.rows if row.artifact}

    def grow(self, finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> list[Planned]:
        """Plan the stages that have become known; artifacts and messages are by displayed name."""
        artifacts = {each.fingerprint: each for each in finished.values()}
        errors = {self.fingerprints[name]: message for name, message in failed.items()}
        rows: list[Planned] = []
        while True:
            self.known = self._make(artifacts, errors)
            stages = [
                each for each in self.known.stages if each.display_name not in self.fingerprints
            ]
            if not stages:
                self.rows += rows
                return rows
            self._need(each.fingerprint for each in stages)
            self.fingerprints |= {each.display_name: each.fingerprint for each in stages}
            rows += plan(stages, self._root, self._label)
            artifacts |= {row.stage.fingerprint: row.artifact for row in rows if row.artifact}
