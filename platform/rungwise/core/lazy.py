"""Functions by name, imported by the process that calls them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LazyFunction:
    """Calls the function at `place`, "package.module:function", imported by the process that calls.

    What builds a stage takes seconds to import, which a plan does not need.
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
