"""Numbers and lists of things in messages."""

from collections.abc import Iterable


def format_count(number: int, noun: str) -> str:
    """Format `1 layer`, `2,000 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def list_first(names: Iterable[str], most: int) -> str:
    """Format `a, b and 3 more`, with at most so many names."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
