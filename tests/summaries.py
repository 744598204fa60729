"""Artifacts that stand for a stage that did not run: a folder, and what is read of its summary."""

from pathlib import Path
from typing import Any

from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, SharedResults, Summary
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.models.family import Family
from rungwise.tasks.kinds.examples import TaskInfo, TaskSummary
from rungwise.tokenizer import TokenizerSummary, token_building
from rungwise.tokenizer.encoder import EncoderChoice
from rungwise.tokenizer.token_stage import TokensConfig
from rungwise.training.summary import GradientRun, PretrainSummary


def standing(
    stage: str,
    folder: Folder | Path,
    summary: Summary,
    config: dict[str, Any] | None = None,
    **record: Any,
) -> Artifact:
    """A finished stage with this summary, which may lack fields that are not read."""
    place = folder if isinstance(folder, Folder) else Folder.at(folder)
    fingerprint = record.setdefault("fingerprint", f"{stage[0]}" * 12)
    return summary.replace_summary(
        Artifact(stage, fingerprint, place, {"stage": stage, "config": config, **record})
    )


def corpus_of(folder: Folder | Path, files: list[dict[str, Any]], **fields: Any) -> Artifact:
    """A corpus of these files."""
    rows: list[Any] = [{"source": "source"} | row for row in files]
    rows = [CorpusFile.model_construct(None, **row) for row in rows]
    return standing("corpus", folder, CorpusSummary.model_construct(files=tuple(rows), **fields))


def tokens_of(
    folder: Folder | Path, corpus: Artifact, tokenizer: Artifact, config: TokensConfig | None = None
) -> Artifact:
    """The tokens of a corpus, encoded in this process."""
    place = folder if isinstance(folder, Folder) else Folder.at(folder)
    pieces = TokenizerSummary.of(tokenizer)
    shared = SharedResults(place / "shared")
    task = token_building.EncodeTask(
        config or TokensConfig(), corpus.folder, tokenizer.folder, place, shared, EncoderChoice()
    )
    files = CorpusSummary.of(corpus).files
    rows = [task(token_building.FileOrder(row, row.file)) for row in files if row.documents]
    shared.folder.remove()
    counts = token_building.count_no_tokens(pieces.vocab_size)
    for row in rows:
        token_building.add_counts(row, counts)
    inputs = made_of(corpus=corpus, tokenizer=tokenizer)
    summary = token_building.summarise_files(rows, pieces, counts).model_dump(mode="json")
    record = {"stage": "tokens", "fingerprint": "t" * 12, "inputs": inputs, "summary": summary}
    return artifacts.finish(place, record | {"label": "made", "finished": ""}, {})


def made_of(**inputs: Artifact) -> dict[str, dict[str, str]]:
    """The inputs of an artifact as its record names them."""
    return {
        name: {"stage": made.stage, "fingerprint": made.fingerprint}
        for name, made in inputs.items()
    }


def finished(
    stage: str, folder: Folder, summary: Summary, fingerprint: str = "f" * 12, **record: Any
) -> Artifact:
    """A finished stage with its record on disk."""
    said = {"stage": stage, "fingerprint": fingerprint, "label": "small", "inputs": {}}
    said |= {"summary": summary.model_dump(mode="json"), "finished": "2026-01-01"}
    return artifacts.finish(folder, said | record, {})


def end_stage(
    folder: Folder, stage: Stage, label: str, summary: Summary | dict[str, Any]
) -> Artifact:
    """Finish a stage with this summary, as the runner does."""
    said = summary if isinstance(summary, dict) else summary.model_dump(mode="json")
    inputs = {
        name: {"stage": source.name, "fingerprint": source.fingerprint}
        for name, source in stage.inputs.items()
    }
    record = {"stage": stage.name, "fingerprint": stage.fingerprint, "label": label}
    record |= {"facts": stage.facts, "config": stage.config.model_dump(mode="json")}
    record |= {"summary": said, "inputs": inputs, "finished": "2026-01-01", "seconds": 1.0}
    return artifacts.finish(folder, record, {})


def task_of(folder: Folder | Path, info: TaskInfo, **record: Any) -> Artifact:
    """A task of which only the kind of its examples is known."""
    return standing("task", folder, TaskSummary.model_construct(info=info), **record)


def pretrained_of(
    folder: Folder | Path,
    model: Family,
    config: dict[str, Any],
    gradient: dict[str, Any] | None = None,
    **fields: Any,
) -> Artifact:
    """A pretrained model; `gradient` are those fields of its run that are read."""
    run = None if gradient is None else GradientRun.model_construct(**gradient)
    defaults = {"fitting": "gradient", "began_with": None, "headline": "pretrain"}
    summary = PretrainSummary.model_construct(
        model=model, **{**defaults, "gradient": run, **fields}
    )
    return standing("pretrain", folder, summary, config)
