"""The Jinja environment of all pages."""

from __future__ import annotations

import inspect

import jinja2

from rungwise.report import formats


def environment() -> jinja2.Environment:
    """Templates with autoescaping and the filters of formats.py; undefined names are errors."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("rungwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
    return made
