"""Pretrain stage: the loop (loop.py) on the workers of Ray Train V2.

Ray Train starts the workers, connects them (gloo on CPUs, nccl on GPUs) and starts them again when
one dies. Checkpoints are ours (checkpoint.py), in the stage's own folder: a report to Ray Train
waits for its controller's next poll, its snapshot is tied to a run's name, and the loop must also
run without Ray. So workers that start again, and a driver that starts again, do the same thing:
they look for the newest sound checkpoint.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import torch

from rungwise.artifact import Artifact
from rungwise.cluster.session import shared_scratch
from rungwise.config import Config, fingerprint
from rungwise.context import ComputeConfig, Context, Reporter
from rungwise.errors import UserError
from rungwise.instances.kinds import masked_config_of
from rungwise.instances.masked_reader import MaskedReader
from rungwise.models.bert import BertConfig, BertForPretraining, flops_per_token
from rungwise.objectives import PretrainingBatch, build_objective
from rungwise.storage import Folder
from rungwise.training import checkpoint
from rungwise.training.checkpoint import Checkpoints, Progress
from rungwise.training.feed import micro_batches, step_batch
from rungwise.training.loop import Feeds, PretrainConfig, train, uses_bfloat16
from rungwise.training.parallel import Group

MODEL_FILE = checkpoint.MODEL


class PretrainStageConfig(Config):
    """The two blocks of a recipe that this stage reads."""

    model: BertConfig
    pretrain: PretrainConfig


def run(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Train until the last step and leave `model.safetensors`.

    Raises UserError if the instances do not fit the model or the loss stops being a number.
    """
    instances = inputs["instances"]
    check_fit(config, instances)
    if config.pretrain.global_batch_size < context.compute.num_workers:
        raise UserError(
            f"pretrain.global_batch_size is {config.pretrain.global_batch_size}, too few for "
            f"compute.num_workers {context.compute.num_workers}; lower the second"
        )
    identity = fingerprint({"config": config, "instances": instances.fingerprint})
    worker = {
        "config": config,
        "instances": instances,
        "output": output,
        "identity": identity,
        "compute": context.compute,
        "report": context.report,
    }
    value = _fit(worker, context.compute, output)
    progress = Progress(**value["progress"])
    vocab_size = instances.summary["vocab_size"]
    parameters = sum(p.numel() for p in _build(config, vocab_size, meta=True).parameters())
    last = progress.validation[-1]
    accuracy = f"  nsp accuracy {last['nsp_accuracy']:.1%}" if "nsp_accuracy" in last else ""
    return {
        **checkpoint.summary_of(progress),
        "parameters": parameters,
        "bfloat16": value["bfloat16"],
        "vocab_size": vocab_size,
        "model": config.model.model_dump(mode="json"),
        "epochs": config.pretrain.steps
        * config.pretrain.global_batch_size
        / instances.summary["instances"]["train"],
        "final_train_loss": progress.history[-1]["loss"],
        "final_validation_loss": last["loss"],
        "final": last,
        "unigram_entropy": instances.summary["unigram_entropy"],
        "flops_per_token": flops_per_token(
            config.model,
            vocab_size,
            instances.summary["sequence_length"],
            masked_config_of(instances).masking.rate * instances.summary["sequence_length"],
            next_sentence=config.pretrain.objective.next_sentence,
        ),
        # Over all attempts, without start-up and validation.
        "tokens_per_second": progress.tokens / sum(row["seconds"] for row in progress.timings),
        "headline": f"{parameters / 1e6:.1f} M parameters  validation mlm {last['mlm_loss']:.3f} "
        f"(unigram {instances.summary['unigram_entropy']:.2f}){accuracy}",
    }


def check_fit(config: PretrainStageConfig, instances: Artifact) -> None:
    """Raise UserError where the instances cannot train this model."""
    kind = instances.summary["kind"]
    wanted = "masked_pairs" if config.pretrain.objective.next_sentence else "masked_"
    if not kind.startswith(wanted):
        raise UserError(
            f"pretrain.objective.kind is {config.pretrain.objective.kind}, but the instances are "
            f"{kind}; mlm_nsp reads instances.kind=masked_pairs, mlm reads masked_pairs or "
            "masked_blocks"
        )
    length = instances.summary["sequence_length"]
    if config.model.positions == "learned" and length > config.model.max_position_embeddings:
        raise UserError(
            f"model.max_position_embeddings is {config.model.max_position_embeddings}, but "
            f"instances.sequence_length is {length}; raise the first or lower the second"
        )
    count = instances.summary["instances"]["train"]
    if config.pretrain.global_batch_size > count:
        raise UserError(
            f"pretrain.global_batch_size is {config.pretrain.global_batch_size}, but there are "
            f"{count} training instances; lower it, or add text"
        )


def _fit(worker: dict[str, Any], compute: ComputeConfig, output: Folder) -> dict[str, Any]:
    """Run `_work` on the workers; what its leader returns."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with shared_scratch(output, "ray-train") as scratch:
        result = TorchTrainer(
            _work,
            train_loop_config=worker,
            scaling_config=ScalingConfig(
                num_workers=compute.num_workers,
                use_gpu=compute.gpus_per_worker > 0,
                resources_per_worker=_resources(compute),
            ),
            run_config=RunConfig(
                # Ray Train would take up a run of the same name from its own snapshot.
                name=f"attempt-{time.time_ns()}",
                storage_path=scratch,
                failure_config=FailureConfig(max_failures=compute.max_failures),
            ),
        ).fit()
    value = result.return_value
    assert isinstance(value, dict), f"the leading worker returned {value!r}"
    if "user_error" in value:
        raise UserError(value["user_error"])
    return value


def _resources(compute: ComputeConfig) -> dict[str, float]:
    resources = {"CPU": compute.cpus_per_worker}
    return resources | {"GPU": compute.gpus_per_worker} if compute.gpus_per_worker else resources


def _work(worker: dict[str, Any]) -> dict[str, Any]:
    """What each worker does."""
    import ray.train.torch

    report: Reporter = worker["report"]
    group = Group.current(ray.train.torch.get_device())
    try:
        progress = pretrain(
            worker["config"],
            worker["instances"],
            worker["output"],
            worker["identity"],
            worker["compute"],
            group,
            report,
        )
    except UserError as error:
        # Every worker comes here; raised, it would be taken for a failure and tried again.
        return {"user_error": str(error)}
    finally:
        report.flush()
    precision = worker["config"].pretrain.precision
    return {
        "progress": checkpoint.as_data(progress),
        "bfloat16": uses_bfloat16(precision, group.device),
    }


def pretrain(
    config: PretrainStageConfig,
    instances: Artifact,
    output: Folder,
    identity: str,
    compute: ComputeConfig,
    group: Group,
    report: Reporter,
) -> Progress:
    """The loop on this worker; the leader writes `model.safetensors` at the end."""
    settings = config.pretrain
    cache_bytes = compute.shard_cache_megabytes << 20
    readers = {
        split: MaskedReader(instances, split, cache_bytes) for split in ("train", "validation")
    }
    vocab_size = instances.summary["vocab_size"]
    model = _build(config, vocab_size)
    feeds = Feeds(
        step=functools.partial(
            step_batch,
            readers["train"],
            readers["train"].order(settings.seed, settings.order),
            global_batch_size=settings.global_batch_size,
            rank=group.rank,
            world_size=group.world_size,
            micro_batch_size=compute.micro_batch_size,
            seed=settings.seed,
        ),
        validation=functools.partial(
            _validation_batches, readers["validation"], settings, compute, group
        ),
    )
    progress = train(
        settings,
        model,
        build_objective(settings.objective),
        feeds,
        vocab_size,
        Checkpoints(output / "checkpoints", identity, compute.keep_checkpoints),
        compute.checkpoint_every_steps,
        group,
        report,
    )
    if group.leads:
        checkpoint.save_tensors(output, MODEL_FILE, model.state_dict())
    return progress


def _build(config: PretrainStageConfig, vocab_size: int, meta: bool = False) -> BertForPretraining:
    with torch.device("meta" if meta else "cpu"):
        torch.manual_seed(config.pretrain.seed)
        return BertForPretraining(
            config.model, vocab_size, next_sentence=config.pretrain.objective.next_sentence
        )


def _validation_batches(
    reader: MaskedReader,
    settings: PretrainConfig,
    compute: ComputeConfig,
    group: Group,
) -> list[PretrainingBatch]:
    """This worker's part of the first held-out instances, masked as for epoch 0."""
    count = min(settings.validation_instances, len(reader))
    mine = np.arange(
        count * group.rank // group.world_size, count * (group.rank + 1) // group.world_size
    )
    batch = reader.batch(mine, np.zeros_like(mine), settings.seed)
    return list(micro_batches(batch, compute.micro_batch_size))
