"""`python -m rungwise_aws VERB`: the command that a machine's systemd units start.

    token        write the cluster's token to TOKEN_FILE; the head creates it if necessary
    scratch      mount the instance store at RUNGWISE_SCRATCH, or create a folder there
    ray          become this machine's Ray node
    notice       drain the node when AWS announces that it will reclaim the machine
    leave        end a worker that has lost its head, and remove it from its group
    journal      copy the units' log to the bucket until the machine ends
    mlflow       become the MLflow server
    password     rewrite the password of MLflow's database after RDS rotates it
    prometheus   become the cluster's Prometheus
    grafana      become the cluster's Grafana

The units are in infra/terraform/modules/bootstrap/templates. All other settings are in
machine.json.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from rungwise.cluster.description import MACHINE_FILE, Machine
from rungwise.core.configuration.yaml_file import load
from rungwise.core.errors import UserError

_LOGGER = logging.getLogger("rungwise_aws")
# By default, botocore asks for the role's credentials once, for a second, and gets none on a busy
# machine. The process that replaces this one and Ray's jobs inherit these variables.
_PATIENCE = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5"}
# The module and function of each verb, imported when it is called: Ray takes seconds to import,
# botocore a fraction of one.
VERBS = {
    "token": "token.provide_token",
    "scratch": "scratch.provide_scratch",
    "ray": "ray_node.become_node",
    "notice": "notice.watch_notices",
    "leave": "leave.leave_without_head",
    "journal": "journal.copy_journal",
    "mlflow": "tracking_server.become_server",
    "password": "tracking_server.write_password",
    "prometheus": "prometheus.become_prometheus",
    "grafana": "prometheus.become_grafana",
}


def main(arguments: Sequence[str]) -> int:
    """Run one verb; log one line and return status 2 if the machine is not set up correctly."""
    if len(arguments) != 1 or arguments[0] not in VERBS:
        sys.stderr.write(f"usage: python -m rungwise_aws {'|'.join(VERBS)}\n")
        return 2
    try:
        machine = load(Machine, MACHINE_FILE)
        os.environ.update(_PATIENCE | machine.environment)
        module, _, function = VERBS[arguments[0]].partition(".")
        getattr(import_module(f"rungwise_aws.{module}"), function)(machine)
    except UserError as error:
        _LOGGER.error("error: %s", error)
        return 2
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # the journal adds the time
    for package in ("rungwise", "rungwise_aws"):
        logging.getLogger(package).setLevel(logging.INFO)
    sys.exit(main(sys.argv[1:]))
