"""Fitting by gradient: the loop (training/loop.py) on the workers of Ray Train V2.

Checkpoints are our own (checkpoint.py): a report to Ray Train waits for its controller's next poll,
its snapshot is tied to a run's name, and the loop must also run without Ray.
"""

import ipaddress
import itertools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import psutil
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_preemption_info
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from rungwise.cluster.session import shared_scratch
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.artifact import Artifact, Inputs, list_artifacts
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import read_kind
from rungwise.models.device import return_freed_memory, use_threads
from rungwise.ray_private import ControllerCallback, ResizingState, TorchBackend
from rungwise.training import checkpoint
from rungwise.training import initial as start
from rungwise.training.checkpoint import CheckpointRules, Checkpoints, SaveRequests
from rungwise.training.config import GradientFit
from rungwise.training.feed import DataPhase, count_epochs, list_turns, rows_per_epoch
from rungwise.training.fit_config import BESIDE, check_rows, find_earlier
from rungwise.training.loop import train, uses_bfloat16
from rungwise.training.parallel import Group, Worker
from rungwise.training.pretrained import put_beside
from rungwise.training.summary import Attempt, GradientRun, PretrainSummary, Prolonged, ReadLength
from rungwise.training.throughput import COUNTING_RULE, Costs, Progress, device_name, totals


@dataclass(frozen=True)
class RunOutcome:
    """The result of the leading worker."""

    progress: Progress
    costs: Costs
    device: str
    bfloat16: bool


def summarise(
    config: GradientFit, run: "Run", outcome: RunOutcome, compute: ComputeConfig
) -> PretrainSummary:
    settings, objective, progress = config.pretrain, config.objective, outcome.progress
    turns, initial, instances = run.turns, run.initial, run.turns[-1].summary
    model = start.build_model(config, instances.vocab_size, meta=True)
    parameters = sum(p.numel() for p in model.parameters())
    first, last = progress.validation[0], progress.validation[-1]
    part, pair = objective.tokens, objective.pair
    accuracy = f"  {pair.key} accuracy {last[pair.accuracy_key]:.1%}" if pair else ""
    unigram = f" (unigram {instances.unigram_loss:.2f})" if objective.predicts_text else ""
    before = f" from {first[part.loss_key]:.3f}" if initial else ""
    return PretrainSummary(
        fitting="gradient",
        model=config.model,
        objective=objective.name,
        parameters=parameters,
        vocab_size=instances.vocab_size,
        tokens=progress.tokens,
        epochs=count_epochs(config, turns, progress.step),
        unigram_loss=instances.unigram_loss,
        final=last,
        seconds=progress.seconds,
        began_with=start.compare_tensors(model, initial) if initial else None,
        gradient=GradientRun(
            steps=progress.step,
            history=tuple(progress.history),
            validation=tuple(progress.validation),
            timings=tuple(progress.timings),
            data=tuple((step, digest) for step, digest in progress.data),
            data_hash=progress.data_hash,
            skipped_steps=tuple(progress.skipped),
            prolonged=tuple(Prolonged(**row) for row in progress.prolonged),
            attempts=tuple(Attempt(**row) for row in progress.attempts),
            stopped_early=progress.step < settings.steps,
            device=outcome.device,
            bfloat16=outcome.bfloat16,
            parallel=compute.parallel if progress.attempts[-1]["workers"] > 1 else "one worker",
            lengths=tuple(
                ReadLength(from_step=turn.first_step, sequence_length=turn.length)
                for turn in (turns[:1] if objective.members else turns)
            ),
            flops_per_token=progress.flops / max(1, progress.tokens),
            flops_rule=COUNTING_RULE,
            throughput=totals(progress, outcome.costs),
        ),
        headline=f"{parameters / 1e6:.1f} M parameters  validation {part.key} "
        f"{last[part.loss_key]:.3f}{before}{unigram}{accuracy}",
    )


class PreemptionWatch:
    """Returns True once per notice and request to save; workers ask at the same steps."""

    def __init__(self, requests: SaveRequests) -> None:
        self._requests = requests
        self._going: set[str] = set()

    def __call__(self) -> bool:
        info = get_preemption_info()
        nodes = set(info.preempted_node_to_ranks) if info else set()
        new = nodes - self._going
        self._going |= nodes
        return bool(new) or self._requests()


class SaveBeforeResize(ControllerCallback):
    """Makes Ray Train's controller wait for a checkpoint before it ends a sound worker group, as it
    does without notice when a node returns to an elastic run."""

    def __init__(self, scratch: Folder) -> None:
        self._scratch = scratch

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        if isinstance(current_state, ResizingState):
            checkpoint.request_saves([self._scratch])


_USER_ERROR = "user-error.txt"
# Between two checks for room for more workers: as often as Ray counts its nodes.
_GROWTH_SECONDS = 20.0


@dataclass(frozen=True)
class Run:
    """Settings that the workers of a run share: what they read, and where they write."""

    turns: list[DataPhase]
    initial: Artifact | None
    output: Folder
    checkpoints: CheckpointRules
    beside: Artifact | None = None  # counts whose residual is learnt


def pretrain_by_gradient(
    config: GradientFit, inputs: Inputs, output: Folder, context: Context
) -> PretrainSummary:
    """Train until the end and write `model.safetensors`. Raises UserError if the instances do not
    fit the model or the loss is not finite."""
    check_fit(config, inputs, context.compute)
    run = plan_run(config, inputs, output, context.compute)
    outcome = (_fit_here if context.trains_here else _fit)(config, run, context)
    return summarise(config, run, outcome, context.compute)


def check_fit(config: GradientFit, inputs: Inputs, compute: ComputeConfig) -> None:
    """Raise UserError if instances, workers or initial weights do not fit this model."""
    run, whole = config, config.pretrain
    whole.check(config.model, compute)
    for turn in list_turns(inputs, whole):
        config, block, summary = turn.config(run), turn.name, turn.summary
        settings, objective = config.pretrain, config.objective
        check_rows(config, summary.kind, summary.sequence_length, block)
        if objective.sentences and read_kind(turn.instances).holds_several_texts:
            raise ConfigError(
                f"{block}.packed is true, but pretrain.objective {objective.name} takes a "
                "row for one text; set it to false"
            )
        count = summary.instances.train
        if settings.global_batch_size > count:
            longer = "longer " if turn.first_step else ""
            raise UserError(
                f"pretrain.global_batch_size is {settings.global_batch_size}, but there are "
                f"{count} {longer}training instances; lower it, or add text"
            )
        held_out = min(settings.validation_instances, summary.instances.validation)
        if held_out < objective.fewest_rows:
            raise UserError(
                f"{block} have {held_out} rows for validation, but pretrain.objective "
                f"{objective.name} needs {objective.fewest_rows} to measure a loss; raise "
                "pretrain.validation_instances or corpus.held_out_fraction, or add documents"
            )
        if compute.parallel != "ddp" and held_out < compute.num_workers:
            raise UserError(
                f"{block} have {held_out} rows for validation, too few for compute.num_workers "
                f"{compute.num_workers} with compute.parallel={compute.parallel}, where all must "
                "take part; raise pretrain.validation_instances or corpus.held_out_fraction, or "
                "lower the workers"
            )
        if start.INITIAL in inputs:
            start.check_initial(run, inputs[start.INITIAL], turn.instances)


def plan_run(config: GradientFit, inputs: Inputs, output: Folder, compute: ComputeConfig) -> Run:
    """Resolve what the workers need, and find the finished run to continue from, if any."""
    turns, initial = list_turns(inputs, config.pretrain), inputs.get(start.INITIAL)
    shared = config.pretrain.shared_steps
    root, stage, _ = output.uri.rsplit("/", 2)
    # Do not even look at other runs if there is nothing to share.
    finished = list_artifacts(Folder.at(root), stage) if shared else []
    fingerprints = {name: artifact.fingerprint for name, artifact in inputs.items()}
    rules = CheckpointRules(
        output / "checkpoints",
        compute.keep_checkpoints,
        compute.keep_checkpoint_every_steps,
        shared,
        find_earlier(config, fingerprints, finished),
    )
    return Run(turns, initial, output, rules, inputs.get(BESIDE))


def _fit(config: GradientFit, run: Run, context: Context) -> RunOutcome:
    """Train on the workers of Ray Train; returns what the leader brings back."""
    context.report.progress(0, config.pretrain.steps, workers="starting")
    compute = context.compute
    workers = compute.num_workers
    fewest = compute.min_workers or workers
    resources = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        resources["GPU"] = compute.gpus_per_worker
    with shared_scratch(run.output, checkpoint.SCRATCH) as path:
        scratch = Folder.at(path)
        scratch.remove(_USER_ERROR)
        checkpoint.drop_requests([scratch])
        result = TorchTrainer(
            lambda: _work(config, run, context, scratch),
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
    if isinstance(result.return_value, UserError):
        raise result.return_value
    assert isinstance(result.return_value, RunOutcome)
    return result.return_value


def _fit_here(config: GradientFit, run: Run, context: Context) -> RunOutcome:
    """Train in this process, the only worker, by Ray Train's local mode."""
    with shared_scratch(run.output, checkpoint.SCRATCH) as path:
        scratch = Folder.at(path)
        checkpoint.drop_requests([scratch])
        trainer = TorchTrainer(
            lambda: _train(config, run, context, lambda group: SaveRequests(scratch, group.leads)),
            scaling_config=ScalingConfig(num_workers=0),
        )
        for failures in itertools.count(1):
            try:
                return cast(RunOutcome, trainer.fit().return_value)
            except UserError:
                raise
            except Exception:
                if failures > context.compute.max_failures:
                    raise
            finally:
                return_freed_memory()  # Ray keeps this process
    raise AssertionError


def _work(
    config: GradientFit, run: Run, context: Context, scratch: Folder
) -> RunOutcome | UserError:
    """Train on this worker. Returns the UserError of an earlier attempt, which would fail again."""
    if scratch.exists(_USER_ERROR):
        return UserError(scratch.read_bytes(_USER_ERROR).decode())
    try:
        return _train(
            config, run, context, lambda group: PreemptionWatch(SaveRequests(scratch, group.leads))
        )
    except UserError as error:
        # Other workers may wait for this one, so it must fail; and after a restart it must not
        # retry what only the user can fix.
        scratch.write_bytes(_USER_ERROR, str(error).encode())
        raise


def _train(
    config: GradientFit, run: Run, context: Context, watch: Callable[[Group], Callable[[], bool]]
) -> RunOutcome:
    use_threads(context.compute.cpus_per_worker)
    group = Group.current(get_device())
    worker = Worker(group, context.compute, context.report, watch(group))
    try:
        progress, costs = pretrain(config, run, worker)
    finally:
        context.report.flush()
    bfloat16 = uses_bfloat16(config.pretrain.precision, group.device)
    return RunOutcome(progress, costs, device_name(group.device), bfloat16)


def pretrain(config: GradientFit, run: Run, worker: Worker) -> tuple[Progress, Costs]:
    """Run the loop on this worker; the leader writes `model.safetensors` at the end."""
    summary = run.turns[0].summary
    if worker.compute.compile and (run.beside or not config.compiles):
        compute = worker.compute.model_copy(update={"compile": False})
        worker = replace(worker, compute=compute)
        worker.report.note(
            f"compute.compile has no effect on a {config.model.kind} trained on "
            f"{config.objective.name}, which the compiler does not take whole"
        )
    count, batch = summary.instances.train, config.pretrain.global_batch_size
    if rest := count - rows_per_epoch(config, count, batch):
        worker.report.note(
            f"{rest} of {count:,} instances are left out of every epoch, so that "
            f"{batch} streams are of equal length"
        )
    # The others receive the leader's weights; a checkpoint of this run replaces them.
    initial = run.initial if worker.group.leads or start.fixes_vectors(run.initial) else None
    model, carried, first_loss = start.start_model(config, run.turns[0].instances, initial)
    checkpoints = Checkpoints(run.checkpoints, worker.group)
    if run.beside:
        put_beside(model, run.beside, summary.special)
    if run.initial or run.beside:
        first_loss = None
    progress, costs = train(config, model, run.turns, checkpoints, worker, first_loss)
    if worker.group.leads:
        checkpoints.export_model(run.output, carried)
    return progress, costs


_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


@dataclass
class NodeAddressTorchConfig(TorchConfig):
    """Ray Train's TorchConfig, which makes gloo listen on the address by which Ray knows a node. By
    default it is that of the host's name, often 127.0.0.1 or 127.0.1.1, which other nodes cannot
    reach. An interface's name differs between nodes, so each worker looks it up before they
    connect."""

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return _Backend


class _Backend(TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


def choose_interface() -> None:
    """Set this process's GLOO_SOCKET_IFNAME unless the user has set it."""
    if _INTERFACE_VARIABLE not in os.environ and (
        name := find_interface(ray.util.get_node_ip_address())
    ):
        os.environ[_INTERFACE_VARIABLE] = name


def find_interface(address: str) -> str | None:
    """The network interface with this address; loopback owns 127.0.0.0/8 but lists one address."""
    by_address = {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    if address not in by_address and ipaddress.ip_address(address).is_loopback:
        return by_address.get("127.0.0.1")
    return by_address.get(address)
