"""The templates of all pages, with the filters that they have in common."""

from __future__ import annotations

import inspect

import jinja2

from rungwise.report import formats


def environment() -> jinja2.Environment:
    """Every text is escaped, and a name that nothing defines is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("rungwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
    return made
