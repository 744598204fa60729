"""What both pages share: the Jinja environment, and writing a page with its files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.report import formats
from rungwise.report.sections.origin import RECIPE


class ReportSummary(Summary):
    """The name of the page."""

    page: str


def environment() -> jinja2.Environment:
    """Templates with autoescaping and the filters of formats.py; undefined names are errors."""
    result = jinja2.Environment(
        loader=jinja2.PackageLoader("rungwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
    return result


def write_files(
    output: Folder,
    page: tuple[str, str],
    plots: Mapping[str, bytes],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    recipe: str,
    headline: str,
) -> ReportSummary:
    """Write a page (file name, HTML), its plots, each table as CSV, and the recipe."""
    name, html = page
    csv = {f"{table}.csv": csv_bytes(rows) for table, rows in tables.items()}
    files = {name: html.encode("utf-8"), **plots, **csv, RECIPE: recipe.encode("utf-8")}
    for file, data in files.items():
        output.write_bytes(file, data)
    return ReportSummary(page=name, show=tuple(files), headline=headline)
