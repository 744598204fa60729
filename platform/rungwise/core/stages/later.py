"""The function of a stage, imported by the process that calls it.

A plan needs of a stage its name, version, config and summary; what builds it (Ray Data, matplotlib,
the training loop) takes seconds to import, in the driver and in every worker that reads a pickled
stage.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Later:
    """Calls the function at `place`, "package.module:function", imported at the first call."""

    place: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return imported(self)(*arguments, **options)


def imported(function: Callable[..., Any]) -> Callable[..., Any]:
    """Import and return the function that a Later stands for; return any other as it is."""
    if not isinstance(function, Later):
        return function
    module, _, name = function.place.partition(":")
    return getattr(importlib.import_module(module), name)
