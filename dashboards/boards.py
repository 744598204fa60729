"""The boards: what they show, as a table to read and to change.

    python -m dashboards.generate      writes Grafana's JSON, the page and metrics.md anew

`RUN` stands for the runs that are chosen on top of a board. A gauge is asked for with `max by`, so
that a run whose driver was started again is one line. Charts marked `gpu` are of NVIDIA's DCGM
exporter (https://github.com/NVIDIA/dcgm-exporter), the others of our metrics and of Ray's.
"""

from __future__ import annotations

from dataclasses import dataclass

RUN = 'run=~"$run"'


@dataclass(frozen=True)
class Chart:
    """One panel: queries with their legends, the unit of its axis in Grafana's words, and what it
    tells."""

    title: str
    unit: str
    about: str
    queries: tuple[tuple[str, str], ...]
    gpu: bool = False


@dataclass(frozen=True)
class Board:
    """Rows of charts by their titles."""

    uid: str
    title: str
    rows: dict[str, tuple[Chart, ...]]

    @property
    def charts(self) -> list[Chart]:
        return [chart for row in self.rows.values() for chart in row]


def chart(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Chart:
    return Chart(title, unit, about, queries)


def dcgm(title: str, unit: str, about: str, query: str) -> Chart:
    """A chart of NVIDIA's DCGM exporter."""
    return Chart(title, unit, about, ((query, "{{instance}} GPU {{gpu}}"),), gpu=True)


def of(
    name: str, by: str = "run, stage", where: str = "", legend: str = "", above: str = ""
) -> tuple[str, str]:
    """The query of one of our gauges and its legend."""
    shown = legend or " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    chosen = RUN + (f", {where}" if where else "")
    return f"max by ({by}) (ray_rungwise_{name}{{{chosen}}}){above}", shown


def since(name: str, by: str = "run, stage") -> tuple[str, str]:
    """The seconds since the time that one of our gauges holds."""
    query, shown = of(name, by)
    return f"time() - {query}", shown


def rate(name: str) -> tuple[str, str]:
    """The growth a second of one of our totals."""
    query = f"sum by (run, stage) (rate(ray_rungwise_{name}{{{RUN}}}[2m]))"
    return query, "{{run}} {{stage}}"


def recorded(name: str) -> tuple[str, str]:
    """The query of a recording rule, which has values while its stage runs."""
    return f"rungwise:{name}{{{RUN}}}", "{{run}} {{stage}}"


def node(query: str, legend: str = "{{ip}}") -> tuple[str, str]:
    """A query of Ray's metrics, which know nodes and no runs."""
    return query, legend


PRETRAINING = Board(
    "rungwise-pretraining",
    "Pretraining",
    {
        "Is the money well spent?": (
            chart(
                "Tokens a second",
                "suffix: tokens/s",
                "Real tokens, all workers together, over the last five minutes.",
                recorded("tokens_per_second"),
            ),
            chart(
                "MFU",
                "percentunit",
                "Operations that training needs over those that plain matrix products do in "
                "the same time on the same machines.",
                recorded("mfu_ratio"),
            ),
            chart(
                "Waiting",
                "percentunit",
                "Shares of the time: for data, for checkpoints, and how far the slowest "
                "worker is behind the median one.",
                of("data_wait_ratio", legend="data {{run}} {{stage}}"),
                of("checkpoint_stall_ratio", legend="checkpoints {{run}} {{stage}}"),
                of("straggler_ratio", legend="slowest worker {{run}} {{stage}}"),
            ),
        ),
        "Does it learn?": (
            chart(
                "Training loss",
                "suffix: nats",
                "By part of the objective; total is their sum.",
                of("loss_nats", "run, stage, part", 'split="train"'),
            ),
            chart(
                "Validation loss",
                "suffix: nats",
                "On held-out text, with the same masks each time.",
                of("loss_nats", "run, stage, part", 'split="validation"'),
            ),
            chart(
                "Accuracy",
                "percentunit",
                "Share of right predictions.",
                of("accuracy_ratio", "run, stage, part, split"),
            ),
            chart(
                "Bits per byte",
                "suffix: bits",
                "Of held-out text; for models that predict every token.",
                of("bits_per_byte"),
            ),
            chart("Gradient norm", "none", "Before it is cut.", of("gradient_norm")),
            chart("Learning rate", "sci", "Of the last logged step.", of("learning_rate")),
        ),
        "Is anything lost?": (
            chart(
                "Steps that went wrong",
                "short",
                "Skipped: the gradient was not finite. Spikes: the loss stood out.",
                of("skipped_steps_total", legend="skipped {{run}} {{stage}}"),
                of("loss_spikes_total", legend="spikes {{run}} {{stage}}"),
            ),
            chart(
                "Checkpoint age",
                "s",
                "What a crash would cost, beside the interval that the recipe asks for.",
                since("checkpoint_timestamp_seconds"),
                of("checkpoint_interval_seconds", legend="interval {{run}} {{stage}}"),
            ),
            chart(
                "Checkpoint time",
                "s",
                "From the copy of the state to the record that makes it valid.",
                of("checkpoint_save_seconds"),
            ),
            chart(
                "Checkpoint size", "decbytes", "The leading worker's part.", of("checkpoint_bytes")
            ),
            chart(
                "Checkpoints",
                "short",
                "Since the run began.",
                of("checkpoints_total", "run, stage, result"),
            ),
            chart(
                "Attempts and workers",
                "short",
                "Each restart is an attempt; elastic runs change their workers.",
                of("attempts_total", legend="attempts {{run}} {{stage}}"),
                of("workers", legend="workers {{run}} {{stage}}"),
            ),
        ),
        "How far is it?": (
            chart("Tokens", "short", "Real tokens read so far.", of("tokens_total")),
            chart("Steps", "short", "Optimizer steps so far.", of("steps_total")),
            chart("Step time", "s", "Without validation.", of("step_seconds")),
        ),
    },
)

DATA = Board(
    "rungwise-data",
    "Data",
    {
        "Reading": (
            chart(
                "Text read",
                "Bps",
                "Bytes of text a second; of packed files what they are taken to hold.",
                rate("read_bytes_total"),
            ),
            chart(
                "Documents read",
                "suffix: documents/s",
                "Documents a second, by stage.",
                rate("documents_total"),
            ),
            chart(
                "Progress",
                "percentunit",
                "Files that are done, of all.",
                of("stage_progress_ratio"),
            ),
            chart("Documents", "short", "Read so far, by stage.", of("documents_total")),
            chart("Bytes", "decbytes", "Read so far, by stage.", of("read_bytes_total")),
        ),
        "Instances": (
            chart(
                "Tokens in no instance",
                "percentunit",
                "Text that the model will never see.",
                of("unused_tokens_ratio"),
            ),
            chart(
                "Contract",
                "percentunit",
                "Shares of the masks and labels, and how full the rows are.",
                of("contract_ratio", "run, stage, figure"),
            ),
        ),
    },
)

SWEEPS = Board(
    "rungwise-sweeps",
    "Sweeps",
    {
        "Trials and seeds": (
            chart(
                "By state",
                "short",
                "Trials of sweeps, seeds of evaluations.",
                of("trials", "run, stage, state", above=" > 0"),
            ),
            chart(
                "Best score",
                "none",
                "The highest so far; the seed that chose it is not the seed that is reported.",
                of("best_objective", "run, stage, metric"),
            ),
            chart(
                "Last score",
                "none",
                "Of the trial or seed that ended last.",
                of("objective", "run, stage, metric"),
            ),
            chart(
                "Progress",
                "percentunit",
                "Trials that have ended, of all.",
                of("stage_progress_ratio", where='stage=~"(sweep|evaluate).*"'),
            ),
        ),
    },
)

STAGES = Board(
    "rungwise-stages",
    "Ladder and stages",
    {
        "Stages": (
            chart("By state", "short", "Of each run.", of("stages", "run, state")),
            chart(
                "Running",
                "percentunit",
                "How far each stage is, in its own units.",
                of("stage_progress_ratio"),
            ),
            chart("Time of finished stages", "s", "How long each took.", of("stage_seconds")),
            chart(
                "Loss at the end",
                "suffix: nats",
                "Of finished rungs, whatever their way of fitting.",
                of("loss_nats", "run, stage, part", 'split="final"'),
            ),
        ),
        "Money and tracking": (
            chart(
                "Cost",
                "none",
                "In the currency of compute.price_per_hour. To come: the running stages.",
                of("cost_so_far", "run", legend="so far {{run}}"),
                of("cost_to_come", "run", legend="to come {{run}}"),
                of("budget", "run", legend="budget {{run}}"),
            ),
            chart(
                "Events kept back",
                "short",
                "What MLflow has not taken yet; it is spooled and sent later.",
                of("tracking_events_waiting", "run"),
            ),
            chart(
                "Driver heard of",
                "s",
                "Seconds since the run's driver was last known to live.",
                since("heartbeat_timestamp_seconds", "run"),
            ),
        ),
    },
)

CLUSTER = Board(
    "rungwise-cluster",
    "Cluster",
    {
        "Machines": (
            chart(
                "Nodes",
                "short",
                "As Ray and its autoscaler count them.",
                node("sum(ray_cluster_active_nodes)", "alive"),
                node("sum(autoscaler_pending_nodes)", "asked for and not started"),
                node(
                    "sum(increase(autoscaler_failed_create_nodes_total[15m]))",
                    "failed to start in 15 min",
                ),
            ),
            chart(
                "Nodes lost",
                "short",
                "Since each run's driver began, by Ray's reason.",
                of("nodes_lost_total", "run, reason"),
            ),
            chart(
                "Placement groups",
                "short",
                "Pending: workers or trials wait for room.",
                node("sum by (State) (ray_gcs_placement_group_count)", "{{State}}"),
            ),
        ),
        "What they do": (
            chart(
                "CPUs asked for",
                "short",
                "Of all nodes together.",
                node('sum by (State) (ray_resources{Name="CPU"})', "{{State}}"),
            ),
            chart(
                "CPU",
                "percent",
                "Utilisation of each machine.",
                node("max by (ip) (ray_node_cpu_utilization)"),
            ),
            chart(
                "Memory",
                "percentunit",
                "Of each machine.",
                node("max by (ip) (ray_node_mem_used / ray_node_mem_total)"),
            ),
            chart(
                "Disk",
                "percent",
                "Of the disk of Ray's temporary folder.",
                node("max by (ip) (ray_node_disk_utilization_percentage)"),
            ),
            chart(
                "Network",
                "Bps",
                "Of each machine.",
                node("sum by (ip) (ray_node_network_receive_speed)", "in {{ip}}"),
                node("sum by (ip) (ray_node_network_send_speed)", "out {{ip}}"),
            ),
            chart(
                "Object store",
                "decbytes",
                "Used on each node.",
                node("sum by (NodeAddress) (ray_object_store_used_memory)", "{{NodeAddress}}"),
            ),
        ),
        "GPUs (DCGM)": (
            dcgm("Utilisation", "percent", "A kernel was running.", "DCGM_FI_DEV_GPU_UTIL"),
            dcgm(
                "Tensor cores",
                "percentunit",
                "Share of cycles; what MFU is made of.",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            ),
            dcgm(
                "Memory",
                "percentunit",
                "Of each GPU.",
                "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
            ),
            dcgm(
                "SM clock",
                "suffix: MHz",
                "One below the others holds them all up.",
                "DCGM_FI_DEV_SM_CLOCK",
            ),
            dcgm("Power", "watt", "Of each GPU.", "DCGM_FI_DEV_POWER_USAGE"),
            dcgm("Temperature", "celsius", "Of each GPU.", "DCGM_FI_DEV_GPU_TEMP"),
        ),
    },
)

BOARDS = (PRETRAINING, DATA, SWEEPS, STAGES, CLUSTER)
