"""Fitting by gradient: the loop (training/loop.py) on the workers of Ray Train V2.

Ray Train starts the workers, connects them (gloo on CPUs, nccl on GPUs) and restarts them when one
dies, with fewer if `compute.min_workers` allows it. Checkpoints are our own (checkpoint.py), in the
stage's folder: a report to Ray Train waits for its controller's next poll, its snapshot is tied to
a run's name, and the loop must also run without Ray. So restarted workers and a restarted driver do
the same: they look for the newest sound checkpoint.

A run that differs from a finished one only in its length starts from what they have in common
(prolonging.py). The optional input `initial` is a finished pretrain stage or imported weights,
which replace the random draw (initial.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import nn

from rungwise.cluster.session import shared_scratch
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.context import Context, Reporter
from rungwise.core.storage.folder import Folder
from rungwise.instances.kinds import config_of
from rungwise.instances.summary import InstancesSummary
from rungwise.models.trained.capabilities import ReadsSpelling
from rungwise.models.transformer.body import OnBody
from rungwise.pretraining.config import FitConfig, check_rows
from rungwise.pretraining.initial import INITIAL, began_with, check_initial, load_initial
from rungwise.pretraining.prolonging import beside, goes_on_from
from rungwise.pretraining.sources_read import sources_read
from rungwise.pretraining.summary import (
    Attempt,
    GradientRun,
    PretrainSummary,
    Prolonged,
    ReadLength,
)
from rungwise.tokenizer import load_tokenizer, token_bytes
from rungwise.training.checkpoint import Checkpoints, EarlierRun
from rungwise.training.config import GradientConfig
from rungwise.training.curriculum import (
    epochs_read,
    length_of,
    order_of,
    phases_of,
    read_in_turn,
    rows_per_epoch,
    shared_steps,
)
from rungwise.training.loop import train, uses_bfloat16
from rungwise.training.parallel import Group
from rungwise.training.progress import Progress
from rungwise.training.throughput import COUNTING_RULE, Costs, device_name, totals

_NOTHING_LEARNT_NATS = 0.05
_USER_ERROR = "user-error.txt"
# Between two checks for room for more workers: as often as Ray counts its nodes.
_GROWTH_SECONDS = 20.0


def pretrain_by_gradient(
    config: FitConfig[GradientConfig], inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Train until the end and write `model.safetensors`. Raises UserError if the instances do not
    fit the model or the loss is not finite."""
    compute, settings = context.compute, config.pretrain
    check_fit(config, inputs, compute)
    read = read_in_turn(inputs, settings)
    identity = identity_of(config, inputs)
    fingerprints = {name: artifact.fingerprint for name, artifact in inputs.items()}
    # Do not even look at other runs if there is nothing to share.
    finished = beside(output) if shared_steps(settings) else []
    earlier = goes_on_from(config, fingerprints, finished)
    context.report.progress(0, settings.steps, workers="starting")
    value = _fit(config, inputs, output, identity, earlier, context)
    progress, costs = Progress(**value["progress"]), Costs(**value["costs"])
    instances = InstancesSummary.of(read[-1][1])
    model = build(config, instances.vocab_size, meta=True)
    parameters = sum(p.numel() for p in model.parameters())
    first, last = progress.validation[0], progress.validation[-1]
    objective = config.objective
    part, pair = objective.tokens, objective.pair
    accuracy = f"  {pair.key} accuracy {last[pair.accuracy_key]:.1%}" if pair else ""
    if objective.predicts_text:
        note_unlearnt(last[part.loss_key], instances.unigram_entropy, settings, context.report)
    unigram = f" (unigram {instances.unigram_entropy:.2f})" if objective.predicts_text else ""
    initial = inputs.get(INITIAL)
    before = f" from {first[part.loss_key]:.3f}" if initial else ""
    return PretrainSummary(
        fitting="gradient",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=instances.vocab_size,
        tokens=progress.tokens,
        epochs=epochs_read(config.model, read, progress.step, settings.global_batch_size),
        unigram_entropy=instances.unigram_entropy,
        final=last,
        seconds=progress.seconds,
        began_with=began_with(model, initial) if initial else None,
        gradient=GradientRun(
            steps=progress.step,
            history=tuple(progress.history),
            validation=tuple(progress.validation),
            timings=tuple(progress.timings),
            data=tuple((step, digest) for step, digest in progress.data),
            data_hash=progress.data_hash,
            skipped_steps=tuple(progress.skipped),
            spikes=tuple(progress.spikes),
            outlier_steps=tuple(progress.outliers),
            prolonged=tuple(Prolonged(**row) for row in progress.prolonged),
            attempts=tuple(Attempt(**row) for row in progress.attempts),
            stopped_early=progress.step < settings.steps,
            device=value["device"],
            bfloat16=value["bfloat16"],
            parallel=compute.parallel if progress.attempts[-1]["workers"] > 1 else "one worker",
            lengths=tuple(
                ReadLength(from_step=first_step, sequence_length=length_of(artifact))
                for first_step, artifact in read
            ),
            sources=sources_read(config.model, settings, read, progress.step, progress.tokens),
            flops_per_token=progress.flops / max(1, progress.tokens),
            flops_rule=COUNTING_RULE,
            throughput=totals(progress, costs),
        ),
        headline=f"{parameters / 1e6:.1f} M parameters  validation {part.key} "
        f"{last[part.loss_key]:.3f}{before}{unigram}{accuracy}",
    )


def note_unlearnt(
    loss: float, unigram_entropy: float, settings: GradientConfig, report: Reporter
) -> None:
    """Report a validation loss, in nats, that is no better than guessing by token frequencies."""
    if loss > unigram_entropy - _NOTHING_LEARNT_NATS:
        report.note(
            f"nothing is learnt yet: the validation loss {loss:.2f} is that of guessing by how "
            f"often each token occurs ({unigram_entropy:.2f}); try more pretrain.steps (now "
            f"{settings.steps:,}), a higher pretrain.optimizer.learning_rate (now "
            f"{settings.optimizer.learning_rate:g}), or the recipe that `rungwise init` writes for "
            "this text"
        )


def identity_of(config: FitConfig[GradientConfig], inputs: Mapping[str, Artifact]) -> str:
    """The fingerprint of what decides the weights, by which checkpoints belong to a run."""
    read = read_in_turn(inputs, config.pretrain)
    facts: dict[str, Any] = {
        "config": config.identity(),
        "instances": [artifact.fingerprint for _, artifact in read],
    }
    if INITIAL in inputs:
        facts[INITIAL] = inputs[INITIAL].fingerprint
    return fingerprint(facts)


def check_fit(
    config: FitConfig[GradientConfig], inputs: Mapping[str, Artifact], compute: ComputeConfig
) -> None:
    """Raise UserError if the instances cannot train this model, or not on so many workers, or if
    the initial weights are not of this model and tokenizer."""
    settings = config.pretrain
    settings.check(config.model, compute)
    for first_step, instances in read_in_turn(inputs, settings):
        block = "longer_instances" if first_step else "instances"
        summary = InstancesSummary.of(instances)
        check_rows(config, summary.kind, summary.sequence_length, block)
        if config.objective.sentences and getattr(config_of(instances), "packed", False):
            raise ConfigError(
                f"{block}.packed is true, but pretrain.objective {config.objective.name} takes a "
                "row for one text; set it to false"
            )
        count = summary.instances.train
        if settings.global_batch_size > count:
            longer = "longer " if first_step else ""
            raise UserError(
                f"pretrain.global_batch_size is {settings.global_batch_size}, but there are "
                f"{count} {longer}training instances; lower it, or add text"
            )
        order_of(config.model, settings, summary)  # raises if its mixture does not fit the sources
        held_out = min(settings.validation_instances, summary.instances.validation)
        if held_out < (fewest := 2 if config.objective.compares else 1):
            raise UserError(
                f"{block} have {held_out} rows for validation, but pretrain.objective "
                f"{config.objective.name} needs {fewest} to measure a loss; raise "
                "pretrain.validation_instances or corpus.held_out_fraction, or add documents"
            )
        if compute.parallel != "ddp" and held_out < compute.num_workers:
            raise UserError(
                f"{block} have {held_out} rows for validation, too few for compute.num_workers "
                f"{compute.num_workers} with compute.parallel={compute.parallel}, where all must "
                "take part; raise pretrain.validation_instances or corpus.held_out_fraction, or "
                "lower the workers"
            )
        if INITIAL in inputs:
            check_initial(config.model, config.objective, inputs[INITIAL], instances)


def _fit(
    config: FitConfig[GradientConfig],
    inputs: Mapping[str, Artifact],
    output: Folder,
    identity: str,
    earlier: EarlierRun | None,
    context: Context,
) -> dict[str, Any]:
    """Run `_work` on the workers; returns its leader's result."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from rungwise.cluster.interface import NodeAddressTorchConfig
    from rungwise.pretraining.preemption import SaveBeforeResize

    compute = context.compute
    workers = compute.num_workers
    fewest = compute.min_workers or workers
    resources = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        resources["GPU"] = compute.gpus_per_worker
    with shared_scratch(output, "ray-train") as path:
        scratch = Folder.at(path)
        scratch.remove(_USER_ERROR)
        run = {
            "config": config,
            "inputs": dict(inputs),
            "output": output,
            "identity": identity,
            "earlier": earlier,
            "compute": compute,
            "report": context.report,
        }
        result = TorchTrainer(
            _work,
            train_loop_config={"run": run, "scratch": scratch},
            torch_config=NodeAddressTorchConfig(),
            scaling_config=ScalingConfig(
                num_workers=workers if fewest == workers else (fewest, workers),
                elastic_resize_monitor_interval_s=_GROWTH_SECONDS,
                use_gpu=compute.gpus_per_worker > 0,
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                # Ray Train would resume a run of the same name from its own snapshot.
                name=f"attempt-{time.time_ns()}",
                storage_path=path,
                failure_config=FailureConfig(max_failures=compute.max_failures),
                # The type omits controller callbacks, which Ray accepts here as well.
                callbacks=[SaveBeforeResize(scratch)],  # pyright: ignore[reportArgumentType]
            ),
        ).fit()
    value = result.return_value
    assert isinstance(value, dict), f"the leading worker returned {value!r}"
    if "user_error" in value:
        raise UserError(value["user_error"])
    return value


def _work(work: dict[str, Any]) -> dict[str, Any]:
    """The work of one worker; `run` holds arguments of `pretrain`."""
    import ray.train.torch

    from rungwise.pretraining.preemption import PreemptionWatch

    run: dict[str, Any] = work["run"]
    scratch: Folder = work["scratch"]
    if scratch.exists(_USER_ERROR):
        return {"user_error": scratch.read_bytes(_USER_ERROR).decode()}
    group = Group.current(ray.train.torch.get_device())
    try:
        notice = PreemptionWatch(scratch, group.leads)
        progress, costs = pretrain(**run, group=group, notice=notice)
    except UserError as error:
        # Other workers may wait for this one, so it must fail; and after a restart it must not
        # retry what only the user can fix.
        scratch.write_bytes(_USER_ERROR, str(error).encode())
        raise
    finally:
        run["report"].flush()
    return {
        "progress": asdict(progress),
        "costs": asdict(costs),
        "device": device_name(group.device),
        "bfloat16": uses_bfloat16(run["config"].pretrain.precision, group.device),
    }


def pretrain(
    config: FitConfig[GradientConfig],
    inputs: Mapping[str, Artifact],
    output: Folder,
    identity: str,
    compute: ComputeConfig,
    group: Group,
    report: Reporter,
    notice: Callable[[], bool] = lambda: False,
    earlier: EarlierRun | None = None,
) -> tuple[Progress, Costs]:
    """Run the loop on this worker; the leader writes `model.safetensors` at the end."""
    settings = config.pretrain
    summary = InstancesSummary.of(inputs["instances"])
    if compute.compile and not config.compiles:
        compute = compute.model_copy(update={"compile": False})
        if group.leads:
            report.note(
                f"compute.compile has no effect on a {config.model.kind} trained on "
                f"{config.objective.name}, which the compiler does not take whole"
            )
    initial = inputs.get(INITIAL)
    model = build(config, summary.vocab_size)
    body = cast(OnBody, model).body
    if isinstance(body, ReadsSpelling):
        tokenizer = find_input(find_input(inputs["instances"], "tokens"), "tokenizer")
        pieces = token_bytes(load_tokenizer(tokenizer.folder))
        body.spell(pieces, *summary.special.require("end"))
    # The others receive the leader's weights; a checkpoint of this run replaces them.
    carried = load_initial(model, initial) if initial and group.leads else {}
    checkpoints = Checkpoints(
        output / "checkpoints",
        identity,
        compute.keep_checkpoints,
        compute.keep_checkpoint_every_steps,
        group,
        shared_steps(settings),
        earlier,
    )
    count = summary.instances.train
    left_out = count - rows_per_epoch(config.model, count, settings.global_batch_size)
    if left_out and group.leads:
        report.note(
            f"{left_out} of {count:,} instances are left out of every epoch, so that "
            f"{settings.global_batch_size} lanes are of equal length"
        )
    progress, costs = train(
        settings,
        model,
        config.objective,
        phases_of(config.model, settings, inputs, compute, group),
        summary.vocab_size,
        checkpoints,
        compute,
        group,
        report,
        drawn=initial is None,
        notice=notice,
    )
    if group.leads:
        checkpoints.export_model(progress.step, output, carried)
    return progress, costs


def build(config: FitConfig[GradientConfig], vocab_size: int, meta: bool = False) -> nn.Module:
    """The model with the weights of its seed; with `meta`, only its shapes."""
    with torch.device("meta" if meta else "cpu"):
        torch.manual_seed(config.pretrain.seed)
        return config.model.build(vocab_size, config.objective)
