"""The boards: what they show, as a table to read and to change.

    python -m dashboards.generate      writes Grafana's JSON, the page and metrics.md anew

`RUN` stands for the runs that are chosen on top of a board. A gauge is asked for with `max by`, so
that a run whose driver was started again is one line. Charts marked `gpu` are of NVIDIA's DCGM
exporter (https://github.com/NVIDIA/dcgm-exporter), the others of our metrics and of Ray's.
"""

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
                "Operations needed for training, as a share of those that plain matrix products "
                "do in the same time on the same machines.",
                recorded("mfu_ratio"),
            ),
            chart(
                "Waiting",
                "percentunit",
                "Share of the time spent waiting for data and for checkpoints, and how far the "
                "slowest worker is behind the median one.",
                of("data_wait_ratio", legend="data {{run}} {{stage}}"),
                of("checkpoint_stall_ratio", legend="checkpoints {{run}} {{stage}}"),
                of("straggler_ratio", legend="slowest worker {{run}} {{stage}}"),
            ),
        ),
        "Does it learn?": (
            chart(
                "Training loss",
                "suffix: nats",
                "By part of the objective; total is the sum of the parts.",
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
                "Share of correct predictions.",
                of("accuracy_ratio", "run, stage, part, split"),
            ),
            chart(
                "Bits per byte",
                "suffix: bits",
                "Of held-out text; for models that predict every token.",
                of("bits_per_byte"),
            ),
            chart("Gradient norm", "none", "Before clipping.", of("gradient_norm")),
            chart("Learning rate", "sci", "At the last logged step.", of("learning_rate")),
        ),
        "Is anything lost?": (
            chart(
                "Skipped steps",
                "short",
                "Their gradient was not finite.",
                of("skipped_steps_total", legend="skipped {{run}} {{stage}}"),
            ),
            chart(
                "Checkpoint age",
                "s",
                "The work that a crash would lose now, beside the interval that the recipe sets.",
                since("checkpoint_timestamp_seconds"),
                of("checkpoint_interval_seconds", legend="interval {{run}} {{stage}}"),
            ),
            chart(
                "Checkpoint time",
                "s",
                "From copying the state to writing the record that makes the checkpoint valid.",
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
                "Each restart is an attempt; in elastic runs the number of workers changes.",
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
                "Bytes of text a second; for compressed files, their estimated text.",
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
                "Share of files that are done.",
                of("stage_progress_ratio"),
            ),
            chart("Documents", "short", "Read so far, by stage.", of("documents_total")),
            chart("Bytes", "decbytes", "Read so far, by stage.", of("read_bytes_total")),
        ),
        "Instances": (
            chart(
                "Tokens in no instance",
                "percentunit",
                "Share of the text that the model will never see.",
                of("unused_tokens_ratio"),
            ),
            chart(
                "Contract",
                "percentunit",
                "Shares of masks and labels, and how full the rows are.",
                of("contract_ratio", "run, stage, figure"),
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
                "The share of each running stage that is done, in its own units.",
                of("stage_progress_ratio"),
            ),
            chart("Time of finished stages", "s", "How long each took.", of("stage_seconds")),
            chart(
                "Loss at the end",
                "suffix: nats",
                "Of finished rungs, however they were fitted.",
                of("loss_nats", "run, stage, part", 'split="final"'),
            ),
        ),
        "Money and tracking": (
            chart(
                "Cost",
                "none",
                "In the currency of compute.price_per_hour.",
                of("cost_so_far", "run", legend="so far {{run}}"),
                of("budget", "run", legend="budget {{run}}"),
            ),
            chart(
                "Events waiting",
                "short",
                "Events that MLflow has not accepted yet; they are spooled and sent later.",
                of("tracking_events_waiting", "run"),
            ),
            chart(
                "Last sign of the driver",
                "s",
                "Time since the run's driver was last known to be alive.",
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
                node("sum(autoscaler_pending_nodes)", "requested, not started"),
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
                "Pending: workers or trials are waiting for room.",
                node("sum by (State) (ray_gcs_placement_group_count)", "{{State}}"),
            ),
        ),
        "What they do": (
            chart(
                "CPUs in use",
                "short",
                "Used and available, all nodes together.",
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
                "How full the disk with Ray's temporary folder is.",
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
            dcgm(
                "Utilisation",
                "percent",
                "Share of the time in which a kernel was running.",
                "DCGM_FI_DEV_GPU_UTIL",
            ),
            dcgm(
                "Tensor cores",
                "percentunit",
                "Share of cycles in which they were active; this is what MFU depends on.",
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
                "A GPU with a lower clock than the others holds them all up.",
                "DCGM_FI_DEV_SM_CLOCK",
            ),
            dcgm("Power", "watt", "Of each GPU.", "DCGM_FI_DEV_POWER_USAGE"),
            dcgm("Temperature", "celsius", "Of each GPU.", "DCGM_FI_DEV_GPU_TEMP"),
        ),
    },
)

BOARDS = (PRETRAINING, DATA, STAGES, CLUSTER)
