"""Build a corpus of documents at hand in this process, by the steps of the stage."""

from collections.abc import Iterable

from rungwise.cluster.tasks import Packs
from rungwise.core.stages.notes import SharedResults
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_builder import Range
from rungwise.corpus.building.range_task import STAGING, RangeTask
from rungwise.corpus.building.stage import write_documents
from rungwise.corpus.config import CorpusConfig, DocumentRules, TextSource
from rungwise.corpus.document import RawDocument
from rungwise.corpus.summary import CorpusSummary, summarise_reports


def write_corpus(
    ranges: Iterable[Iterable[RawDocument]], rules: DocumentRules, source: str, output: Folder
) -> CorpusSummary:
    """Write each range, all of one source, to its own files in `output`.

    Raises DataError if two documents have the same id.
    """
    config = CorpusConfig(sources=(TextSource(name=source, paths=("-",)),), **dict(rules))
    task = RangeTask(config, output, SharedResults(output / STAGING))
    reports, pack = [], []
    for number, documents in enumerate(ranges):
        pack.append(Range(number, 0, ()))
        reports.append(task.read(pack[-1], documents))
    sizes = [sum(task.keys(range.number)["bytes"].to_pylist()) for range in pack]
    reports = write_documents(task, Packs([pack], small=True), reports, sum(sizes))
    output.remove(STAGING)
    return summarise_reports(reports, rules.held_out_fraction)
