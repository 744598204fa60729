"""Functions by name, imported by the process that calls them."""

import pkgutil
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
    return pkgutil.resolve_name(function.place) if isinstance(function, LazyFunction) else function
