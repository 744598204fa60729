"""The named values of an input: a row of a table, a JSON object, or an argument of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.errors import DataError


@dataclass(frozen=True)
class Record:
    """Values, where they came from, and the columns that the model needs."""

    values: Mapping[str, Any]
    where: str
    columns: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        """Whether there is a value; an empty one is "" in a file and NaN in a data frame."""
        value = self.values.get(name)
        return value is not None and value == value and value != ""

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            problem = f"{value!r:.80} and not a text" if name in self else "missing"
            raise DataError(
                f"{self.where}: {name} is {problem}; this model needs {', '.join(self.columns)}, "
                f"found {', '.join(map(str, self.values)) or 'nothing'}"
            )
        return self._encodable(value, name)

    def texts(self, name: str, values: Iterable[Any]) -> tuple[str, ...]:
        texts = tuple(values)
        if odd := [each for each in texts if not isinstance(each, str)]:
            raise DataError(f"{self.where}: {name} must be texts, found {odd[0]!r}")
        return tuple(self._encodable(each, name) for each in texts)

    def _encodable(self, text: str, name: str) -> str:
        # JSON can hold what UTF-8 and so the tokenizers cannot.
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{self.where}: {name} holds half of a character (a lone surrogate): {text!a:.80}"
            ) from None
        return text
