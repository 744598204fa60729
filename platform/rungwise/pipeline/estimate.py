"""Estimates what a run takes, before it begins and while it goes on.

The work of a stage follows from its settings and from the text: megabytes, operations, inputs. The
seconds of a unit are in rates.yaml, measured on one core (benchmarks/rates.py). This machine is
slower or faster by a matrix product and, once stages are built below a root, by their records.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import DataError, UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.stage import Planned, Stage
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import find_files
from rungwise.corpus.config import CorpusConfig, PydocsSource
from rungwise.evaluation.comparison.summary import CompareConfig
from rungwise.evaluation.suites.base import TOKEN_BYTES, ExpectedText
from rungwise.evaluation.suites.measure import MeasureConfig
from rungwise.tasks.config import FilesTaskConfig, MadeTaskConfig, ParagraphTaskConfig
from rungwise.tokenizer.token_stage import TokensConfig
from rungwise.training.estimate import Measures, estimate_run
from rungwise.training.feed import READ_BY_NAME
from rungwise.training.fit_config import BESIDE, PretrainStageConfig, require_gradient
from rungwise.training.throughput import matmul_rate
from rungwise.tuning.trials import FinetuneConfig, SweepStageConfig

_TABLE = Path(__file__).with_name("rates.yaml")
_PYDOCS_MEGABYTES, _PACKED, _UNPACKED = 25.0, (".gz", ".zst", ".bz2", ".xz", ".parquet"), 3.0
_BYTES_A_ROW = 150  # of a file with labelled text
_VOCABULARY = 30_000  # where the tokenizer does not say
_HELD_OUT = 0.05  # of the text, where the corpus does not say
_LEAST_OPERATIONS = 3e6  # of a token; a smaller model spends its time elsewhere
_HALVED = 0.6  # the share of a sweep's epochs that is left where trials stop early
_PARAMETER_BYTES = 36  # of the model and its checkpoints
# of Ray with the driver; of each stage's process; of each of several workers of a training
_WHOLE_GIGABYTES, _STAGE_GIGABYTES, _WORKER_BYTES = 1.6, 0.5, 500_000_000
_SHARED = 0.6  # of the speed of a worker alone that each of several has on CPUs
# Of the time of a step that is left to a compiled one, measured on CPUs with a Llama of 4 layers
# and 256 units; and what compiling it takes there, in seconds on the machine of the rates.
_COMPILED, _COMPILING_SECONDS = 0.6, 30.0
_STARTING_SECONDS = 6.0
_PRIOR_SECONDS = 20.0  # of records that weigh as much as what is known without them
_MOST_APART = 8.0
# Stages that work as others do, or whose units are other ones than in older records.
_LIKE = {
    "measure": "suites",
    "task_text": "corpus",
    "task_tokens": "tokens",
    "longer_instances": "instances",
    "search": "table",
    "initial": "register",
}


class Work(NamedTuple):
    """The work of a stage, in units of the rates of `key`; `once_seconds` on the machine of the
    rates, whatever the units; `most_seconds` that it may take."""

    key: str
    units: float
    once_seconds: float = 0.0
    parameters: int = 0
    memory_bytes: int = 0
    most_seconds: float = math.inf


def count_works(rows: Sequence[Planned], compute: ComputeConfig) -> dict[str, Work | None]:
    """Count the work of each row, by displayed name: without that of a shorter run which it goes
    on from, and None where nothing tells it."""
    works: dict[str, Work | None] = {}
    for row in rows:
        stage, work = row.stage, _count_work(row.stage, compute)
        others = [each.stage.trunk for each in rows if stage.continues(each.stage)]
        earlier = row.earlier.steps if row.earlier else 0
        shared = max([earlier, *(trunk[1] for trunk in others if trunk)])
        if work and shared and isinstance(stage.config, PretrainStageConfig):
            steps = require_gradient(stage.config, "steps").pretrain.steps
            work = work._replace(units=work.units * (1 - shared / steps))
        works[stage.display_name] = work
    return works


def _count_work(stage: Stage, compute: ComputeConfig) -> Work | None:
    name = _LIKE.get(stage.name, stage.name)
    try:
        match stage.config:
            case PretrainStageConfig() as config:
                return _training_work(stage, config, compute)
            case MeasureConfig() as config:
                return _measuring_work(stage, config)
            case CompareConfig() as config:
                operations = sum(
                    config.evaluate.num_seeds
                    * _finetuning_operations(stage, settings, stage.inputs[f"pretrain/{variant}"])
                    for variant, settings in config.variants.items()
                )
                return Work(name, operations / 1e9)
            case SweepStageConfig(finetune=settings, sweep=sweep):
                share = 1.0 if sweep.halving is None else _HALVED
                operations = _finetuning_operations(stage, settings, stage.inputs["pretrain"])
                trials = sweep.trials or sweep.size() or 1
                return Work(name, trials * share * operations / 1e9)
            case FilesTaskConfig():
                return Work(f"{name}/files", 1.0)
        if name in ("corpus", "instances", "task", "tokenizer", "tokens"):
            kind = getattr(stage.config, "kind", "")
            return Work(f"{name}/{kind}" if kind else name, _text_megabytes(stage))
        return Work(name, float(len(stage.inputs)))
    except (UserError, KeyError):  # of text that is not there, or a family without such a count
        return None


def _training_work(stage: Stage, config: PretrainStageConfig, compute: ComputeConfig) -> Work:
    family, pretrain = config.model, config.pretrain
    key = f"{pretrain.kind}/{family.kind}"
    if pretrain.length_key(family) != "steps":
        return Work(key, _text_megabytes(stage) * pretrain.passes(family))
    settings = require_gradient(config, "steps")
    measures = [Measures.planned(kind, _vocabulary(stage)) for kind in _row_kinds(stage)]
    run = estimate_run(settings, measures, compute)
    memory, operations = run.memory_bytes_a_device, run.training.flops_per_token
    workers: float = compute.num_workers
    if compute.num_workers > 1:
        workers *= _SHARED
        memory += _WORKER_BYTES
    compiles = compute.compile and settings.compiles and BESIDE not in stage.inputs
    once, share = (_COMPILING_SECONDS, _COMPILED) if compiles else (0.0, 1.0)
    if compute.gpus_per_worker:
        key = "gpu"  # whose speed only a measurement tells
    return Work(
        key,
        run.training.tokens * max(operations, _LEAST_OPERATIONS) / 1e9 / workers * share,
        once,
        run.parameters,
        memory * compute.num_workers,
        settings.pretrain.max_seconds or math.inf,
    )


def _measuring_work(stage: Stage, config: MeasureConfig) -> Work:
    pretrain, corpus = stage.inputs["pretrain"], _find(stage, "corpus")
    fit = _trained(pretrain)
    family, objective = fit.model, fit.model.objective(fit.pretrain.objective)
    share = getattr(corpus and corpus.config, "held_out_fraction", _HELD_OUT)
    held_out = share * _text_megabytes(stage) * 1e6 / TOKEN_BYTES
    lengths = (kind.length for kind in _row_kinds(pretrain))
    row = max(lengths, default=None) if objective.masks else None
    tokens = 0.0
    for name, suite in config.suites.items():
        digests = stage.outside[name].values()
        files, size = (sum(each[key] for each in digests) for key in ("files", "bytes"))
        tokens += suite.count_tokens(ExpectedText(held_out, files, size, family.rates_texts, row))
    return Work(f"suites/{family.kind}", tokens * _operations(pretrain, 64) / 3 / 1e9)


def _row_kinds(pretrain: Stage) -> list[Any]:
    """The kinds of rows that a training reads, one after the other."""
    return [pretrain.inputs[name].config for name in READ_BY_NAME if name in pretrain.inputs]


def _find(stage: Stage, name: str) -> Stage | None:
    """The nearest stage of a name that a stage is built from, itself included."""
    queue = [stage]
    while queue:
        if (each := queue.pop(0)).name == name:
            return each
        queue += each.inputs.values()
    return None


def _vocabulary(stage: Stage) -> int:
    tokenizer = _find(stage, "tokenizer")
    return getattr(tokenizer and tokenizer.config, "vocab_size", None) or _VOCABULARY


def _text_megabytes(stage: Stage) -> float:
    """Megabytes of text that a stage reads. Raises UserError if there is no such text."""
    corpus, tokens = _find(stage, "corpus"), _find(stage, "tokens")
    if corpus is None or not isinstance(corpus.config, CorpusConfig):
        task = _find(stage, "task")
        if task is None or not isinstance(task.config, FilesTaskConfig):
            raise UserError("no text is known")
        return _file_megabytes(task.config.train)
    total = sum(
        _PYDOCS_MEGABYTES if isinstance(source, PydocsSource) else _file_megabytes(source.paths)
        for source in corpus.config.sources
    )
    if stage.name == "tokenizer":
        total = min(total, getattr(stage.config, "sample_megabytes", total))
    share = tokens.config.share if tokens and isinstance(tokens.config, TokensConfig) else 1
    return total * share


def _file_megabytes(paths: str | Sequence[str]) -> float:
    patterns = [paths] if isinstance(paths, str) else paths
    files = [file for pattern in patterns for file in find_files(pattern)]
    factors = (_UNPACKED if file.name.endswith(_PACKED) else 1 for file in files)
    return sum(file.size_bytes * factor for file, factor in zip(files, factors, strict=True)) / 1e6


def _trained(pretrain: Stage) -> PretrainStageConfig:
    assert isinstance(pretrain.config, PretrainStageConfig)
    return pretrain.config


def _operations(pretrain: Stage, length: int) -> float:
    """Operations of a token of a trained model, forward and backward."""
    config = _trained(pretrain)
    if config.pretrain.length_key(config.model) != "steps":
        return _LEAST_OPERATIONS
    objective = require_gradient(config, "steps").objective
    operations = config.model.flops_per_token(_vocabulary(pretrain), length, objective, 0)
    return max(operations, _LEAST_OPERATIONS)


def _finetuning_operations(stage: Stage, settings: FinetuneConfig, pretrain: Stage) -> float:
    """Operations of one fine-tuning: forward and backward over the training part, else forward."""
    match stage.inputs["task"].config:
        case ParagraphTaskConfig() as task:
            each = (task.train_per_label, task.validation_per_label, task.test_per_label)
            train, validation, test = (task.num_labels * count for count in each)
        case MadeTaskConfig() as task:
            train, validation = task.train_examples, task.validation_examples
            test = task.test_examples
        case FilesTaskConfig() as task:
            rows = _file_megabytes(task.train) * 1e6 / _BYTES_A_ROW
            train = min(rows, task.train_examples or math.inf)
            validation, test = (
                min(
                    _file_megabytes(path) * 1e6 / _BYTES_A_ROW if path else rows * (fraction or 0),
                    limit or math.inf,
                )
                for path, fraction, limit in (
                    (task.validation, task.validation_fraction, task.max_validation_examples),
                    (task.test, task.test_fraction, task.max_test_examples),
                )
            )
        case _:
            raise UserError("the examples of the task are not known")
    passes = (train + validation / 3) * settings.epochs + test / 3
    length = settings.sequence_length or 64
    return passes * length * _operations(pretrain, length)


@dataclass(frozen=True)
class Rates:
    """Seconds and bytes of work on this machine. `factors` are of this machine, by key."""

    table: Mapping[str, Mapping[str, float]]
    slowness: float
    factors: Mapping[str, float]

    @classmethod
    def of(cls, root: Folder) -> Rates:
        """Read the table; compare this machine with the one it was measured on."""
        data = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
        first = cls(data["rates"], _clip(data["matmul_flops"] / core_rate()), {})
        pairs: dict[str, list[tuple[float, float]]] = {}
        for work, seconds in _read_works(root):
            if expected := first.seconds(work):
                pairs.setdefault(work.key, []).append((seconds, expected))
        whole = find_factor([pair for each in pairs.values() for pair in each])
        factors = {key: find_factor(each, whole) for key, each in pairs.items()}
        return cls(first.table, first.slowness * whole, {k: f / whole for k, f in factors.items()})

    def _rate(self, key: str) -> Mapping[str, float] | None:
        """The rate of a key, else of its stage."""
        return self.table.get(key) or self.table.get(key.partition("/")[0])

    def seconds(self, work: Work) -> float | None:
        """Seconds of work; None if no rate is known."""
        if (rate := self._rate(work.key)) is None:
            return None
        seconds = work.once_seconds + rate["seconds"] + work.units * rate["a_unit"]
        seconds *= self.slowness
        return min(work.most_seconds, seconds * self.factors.get(work.key, 1.0))

    def bytes(self, work: Work) -> float:
        """Bytes that a stage writes."""
        rate = self._rate(work.key) or {}
        if work.parameters:
            return work.parameters * _PARAMETER_BYTES
        return rate.get("bytes", 0.0) + work.units * rate.get("bytes_a_unit", 0.0)


def _read_works(root: Folder) -> Iterator[tuple[Work, float]]:
    """The work that was done below a root, and the seconds that it took."""
    for stage in root.subfolders():
        for name in (root / stage).subfolders():
            with contextlib.suppress(DataError):  # a damaged record stops only who needs it
                artifact = artifacts.load(root / stage / name)
                if artifact and (pair := artifact.record.get("work")):
                    yield Work(*pair), artifact.record["seconds"]


@functools.cache
def core_rate() -> float:
    """Operations per second of a matrix product on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return matmul_rate(torch.device("cpu"), torch.float32, time.thread_time)
    finally:
        torch.set_num_threads(threads)


def _clip(factor: float) -> float:
    return min(_MOST_APART, max(1 / _MOST_APART, factor))


def find_factor(pairs: Sequence[tuple[float, float]], prior: float = 1.0) -> float:
    """How many times as long work took as expected, by pairs of both; little work counts little."""
    took, expected = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return _clip((took + prior * _PRIOR_SECONDS) / (expected + _PRIOR_SECONDS))


class RunForecast:
    """The time of each row of a plan that is to be built, and what the whole run needs."""

    def __init__(self, rows: Sequence[Planned], compute: ComputeConfig, rates: Rates) -> None:
        self._compute, self._rates = compute, rates
        self._slots = min(compute.max_concurrent_stages, os.cpu_count() or 1)
        self._rows: list[Planned] = []
        self.work: dict[str, Work | None] = {}
        self.seconds: dict[str, float | None] = {}
        self.add(rows)

    def add(self, rows: Sequence[Planned]) -> None:
        """Add further rows, behind the others."""
        self._rows += [row for row in rows if row.artifact is None]
        self.work = count_works(self._rows, self._compute)
        self.seconds = {
            name: None if work is None else self._rates.seconds(work)
            for name, work in self.work.items()
        }

    def training_seconds(self, config: PretrainStageConfig) -> float | None:
        """The time of the training that is to be built with `config`; None if it is not known."""
        rows = [row for row in self._rows if row.stage.config == config]
        return self.seconds[rows[0].stage.display_name] if rows else None

    def wall_seconds(self, left: Mapping[str, float | None]) -> float:
        """Seconds until stages with so many seconds left have ended: of the longest chain, or of
        all of them on the cores that work at the same time."""
        ends: dict[str, float] = {}
        for row in self._rows:
            before = [ends.get(each.display_name, 0.0) for each in row.stage.inputs.values()]
            own = left.get(row.stage.display_name) or 0.0
            ends[row.stage.display_name] = max(before, default=0.0) + own
        total = sum(seconds or 0.0 for seconds in left.values())
        return max([total / self._slots, *ends.values()])

    @cached_property
    def line(self) -> str:
        """`about 4 min on this machine, 0.3 GB of disk, 2 GB of memory`; empty if all is built."""
        if not self._rows:
            return ""
        works = [work for work in self.work.values() if work]
        disk = sum(map(self._rates.bytes, works))
        largest = max((work.memory_bytes for work in works), default=0)
        memory = _WHOLE_GIGABYTES * 1e9 + self._slots * (_STAGE_GIGABYTES * 1e9 + largest)
        unknown = [name for name, seconds in self.seconds.items() if seconds is None]
        known = f"{describe_seconds(self.wall_seconds(self.seconds) + _STARTING_SECONDS)}"
        if unknown:
            known += f" and the unknown time of {', '.join(unknown[:3])}"
            known += f" and {len(unknown) - 3} more" * (len(unknown) > 3)
        sizes = f"{max(0.1, disk / 1e9):.1f} GB of disk, {memory / 1e9:.1f} GB of memory"
        return f"{known} on this machine, {sizes}"


def describe_seconds(seconds: float) -> str:
    """`about 40 s`, `about 4 min`, `about 3 h`, `about 5 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            number = seconds / size
            return f"about {number:.0f} {unit}" if number >= 9.5 else f"about {number:.2g} {unit}"
    return f"about {max(1, round(seconds, -1 if seconds >= 20 else 0)):.0f} s"
