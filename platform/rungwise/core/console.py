"""A console for lines that a user may paste or a program may read."""

from rich.console import Console


def plain_console(stderr: bool = False) -> Console:
    """Print lines as they are: no markup, no colours by content, no line breaks but their own."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
