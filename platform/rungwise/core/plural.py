"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Format `1 layer`, `2,000 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
