"""A page: its sections in one frame, with their plots and tables, as files beside it and inlined,
so that it can be mailed; and the section about provenance, which every page has. All text is
escaped, since documents may contain HTML."""

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from rungwise.core.configuration.canonical import csv_bytes
from rungwise.core.configuration.secrecy import redact
from rungwise.core.stages.artifact import Inputs
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.report import formats
from rungwise.report.findings import input_artifact, select_stage
from rungwise.report.stage import ReportSummary
from rungwise.serving.stage import RegisterSummary

Row = dict[str, Any]
READING = "How sure is this?"  # the fine print of all statistics of a page, folded
# The models that a run registers, each with the evaluation that it comes from.
Registered = Sequence[tuple[RegisterSummary, EvaluateSummary]]


@dataclass(frozen=True)
class Section:
    """A section: its template with the fields this reads, its plots as PNG and the rows of its CSV
    files, by name without suffix. Where several have one template, each is `titled`."""

    template: str
    title: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    plots: Mapping[str, bytes | None] = field(default_factory=dict)
    csv: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    titled: bool = False

    @property
    def id(self) -> str:
        return re.sub(r"\W+", "_", self.title.lower()) if self.titled else self.template

    @property
    def pictures(self) -> dict[str, bytes]:
        """The plots that have data, by file name."""
        return {f"{name}.png": data for name, data in self.plots.items() if data}

    def render(self, templates: jinja2.Environment, kind: str) -> Markup:
        """The section as HTML, on a page of this kind."""
        template = templates.get_template(f"{self.template}.html.j2")
        fields = {"kind": kind, "plots": self.pictures, **self.fields}
        return Markup(template.render(fields))  # the template has escaped it


@dataclass(frozen=True)
class Page:
    """A page of a `kind`, report or ladder, that a `workflow` ends with. `lede` are its verdicts,
    which look as `standing` says and are the headline of the run; `budget` is the size at which
    they hold. None stands for a section of stages that are missing. `tokens` were read."""

    kind: str
    workflow: str
    lede: Sequence[str]
    sections: Sequence[Section | None]
    standing: str = ""
    budget: str = ""
    registered: Registered = ()
    tokens: int = 0


@functools.cache
def environment() -> jinja2.Environment:
    """Templates with autoescaping, the filters of formats.py and the macros of macros.html.j2;
    undefined names are errors."""
    result = jinja2.Environment(
        loader=jinja2.PackageLoader("rungwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
    macros = result.get_template("macros.html.j2").module
    result.globals |= {name: each for name, each in vars(macros).items() if name[0] != "_"}
    return result


def write_page(
    page: Page, title: str | None, inputs: Inputs, settings: Mapping[str, Any], output: Folder
) -> ReportSummary:
    """Write the page, the plots and tables of its sections, and the recipe that rebuilds them, with
    these `settings`; `title` defaults to the label of the run."""
    templates, last, recipe = environment(), list(inputs.values())[-1], recipe_text(settings)
    html, plots, csv = [], {}, {}
    for section in filter(None, [*page.sections, _write_origin(page, inputs, recipe)]):
        files = {f"{name}.csv": csv_bytes(rows) for name, rows in section.csv.items() if rows}
        html.append((section, section.render(templates, page.kind), list(files)))
        plots |= section.pictures
        csv |= files
    whole = templates.get_template("frame.html.j2").render(
        page=page, title=title or last.label, sections=html, finished=last.record["finished"]
    )
    name = f"{page.kind}.html"
    texts = {name: whole, "recipe.yaml": recipe}
    files = {file: text.encode("utf-8") for file, text in texts.items()} | plots | csv
    for file, data in files.items():
        output.write_bytes(file, data)
    headline = " ".join(page.lede) or "no model has a score"
    return ReportSummary(page=name, show=tuple(files), headline=headline)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)


def list_registered(inputs: Inputs) -> Registered:
    return [
        (RegisterSummary.of(each), EvaluateSummary.of(input_artifact(each, "evaluate", inputs)))
        for each in select_stage(inputs, "register").values()
    ]


def _write_origin(page: Page, inputs: Inputs, recipe: str) -> Section:
    """The section. Secrets are cut from the recipe and the sources; names of labels are data."""
    stages = [
        {
            "stage": name,
            "seconds": artifact.record["seconds"],
            "starting_seconds": artifact.record.get("starting_seconds", ""),
            "made": artifact.headline,
            "fingerprint": artifact.fingerprint,
            "folder": artifact.folder.uri,
            "mlflow_run_id": artifact.record["mlflow_run_id"],
            "commit": artifact.record["made_by"]["commit"],
            "finished": artifact.record["finished"],
        }
        for name, artifact in inputs.items()
    ]
    corpus = CorpusSummary.of(inputs["corpus"])
    fields = {
        "stages": stages,
        "root": list(inputs.values())[-1].folder.uri.rsplit("/", 2)[0],
        "registered": page.registered,
        "workflow": page.workflow,
        "recipe": redact(recipe),
        "corpus": corpus,
        "dropped": sorted(corpus.dropped.items(), key=lambda item: -item[1]),
        "tokens": page.tokens,
        "sources": [redact(source) for source in describe_sources(inputs["corpus"])],
    }
    return Section("origin", "Provenance", fields, csv={"stages": stages})
