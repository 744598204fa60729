"""Functions by name, imported by the process that calls them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LazyFunction:
    """Calls the function at `place`, "package.module:function", imported by the process that calls.

    A plan needs of a stage its name, version, config and summary; what builds it (Ray Data,
    matplotlib, the training loop) takes seconds to import, in the driver and in every worker that
    reads a pickled stage.
    """

    place: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_function(self)(*arguments, **options)


def import_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Import and return the function that a LazyFunction stands for; return any other as it is."""
    if not isinstance(function, LazyFunction):
        return function
    module, _, name = function.place.partition(":")
    return getattr(importlib.import_module(module), name)
