"""Write a page: the Jinja environment, the fields that both pages have, and the files."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from rungwise.core.configuration.secrecy import redact
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.core.tables import csv_bytes
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.report import formats
from rungwise.report.sections import origin, results, tables
from rungwise.report.sections.origin import RECIPE
from rungwise.report.stage import ReportSummary


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


def render_template(
    name: str,
    inputs: Mapping[str, Artifact],
    title: str | None,
    plots: Mapping[str, bytes],
    recipe: str,
    **fields: Any,
) -> str:
    """A page as HTML, with its own `fields`; `title` defaults to the label of the run. Secrets are
    cut from the recipe and the sources; results, with names of labels, are data."""
    last = list(inputs.values())[-1]
    return (
        environment()
        .get_template(name)
        .render(
            origin=origin,
            results=results,
            inputs=inputs,
            title=title or last.label,
            corpus=CorpusSummary.of(inputs["corpus"]),
            sources=[redact(source) for source in describe_sources(inputs["corpus"])],
            stages=tables.stages(inputs),
            plots=plots,
            finished=last.record["finished"],
            root=origin.root_folder(last),
            recipe=redact(recipe),
            **fields,
        )
    )


def write_files(
    output: Folder,
    page: tuple[str, str],
    plots: Mapping[str, bytes],
    csv_tables: Mapping[str, Sequence[Mapping[str, Any]]],
    recipe: str,
    headline: str,
) -> ReportSummary:
    """Write a page (file name, HTML), its plots, each table as CSV, and the recipe."""
    name, html = page
    csv = {f"{table}.csv": csv_bytes(rows) for table, rows in csv_tables.items()}
    files = {name: html.encode("utf-8"), **plots, **csv, RECIPE: recipe.encode("utf-8")}
    for file, data in files.items():
        output.write_bytes(file, data)
    return ReportSummary(page=name, show=tuple(files), headline=headline)
