"""Ray's own autoscaler sets the capacity of groups in moto's AWS; nodes here play the machines.

One cluster for all tests, each of which leaves it without machines. A machine that appears in a
group is a `ray start` on an address of its own with what the group offers, and ends with the
machine. Every state of the groups that the player saw is kept.
"""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import psutil
import pytest
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.server import ThreadedMotoServer

from rungwise.cluster.description import Machine, Scaling, WorkerGroup
from rungwise.cluster.ray_start import Node, environment, start_command
from rungwise.pretraining.proof_process import kill_with_children
from rungwise_aws import autoscaling
from tests.conftest import unused_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REGION = "eu-west-1"
HEAD = "i-0123456789abcdef0"
HEAD_ADDRESS = "127.0.0.2"
GROUPS = {
    "cpu": WorkerGroup(autoscaling_group="c-cpu", maximum=3, resources={"CPU": 1}),
    "gpu": WorkerGroup(autoscaling_group="c-gpu", maximum=2, resources={"CPU": 1, "GPU": 1}),
}
REQUEST_SECONDS = 20  # Ray asks again; a tenth of it is what a busy machine may be late
WAIT_SECONDS = 120

DRIVER = """
import json, os, sys, ray
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray prints is no answer
from ray.util.placement_group import placement_group, remove_placement_group
ray.init(logging_level="ERROR", log_to_driver=False)
work = ray.remote(num_cpus=0, num_gpus=1)(lambda: 1)
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "group":
        group = placement_group(order["bundles"], strategy="STRICT_SPREAD")
        answer = True
    elif order["do"] == "ready":
        answer = group.wait(order["seconds"])
    elif order["do"] == "remove":
        answer = remove_placement_group(group)
    elif order["do"] == "tasks":
        tasks = [work.remote() for _ in range(order["count"])]
        answer = True
    elif order["do"] == "results":
        answer = sum(ray.get(tasks, timeout=order["seconds"]))
    elif order["do"] == "cancel":
        answer = [ray.cancel(task) for task in tasks]
    print(json.dumps(answer), file=answers, flush=True)
"""


class Cluster:
    """The head with its autoscaler, the groups, and a thread that plays their machines."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        self._nodes: dict[str, psutil.Popen] = {}  # the machines that are started, and the head
        self._started = 0
        self._driver: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self.seen: list[tuple[str, int, int]] = []  # group, capacity, machines
        self.client = botocore.session.get_session().create_client(
            "autoscaling",
            region_name=REGION,
            endpoint_url=endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        token = folder / "token"
        token.write_text("d" * 64)
        token.chmod(0o600)
        self._environment = environment(
            token,
            PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
            AWS_ENDPOINT_URL=endpoint,
            AWS_ACCESS_KEY_ID="testing",
            AWS_SECRET_ACCESS_KEY="testing",
            AUTOSCALER_UPDATE_INTERVAL_S="1",
            AUTOSCALER_METRIC_PORT=str(unused_port()),
            RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S=str(REQUEST_SECONDS),
            RAY_AUTOSCALER_RECONCILE_MAX_NUM_RETRY_REQUEST_TO_ALLOCATE="1",
            RAY_enable_autoscaler_v2="1",
        )
        self.address = f"{HEAD_ADDRESS}:{unused_port()}"
        self._thread = threading.Thread(target=self._play)

    def start(self) -> None:
        config = self._folder / "autoscaling.yaml"
        machine = Machine(
            role="head",
            cluster="c",
            region=REGION,
            resources={"CPU": 0},
            token_secret="arn:token",
            scaling=Scaling(groups=GROUPS, idle_timeout_minutes=0.1),
        )
        autoscaling.write_config(machine, HEAD, config)
        self._start(HEAD, "head", {"CPU": 0}, config)
        log = (self._folder / "0.log").read_text
        wait_until(log, lambda: "Ray runtime started" in log(), code=self._nodes[HEAD].poll)
        self._thread.start()
        self._driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env={**self._environment, "RAY_ADDRESS": self.address},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _start(
        self, machine: str, group: str, resources: dict[str, float], config: Path | None
    ) -> None:
        place = self._folder / str(self._started)
        node = Node(
            address=HEAD_ADDRESS if config else f"127.0.0.{10 + self._started}",
            temp_dir=place,
            head=None if config else self.address,
            resources=resources,
            gcs_port=int(self.address.rpartition(":")[2]),
            dashboard_port=unused_port(),
            metrics_port=unused_port(),
            object_store_bytes=100_000_000,
            autoscaling_config=config,
            more=(
                *("--dashboard-agent-listen-port", str(unused_port())),
                *("--dashboard-agent-grpc-port", str(unused_port())),
                *(("--ray-client-server-port", str(unused_port())) if config else ()),
            ),
        )
        self._started += 1
        identity = {"RAY_CLOUD_INSTANCE_ID": machine, "RAY_NODE_TYPE_NAME": group}
        with place.with_suffix(".log").open("w") as log:
            self._nodes[machine] = psutil.Popen(
                start_command(node),
                env={**self._environment, **identity},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def _play(self) -> None:
        while not self._stop.wait(0.1):
            there = {}
            for name, group in self.groups().items():
                machines = [machine["InstanceId"] for machine in group["Instances"]]
                self.seen.append((name, group["DesiredCapacity"], len(machines)))
                there |= dict.fromkeys(machines, name)
            for machine in self._nodes.keys() - there.keys() - {HEAD}:
                end(self._nodes.pop(machine))
            for machine in there.keys() - self._nodes.keys():
                group = there[machine]
                self._start(machine, group, GROUPS[group].resources, None)

    def groups(self) -> dict[str, dict[str, Any]]:
        """The groups as the mock has them."""
        found = self.client.describe_auto_scaling_groups()["AutoScalingGroups"]
        return {group["AutoScalingGroupName"].removeprefix("c-"): group for group in found}

    def desired(self, name: str) -> int:
        return self.groups()[name]["DesiredCapacity"]

    def most(self, name: str) -> tuple[int, int]:
        """The highest capacity and the most machines of a group that were seen."""
        seen = [entry for entry in self.seen if entry[0] == name]
        return max(entry[1] for entry in seen), max(entry[2] for entry in seen)

    def do(self, what: str, **order: Any) -> Any:
        assert self._driver is not None
        assert self._driver.stdin
        assert self._driver.stdout
        self._driver.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self._driver.stdin.flush()
        answer = self._driver.stdout.readline()
        assert answer, "the driver ended"
        return json.loads(answer)

    def monitor_log(self) -> str:
        return (self._folder / "0" / "session_latest" / "logs" / "monitor.log").read_text()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        wait_until(lambda: f"{self.groups()}\n{self.monitor_log()[-20000:]}", holds, WAIT_SECONDS)

    def empty(self) -> bool:
        return not any(g["Instances"] or g["DesiredCapacity"] for g in self.groups().values())

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._driver is not None:
            end(self._driver)
        for machine in sorted(self._nodes, key=HEAD.__eq__):  # the head last
            end(self._nodes[machine])


def end(process: subprocess.Popen[Any] | psutil.Popen) -> None:
    kill_with_children(process.pid)
    process.wait()


@contextlib.contextmanager
def aws() -> Iterator[str]:
    """moto's AWS with the groups; its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each call
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    place: dict[str, Any] = {"region_name": REGION, "endpoint_url": endpoint, **keys}
    session = botocore.session.get_session()
    session.create_client("ec2", **place).create_launch_template(
        LaunchTemplateName="worker",
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "t3.micro"},
    )
    client = session.create_client("autoscaling", **place)
    for group in GROUPS.values():
        client.create_auto_scaling_group(
            AutoScalingGroupName=group.autoscaling_group,
            MinSize=0,
            MaxSize=group.maximum,
            DesiredCapacity=0,
            LaunchTemplate={"LaunchTemplateName": "worker"},
            AvailabilityZones=[f"{REGION}a"],
        )
    try:
        yield endpoint
    finally:
        server.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))  # short: it holds Unix sockets
    with aws() as endpoint:
        cluster = Cluster(folder, endpoint)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
            shutil.rmtree(folder, ignore_errors=True)


def test_a_pending_group_of_gpus_raises_their_group_alone_and_idle_machines_go(
    cluster: Cluster,
) -> None:
    cluster.do("group", bundles=[{"GPU": 1}, {"GPU": 1}])
    assert cluster.do("ready", seconds=WAIT_SECONDS), cluster.monitor_log()
    assert cluster.desired("gpu") == 2
    cluster.do("remove")
    cluster.wait_for(cluster.empty)
    assert cluster.most("gpu") == (2, 2)
    assert cluster.most("cpu") == (0, 0)


def test_a_group_that_needs_more_than_the_maximum_starts_nothing(cluster: Cluster) -> None:
    cluster.seen.clear()
    cluster.do("group", bundles=[{"GPU": 1}] * 3)
    assert not cluster.do("ready", seconds=5)
    cluster.do("remove")
    assert cluster.most("gpu") == (0, 0)


def test_the_maximum_that_aws_has_now_is_never_passed_and_what_waited_comes_when_it_rises(
    cluster: Cluster,
) -> None:
    cluster.client.update_auto_scaling_group(AutoScalingGroupName="c-gpu", MaxSize=0)
    cluster.seen.clear()
    cluster.do("tasks", count=6)
    cluster.wait_for(lambda: "they wait" in cluster.monitor_log())
    cluster.client.update_auto_scaling_group(AutoScalingGroupName="c-gpu", MaxSize=1)
    cluster.wait_for(lambda: cluster.desired("gpu") == 1)
    assert cluster.do("results", seconds=WAIT_SECONDS) == 6
    cluster.wait_for(cluster.empty)
    assert cluster.most("gpu") == (1, 1)
    cluster.client.update_auto_scaling_group(AutoScalingGroupName="c-gpu", MaxSize=2)


def test_what_aws_does_not_fill_is_asked_for_once_and_withdrawn_when_no_one_needs_it(
    cluster: Cluster,
) -> None:
    cluster.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeAutoScalingGroup, "replace_autoscaling_group_instances", lambda *_: None)
        before = cluster.monitor_log().count("Launching 1 nodes of type gpu")
        cluster.do("tasks", count=1)
        cluster.wait_for(
            lambda: cluster.monitor_log().count("Launching 1 nodes of type gpu") >= before + 3
        )
        cluster.do("cancel")
        cluster.wait_for(cluster.empty)
    assert cluster.most("gpu") == (1, 0)
