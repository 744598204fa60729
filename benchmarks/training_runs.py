"""Whole runs of the training loop for the benchmark: on Ray Train, or bare on `torch.distributed`.

    python -m benchmarks.training_runs JOB.json

All call the same `rungwise.training.ray.gradient.pretrain` on the same instances, with one thread a
worker and gloo between them; what differs is who starts and watches the workers. A run is a process
of its own, and prints as JSON what the loop itself recorded: seconds a step, tokens a second, the
share of waiting for data, and the peak memory of each worker.

The instances are masked pairs of made-up text: a step costs the same whatever the ids are.
"""

import json
import resource
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.common import run_alone
from benchmarks.measuring import instances_summary, shard_row
from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import SpecialIds
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.instances.shards import write_shard
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.fit_config import PretrainStageConfig, pretrain_model, require_gradient
from rungwise.training.parallel import Group, Worker
from rungwise.training.ray.gradient import plan_run, pretrain
from rungwise.training.throughput import totals

LENGTH = 128
_VOCAB_SIZE = 8_192
_SPECIAL = SpecialIds(0, 1, 2, 3, 4, end=3, ids=(0, 1, 2, 3, 4))
_STEPS_TO_WARM_UP = 5


def make_instances(folder: Path) -> None:
    """An instances artifact in `folder`: about 4,000 pairs for training, 300 held out."""
    settings = MaskedPairsConfig(sequence_length=LENGTH)
    folder.mkdir(parents=True)
    files = []
    for number, (split, documents) in enumerate((("train", 1300), ("validation", 100))):
        generator = np.random.Generator(np.random.Philox(number))
        shard = settings.build(_text(number, documents), _SPECIAL, generator).shard
        path = folder / f"{split}-00000.arrow"
        write_shard(shard, path)
        files.append(shard_row(path, split, shard))
    entropy = float(np.log(_VOCAB_SIZE))
    summary = instances_summary(
        files, _VOCAB_SIZE, _SPECIAL, sequence_length=LENGTH, unigram_loss=entropy
    )
    record = {
        "summary": summary.model_dump(mode="json"),
        "config": settings.model_dump(mode="json"),
    }
    (folder / "record.json").write_text(json.dumps(record))


def _text(seed: int, documents: int) -> TokenisedText:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 40, size=(documents, 16))
    return TokenisedText(
        ids=rng.integers(5, _VOCAB_SIZE, int(lengths.sum())).astype(np.uint16),
        starts=np.concatenate([[0], np.cumsum(lengths.ravel())]),
        first_sentence=np.arange(0, documents * 16 + 1, 16),
        documents=np.arange(documents, dtype=np.uint64),
    )


def measure(
    folder: Path, kind: str, workers: int, rows_a_worker: int, steps: int
) -> dict[str, Any]:
    """One run in a process of its own; `kind` is `ray`, `bare`, or `apart`, whose workers are so
    many runs of one worker side by side; `folder` has the instances."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as output:
        job = Path(output) / "job.json"
        job.write_text(
            json.dumps(
                {
                    "kind": kind,
                    "workers": workers,
                    "rows": rows_a_worker,
                    "steps": steps,
                    "instances": str(folder / "instances"),
                    "output": output,
                }
            )
        )
        return run_alone("benchmarks.training_runs", str(job))


def _config(job: dict[str, Any]) -> PretrainStageConfig:
    """BERT tiny; the first steps and a validation at each end are not measured."""
    data = {
        "model": {
            "kind": "bert",
            "num_layers": 2,
            "num_heads": 2,
            "hidden_size": 128,
            "intermediate_size": 512,
            "max_position_embeddings": LENGTH,
        },
        "pretrain": {
            "steps": job["steps"],
            "global_batch_size": job["workers"] * job["rows"],
            "precision": "float32",
            "validation_every_steps": job["steps"],
            "validation_instances": 16,
            "log_every_steps": _STEPS_TO_WARM_UP,
        },
    }
    return validate(PretrainStageConfig, data)


def _compute(job: dict[str, Any]) -> ComputeConfig:
    return ComputeConfig(
        num_workers=job["workers"],
        micro_batch_size=job["rows"],
        checkpoint_every_steps=10 * job["steps"],
        object_store_megabytes=100,
    )


def _instances(job: dict[str, Any]) -> Artifact:
    folder = Path(job["instances"])
    record = json.loads((folder / "record.json").read_text())
    return Artifact("instances", "f" * 12, Folder.at(folder), record)


def _facts(timings: Sequence[dict[str, float]], throughput: dict[str, float]) -> dict[str, Any]:
    """Medians of the logged stretches but the first; the rate over the whole run beside them."""
    rows = [row for row in timings if row["step"] > _STEPS_TO_WARM_UP]
    return {
        "step_seconds": median(row["step_seconds"] for row in rows),
        "tokens_per_second": median(row["tokens_per_second"] for row in rows),
        "data_wait_share": sum(row["data_wait_share"] * row["seconds"] for row in rows)
        / sum(row["seconds"] for row in rows),
        "mfu": throughput["mfu"],
        "matmul_flops_per_second": throughput["matmul_flops_per_second"],
    }


def _on_ray(job: dict[str, Any]) -> dict[str, Any]:
    compute = _compute(job)
    with session(compute):
        summary = pretrain_model(
            _config(job), {"instances": _instances(job)}, Folder.at(job["output"]), Context(compute)
        )
    assert summary.gradient is not None
    return _facts(summary.gradient.timings, summary.gradient.throughput)


def _bare(job: dict[str, Any]) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_worker, (job, port), nprocs=job["workers"])
    results = [
        json.loads((Path(job["output"]) / f"worker-{rank}.json").read_text())
        for rank in range(job["workers"])
    ]
    facts = results[0] | {"peak_bytes": [worker["peak_bytes"] for worker in results]}
    if job["kind"] == "apart":
        facts["tokens_per_second"] = sum(worker["tokens_per_second"] for worker in results)
    return facts


def _worker(rank: int, job: dict[str, Any], port: int) -> None:
    folder = Path(job["output"])
    if job["kind"] == "apart":
        job |= {"workers": 1, "output": str(folder / str(rank))}
    world = job["workers"]
    torch.set_num_threads(1)
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    config, compute = require_gradient(_config(job), "steps"), _compute(job)
    run = plan_run(config, {"instances": _instances(job)}, Folder.at(job["output"]), compute)
    worker = Worker(Group.current(torch.device("cpu")), compute)
    progress, costs = pretrain(config, run, worker)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The loop keeps its times on the leading worker alone.
    facts = _facts(progress.timings, totals(progress, costs)) if worker.group.leads else {}
    result = json.dumps(facts | {"peak_bytes": peak})
    (folder / f"worker-{rank}.json").write_text(result)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    set_environment()
    job = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(_on_ray(job) if job["kind"] == "ray" else _bare(job)))
