"""`python -m rungwise.cluster.aws VERB`: the command that each systemd unit of a machine starts.

    token        write the token of the cluster to TOKEN_FILE; the head makes it if there is none
    scratch      mount the instance store at RUNGWISE_SCRATCH, or make a folder there
    ray          become the Ray node of this machine
    notice       drain the node when AWS announces that it takes the machine back
    leave        end when the head has been gone for long, and take the machine out of its group
    journal      copy what the units write to the bucket, until the machine ends
    mlflow       become the MLflow server
    password     write the password of MLflow's database again, as RDS rotates it
    prometheus   become the Prometheus of the cluster
    grafana      become the Grafana of the cluster

The units are in infra/terraform/modules/bootstrap/templates. Everything beyond the verb is in
machine.json.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from rungwise.cluster.description import MACHINE_FILE, Machine
from rungwise.core.config import load
from rungwise.core.errors import UserError

_LOGGER = logging.getLogger("rungwise.cluster.aws")
# botocore asks for the role's credentials once, for a second; a busy machine then has none. The
# process that a verb becomes, and Ray's jobs, inherit these.
_PATIENCE = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5"}
VERBS = (
    *("token", "scratch", "ray", "notice", "leave", "journal"),
    *("mlflow", "password", "prometheus", "grafana"),
)


def main(arguments: Sequence[str]) -> int:
    """Run one verb; return status 2 and log one line if the machine is not as it should be."""
    if len(arguments) != 1 or arguments[0] not in VERBS:
        sys.stderr.write(f"usage: python -m rungwise.cluster.aws {'|'.join(VERBS)}\n")
        return 2
    try:
        machine = load(Machine, MACHINE_FILE)
        os.environ.update(_PATIENCE | machine.environment)
        _run(arguments[0], machine)
    except UserError as error:
        _LOGGER.error("error: %s", error)
        return 2
    return 0


def _run(verb: str, machine: Machine) -> None:
    # Each imports what it alone needs: Ray takes seconds to import, botocore a part of one.
    if verb == "token":
        from rungwise.cluster.aws.token import provide_token

        provide_token(machine)
    elif verb == "scratch":
        from rungwise.cluster.aws.scratch import provide_scratch

        provide_scratch()
    elif verb == "ray":
        from rungwise.cluster.aws.ray_node import become_node

        become_node(machine)
    elif verb == "notice":
        from rungwise.cluster.aws.notice import watch

        watch(machine)
    elif verb == "leave":
        from rungwise.cluster.aws.leave import leave_without_head

        leave_without_head(machine)
    elif verb == "journal":
        from rungwise.cluster.aws.journal import keep_journal

        keep_journal(machine)
    elif verb == "mlflow":
        from rungwise.cluster.aws.tracking_server import become_server

        become_server(machine)
    elif verb == "password":
        from rungwise.cluster.aws.tracking_server import write_password

        write_password(machine)
    elif verb == "prometheus":
        from rungwise.cluster.aws.prometheus import become_prometheus

        become_prometheus(machine)
    else:
        from rungwise.cluster.aws.prometheus import become_grafana

        become_grafana()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # the journal has the time
    logging.getLogger("rungwise").setLevel(logging.INFO)
    sys.exit(main(sys.argv[1:]))
