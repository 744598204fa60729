"""A few values that a process keeps, for tasks of one kind that follow each other in it."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class Recent(Generic[ValueT]):
    """The last `most` values, by key. Whoever gets one must not change it."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, ValueT] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """The value of this key, made if it is not here."""
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return self._values[key]
