"""The overview on a run's MLflow page: headline metrics and a description in Markdown."""

from collections.abc import Mapping

from rungwise.core.stages.artifact import Artifact
from rungwise.core.tracking.sender import EXPERIMENT_ID, RUN_ID
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.comparison.summary import EVALUATE, EvaluateSummary
from rungwise.pretraining.stage import PRETRAIN
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report.sections import findings
from rungwise.report.stage import LADDER, REPORT
from rungwise.serving.card import link_page
from rungwise.tasks.stage import TASK

PAGE_FILES = "report_files"  # sorts after report.html
_PAGES = (REPORT.name, LADDER.name)
_PICTURES = ("differences-", "scores-", "ladder.", "loss")  # the first one found is shown
_MOST_ROWS = 24
_WHERE = ("step", "tokens", "sequence_length")  # keys of a curve's row that are not results


def page_name(artifact: Artifact) -> str | None:
    """The name of the HTML page in a report or ladder artifact, None for other artifacts."""
    return artifact.record["summary"]["page"] if artifact.stage in _PAGES else None


def choose_folder(stage: str, name: str, page: str | None) -> str:
    """The folder for a file among the artifacts of the whole run; the page itself is at the top."""
    if name == page:
        return ""
    return PAGE_FILES if stage in _PAGES else f"{PAGE_FILES}/{stage}"


def headline_metrics(finished: Mapping[str, Artifact]) -> dict[str, float]:
    """The last validation of every pretraining, and the mean test score of every variant."""
    results: dict[str, float] = {}
    for title, artifact in finished.items():
        if artifact.stage == PRETRAIN.name:
            final = PretrainSummary.of(artifact).final
            results |= {f"{title}/{key}": float(final[key]) for key in final if key not in _WHERE}
        elif artifact.stage == EVALUATE.name:
            evaluated = EvaluateSummary.of(artifact)
            for name, result in evaluated.variants.items():
                # The UI groups charts into rows by what precedes the last slash.
                key = f"{title}/{evaluated.metric}/{name}"
                results[key] = result.estimates[evaluated.metric].mean
    return results


def list_data(finished: Mapping[str, Artifact]) -> dict[str, tuple[str, str]]:
    """The digest and the place of each corpus and task, by title."""
    return {
        title: (each.digest, each.folder.uri)
        for title, each in finished.items()
        if each.stage in (CORPUS.name, TASK.name)
    }


def description(finished: Mapping[str, Artifact], root: str) -> str:
    """Markdown with the verdict, the picture of the page and a line for each result."""
    pages = [artifact for artifact in finished.values() if artifact.stage in _PAGES]
    results = {
        title: artifact for title, artifact in finished.items() if artifact.stage not in _PAGES
    }
    last = pages[-1] if pages else list(results.values())[-1]
    lines = [f"**{last.headline}**", ""]
    if page := page_name(last):  # in the first line, which the UI does not fold away
        lines[0] += f" The whole page: {link_page(EXPERIMENT_ID, RUN_ID, page)}"
    if {"pretrain", "corpus"} <= finished.keys() and pages:
        lines += [findings.describe_training(finished), ""]
    names = [name for page in pages[-1:] for name in page.record["files"] if name.endswith(".png")]
    pictures = [name for start in _PICTURES for name in names if name.startswith(start)]
    if pictures:
        picture = pictures[0]
        where = f"get-artifact?path={PAGE_FILES}/{picture}&run_uuid={RUN_ID}"
        lines += [f"![{picture.removesuffix('.png')}]({where})", ""]
    lines += ["| stage | result |", "|---|---|"]
    cells = str.maketrans({"|": "\\|", "\n": " "})
    rows = [f"| {title} | {each.headline.translate(cells)} |" for title, each in results.items()]
    lines += rows[-_MOST_ROWS:]
    if len(rows) > _MOST_ROWS:
        lines.append(f"| | and {len(rows) - _MOST_ROWS} stages before these |")
    return "\n".join([*lines, "", f"Files: `{root}`"])
