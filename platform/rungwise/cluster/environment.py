"""The variables that every process sets before it imports Ray or MLflow."""

import atexit
import gc
import os

# The base for a recipe's relative `root` when a job runs on the cluster.
ROOT_VARIABLE = "RUNGWISE_ROOT"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Every report to Train's controller waits for a poll.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Train's view of the nodes is up to 20 s old, so after losing a node it first waits so long for
    # too many workers, and then counts again how many fit.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    # How often Train asks whether a node will be preempted; 5 s are a large part of a short notice.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    # On a busy machine the imports of Serve's HTTP proxy take longer than the default of 5 s.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # Drops the raylet's warning of many processes: a stage that trains needs three.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "worker processes have been started on node",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "AIR_VERBOSITY": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # MLflow prints the URL of each run that ends, including any password.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # tracker.py retries by itself and must not wait minutes for MLflow's own retries.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    # A pool would keep a file open that was removed, and write to it what nobody reads.
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
    "TOKENIZERS_PARALLELISM": "true",
}


def set_environment() -> None:
    """Set the variables above that the user has not set. Call before importing Ray."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if "RAY_ADDRESS" not in os.environ:
        # Under `uv run`, Ray would copy the whole folder and build an environment for its workers,
        # which on this machine have that of the driver.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")


def spare_collections() -> None:
    """Let Python search less often for garbage, which takes a fifth of the time of a plan."""
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
