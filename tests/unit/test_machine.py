"""What a machine does, piece by piece; tests/infra runs the whole of it under systemd."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.exceptions import ClientError
from moto import mock_aws
from sqlalchemy import make_url

from rungwise.cluster import ray_start
from rungwise.cluster.description import Database, Machine
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise_aws import journal, notice, prometheus, ray_node, scratch, token, tracking_server
from rungwise_aws.__main__ import VERBS, main
from rungwise_aws.instance import ENDPOINT_VARIABLE, InstanceMetadata
from rungwise_aws.leave import leave_without_head
from rungwise_aws.secret_store import read_secret, write_private
from tests.conftest import REPOSITORY
from tests.infra.services import metadata_server

REGION = "eu-central-1"
BOOTSTRAP = REPOSITORY / "infra/terraform/modules/bootstrap"
USER = "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")
PASSWORD = "a:b\\c"


def described(role: str, **changes: Any) -> Machine:
    """The machine of that role in the golden files of the Terraform module."""
    data = json.loads((BOOTSTRAP / f"tests/golden/{role}.json").read_text())
    return Machine.model_validate(data | changes)


@pytest.fixture
def secrets_manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield botocore.session.get_session().create_client("secretsmanager", region_name=REGION)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of what a metadata service on loopback says to this machine."""
    server = metadata_server(tmp_path, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://127.0.0.1:{server.server_port}/")
    folder = tmp_path / "127.0.0.1"
    folder.mkdir()
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_unit_starts_a_verb_that_there_is() -> None:
    started = set()
    for unit in (BOOTSTRAP / "templates").glob("*.service.tftpl"):
        (command,) = [
            line.removeprefix("ExecStart=")
            for line in unit.read_text().splitlines()
            if line.startswith("ExecStart=")
        ]
        if not command.startswith("/usr/local/sbin/rungwise-install"):
            assert command.startswith("${python} -m rungwise_aws ")
            started.add(command.split()[-1])
    assert started == set(VERBS)
    for place in VERBS.values():
        module, _, function = place.partition(".")
        assert callable(getattr(import_module(f"rungwise_aws.{module}"), function))


def test_an_unknown_verb_and_a_machine_without_description_end_in_one_line(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert main(["dance"]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m rungwise_aws token|")
    monkeypatch.setattr("rungwise_aws.__main__.MACHINE_FILE", tmp_path / "machine.json")
    assert main(["token"]) == 2
    assert "cannot read the config" in caplog.text


def test_verbs_start_without_what_they_do_not_need() -> None:
    """Of all, in one process: first those without Ray, then with it."""
    modules = [f"rungwise_aws.{name}" for name in ("token", "scratch", "tracking_server")]
    code = f"import sys, rungwise_aws.__main__, {', '.join(modules)}; "
    code += "assert not {'ray', 'botocore'} & set(sys.modules); "
    code += "import rungwise_aws.notice, rungwise_aws.ray_node; "
    code += "assert not {'torch', 'mlflow', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_metadata_service_is_asked_within_a_session(said: Path) -> None:
    (said / "placement").mkdir()
    (said / "placement/availability-zone").write_text("eu-central-1a")
    metadata = InstanceMetadata()
    assert metadata.get("placement/availability-zone") == "eu-central-1a"
    assert metadata.get("spot/instance-action") is None
    metadata._session = "ended"
    assert metadata.get("placement/availability-zone") == "eu-central-1a"


def test_a_machine_without_an_identity_says_what_is_missing(said: Path) -> None:
    (said / "instance-id").write_text("i-1")
    with pytest.raises(UserError, match="has no local-ipv4"):
        ray_node.read_identity(InstanceMetadata())


def test_the_head_makes_the_token_once_and_every_machine_writes_the_same(
    secrets_manager: Any, tmp_path: Path
) -> None:
    arn = secrets_manager.create_secret(Name="token")["ARN"]
    head, worker = described("head", token_secret=arn), described("worker", token_secret=arn)
    for machine, name in ((head, "head"), (head, "again"), (worker, "worker")):
        token.provide_token(machine, tmp_path / name, USER)
    (made,) = {(tmp_path / name).read_text() for name in ("head", "again", "worker")}
    assert len(made) == 64
    assert made == secrets_manager.get_secret_value(SecretId=arn)["SecretString"]
    assert stat.S_IMODE((tmp_path / "head").stat().st_mode) == 0o600
    secrets_manager.put_secret_value(SecretId=arn, SecretString="new")
    for machine in (head, worker):
        token.provide_token(machine, tmp_path / "rebooted", USER)
        assert (tmp_path / "rebooted").read_text() == "new"


def test_a_worker_waits_until_the_head_has_made_the_token(
    secrets_manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = secrets_manager.create_secret(Name="token")["ARN"]
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            secrets_manager.put_secret_value(SecretId=arn, SecretString="made")

    monkeypatch.setattr("rungwise_aws.token.time.sleep", sleep)
    token.provide_token(described("worker", token_secret=arn), tmp_path / "token", USER)
    assert len(slept) == 3
    assert (tmp_path / "token").read_text() == "made"


def test_a_secret_that_is_refused_is_an_error_and_not_an_empty_secret(secrets_manager: Any) -> None:
    made = secrets_manager.create_secret(Name="token", SecretString="x")
    secrets_manager.delete_secret(SecretId="token")
    with pytest.raises(UserError, match="cannot read the secret"):
        read_secret(made["ARN"], REGION)


def test_a_private_file_is_never_readable_by_others_not_even_over_an_older_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_worker_joins_by_its_description_and_its_identity() -> None:
    machine = described("worker")
    this = ray_node.Identity("i-1", "10.0.0.7", "eu-central-1a")
    node = ray_node.describe_node(machine, this, Path("/scratch"), "10.0.0.2:6379", None)
    command = " ".join(ray_start.start_command(node))
    for part in (
        "--address 10.0.0.2:6379",
        "--node-ip-address 10.0.0.7",
        "--temp-dir /scratch/ray",
        "--num-cpus 8 --num-gpus 1",
        "--labels disk=nvme",
    ):
        assert part in command
    variables = ray_node.ray_variables(machine, this)
    assert variables["RAY_CLOUD_INSTANCE_ID"] == "i-1"
    assert variables["RAY_NODE_TYPE_NAME"] == "gpu"
    assert variables["RAY_NODE_MARKET_TYPE"] == "spot"
    assert variables["MLFLOW_TRACKING_URI"] == "http://tracking.demo.internal:5000"
    assert variables["RUNGWISE_ROOT"] == "s3://demo-bucket/rungwise"
    assert "RAY_enable_autoscaler_v2" not in variables


def test_the_head_starts_the_cluster_with_the_autoscaler() -> None:
    machine = described("head")
    this = ray_node.Identity("i-1", "10.0.0.2", "eu-central-1a")
    node = ray_node.describe_node(machine, this, Path("/scratch"), None, Path("/run/a.yaml"))
    command = " ".join(ray_start.start_command(node))
    assert "--head" in command
    assert "--autoscaling-config /run/a.yaml" in command
    assert "--num-cpus 0" in command
    assert ray_node.ray_variables(machine, this)["RAY_enable_autoscaler_v2"] == "1"


def test_the_server_finds_the_password_in_a_file_alone(
    secrets_manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.dumps({"username": "mlflow", "password": PASSWORD, "engine": "postgres"})
    arn = secrets_manager.create_secret(Name="database", SecretString=value)["ARN"]
    database = Database(host="db.internal", port=5433, name="runs", secret=arn)
    machine = described("tracking", database=database.model_dump())
    started: list[Any] = []
    monkeypatch.setattr(
        "rungwise_aws.tracking_server.os.execve", lambda *called: started.extend(called)
    )
    tracking_server.become_server(machine, tmp_path)
    _, command, variables = started
    assert PASSWORD not in " ".join(command)
    assert PASSWORD not in "".join(variables.values())
    assert Path(variables["PGPASSFILE"]).read_text() == "db.internal:5433:runs:mlflow:a\\:b\\\\c\n"
    uri = make_url(command[command.index("--backend-store-uri") + 1])
    assert uri.render_as_string().startswith("postgresql+psycopg2://mlflow@db.internal:5433/runs?")
    assert uri.query == {"sslmode": "verify-full", "sslrootcert": f"{sys.prefix}/rds-ca.pem"}
    assert command[command.index("--allowed-hosts") + 1].split(",") == machine.allowed_hosts
    destination = command[command.index("--artifacts-destination") + 1]
    assert destination == "s3://demo-bucket/rungwise/mlflow"


@pytest.mark.parametrize("value", ["planted-secret", '["planted-secret"]', '{"password": "x"}'])
def test_a_database_secret_of_another_form_is_refused_without_showing_it(
    secrets_manager: Any, tmp_path: Path, value: str
) -> None:
    arn = secrets_manager.create_secret(Name="database", SecretString=value)["ARN"]
    machine = described("tracking", database={"host": "db", "secret": arn})
    with pytest.raises(UserError, match="must hold JSON with username and password") as raised:
        tracking_server.write_password(machine, tmp_path)
    assert "planted" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_prometheus_finds_nodes_with_the_token_file_and_stays_on_loopback(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    for resources, expected in (({"CPU": 8.0}, {"ray"}), ({"GPU": 8.0}, {"ray", "dcgm"})):
        group = {"autoscaling_group": "asg", "maximum": 2, "resources": resources}
        head = described("head", token_secret="arn", scaling={"groups": {"workers": group}})
        command = prometheus.prometheus_command(head, file, tmp_path / "data")
        assert "--web.listen-address=127.0.0.1:9090" in command
        jobs = {job["job_name"]: job for job in yaml.safe_load(file.read_text())["scrape_configs"]}
        assert set(jobs) == expected
        (discovery,) = jobs["ray"]["http_sd_configs"]
        assert discovery["url"] == "http://127.0.0.1:8265/api/prometheus/sd"
        assert discovery["authorization"]["credentials_file"] == str(token.TOKEN_FILE)


def test_ray_is_told_where_a_browser_finds_grafana(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))
    assert prometheus.dashboard_variables() == {
        "RAY_PROMETHEUS_HOST": "http://127.0.0.1:9090",
        "RAY_GRAFANA_HOST": "http://127.0.0.1:3000",
        "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": f"{tmp_path}/grafana/ray-boards",
    }


def disk(path: str, model: str | None, **changes: Any) -> dict[str, Any]:
    """An entry of `lsblk --json`."""
    entry = {"path": path, "model": model, "type": "disk", "fstype": None, "label": None}
    return entry | {"mountpoints": [None]} | changes


STORE = "Amazon EC2 NVMe Instance Storage        "
ROOT = disk(
    "/dev/nvme0n1",
    "Amazon Elastic Block Store",
    children=[disk("/dev/nvme0n1p1", None, type="part", fstype="ext4", mountpoints=["/"])],
)


@pytest.mark.parametrize(
    ("disks", "has_mdadm", "expected"),
    [
        ([ROOT], True, []),
        (
            [ROOT, disk("/dev/nvme1n1", STORE)],
            True,
            ["mkfs.ext4 .* /dev/nvme1n1$", "mount .* /dev/nvme1n1 /scratch$"],
        ),
        (
            [ROOT, disk("/dev/nvme1n1", STORE), disk("/dev/nvme2n1", STORE)],
            True,
            [
                "mdadm --create /dev/md/rungwise .*=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1$",
                "mkfs.ext4 .* /dev/md/rungwise$",
                "mount .* /dev/md/rungwise /scratch$",
            ],
        ),
        (
            [disk("/dev/nvme1n1", STORE), disk("/dev/nvme2n1", STORE)],
            False,
            ["mkfs.ext4 .* /dev/nvme1n1$", "mount .* /dev/nvme1n1 /scratch$"],
        ),
        (  # after a reboot: the array is there by another name
            [
                disk(
                    f"/dev/nvme{number}n1",
                    STORE,
                    fstype="linux_raid_member",
                    children=[
                        disk("/dev/md127", None, type="raid0", fstype="ext4", label="rungwise")
                    ],
                )
                for number in (1, 2)
            ],
            True,
            ["mount .* /dev/md127 /scratch$"],
        ),
        (  # the Deep Learning AMI has mounted it
            [
                disk(
                    "/dev/nvme1n1",
                    STORE,
                    fstype="LVM2_member",
                    children=[
                        disk("/dev/dm-0", None, fstype="ext4", mountpoints=["/opt/dlami/nvme"])
                    ],
                )
            ],
            True,
            [
                "mkdir --parents /opt/dlami/nvme/rungwise$",
                "mount --bind /opt/dlami/nvme/rungwise /scratch$",
            ],
        ),
        # Somebody's data is never formatted.
        ([disk("/dev/nvme1n1", STORE, fstype="xfs", label="data")], True, []),
        ([disk("/dev/nvme1n1", "Amazon Elastic Block Store")], True, []),
    ],
)
def test_scratch_lies_on_the_instance_store_that_is_empty_or_ours(
    disks: list[dict[str, Any]], has_mdadm: bool, expected: list[str]
) -> None:
    state = scratch.find_disks(json.dumps({"blockdevices": disks}))
    commands = [
        " ".join(command) for command in scratch.plan_mount(state, Path("/scratch"), has_mdadm)
    ]
    assert len(commands) == len(expected), commands
    for command, pattern in zip(commands, expected, strict=True):
        assert re.match(pattern, command), command


def test_lsblk_of_this_machine_can_be_read() -> None:
    if shutil.which("lsblk") is None:
        pytest.skip("there is no lsblk here")
    scratch.find_disks(scratch._run("lsblk", "--json", "--output", scratch._COLUMNS))


def test_a_formatted_disk_is_found_again_by_its_label(tmp_path: Path) -> None:
    """The real mkfs, on a file; blkid reads as lsblk does."""
    if shutil.which("mkfs.ext4") is None or shutil.which("blkid") is None:
        pytest.skip("needs mkfs.ext4 and blkid")
    image = tmp_path / "disk"
    with image.open("wb") as stream:
        stream.truncate(16 << 20)
    make, _mount = scratch.plan_mount(scratch.Disks((str(image),), None, None), tmp_path, False)
    subprocess.run(make, check=True, capture_output=True)
    command = ["blkid", "--probe", "--output", "export", str(image)]
    read = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "LABEL=rungwise" in read
    assert "TYPE=ext4" in read


@dataclass
class FakeCluster:
    """Ray's nodes of this machine, and what was drained."""

    nodes: list[str]
    drained: list[tuple[str, notice.Notice]] = field(default_factory=list)
    fails: int = 0

    def list_nodes(self) -> list[str]:
        return self.nodes

    def drain(self, node: str, notice: notice.Notice) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no answer")
        self.drained.append((node, notice))


ACTION = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'  # AWS's own example


def watched(said: Path, cluster: FakeCluster) -> notice.Watch:
    (said / "spot").mkdir()
    return notice.Watch(InstanceMetadata(), cluster)


def test_a_notice_drains_each_node_once_also_one_that_came_after_it(said: Path) -> None:
    cluster = FakeCluster(["a"])
    watch = watched(said, cluster)
    watch.check()
    assert cluster.drained == []
    (said / "spot/instance-action").write_text(ACTION)
    watch.check()
    watch.check()
    assert cluster.drained == [("a", notice.Notice("terminate", 1505722920.0))]
    cluster.nodes = ["b"]
    watch.check()
    assert [node for node, _ in cluster.drained] == ["a", "b"]


def test_a_drain_that_failed_is_tried_again(said: Path) -> None:
    cluster = FakeCluster(["a"], fails=1)
    watch = watched(said, cluster)
    (said / "spot/instance-action").write_text(ACTION)
    with pytest.raises(RuntimeError):
        watch.check()
    watch.check()
    assert [node for node, _ in cluster.drained] == ["a"]


def test_a_recommendation_to_rebalance_is_told_once_and_drains_nothing(
    said: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rungwise_aws")
    cluster = FakeCluster(["a"])
    watch = watched(said, cluster)
    (said / "events/recommendations").mkdir(parents=True)
    (said / "events/recommendations/rebalance").write_text('{"noticeTime": "2026-01-01T00:00:00Z"}')
    watch.check()
    watch.check()
    assert caplog.text.count("raised risk") == 1
    assert cluster.drained == []


class FakeGroups:
    """Autoscaling groups that note who leaves, or refuse it."""

    def __init__(self, refuses: bool = False) -> None:
        self.left: list[dict[str, Any]] = []
        self.refuses = refuses

    def terminate_instance_in_auto_scaling_group(self, **request: Any) -> None:
        self.left.append(request)
        if self.refuses:
            error = {"Error": {"Code": "ValidationError", "Message": "below the minimum size"}}
            raise ClientError(error, "TerminateInstanceInAutoScalingGroup")  # pyright: ignore


@pytest.mark.parametrize("refuses", [False, True])
def test_a_worker_leaves_when_its_head_is_gone_for_long_and_not_before(
    said: Path, refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (said / "instance-id").write_text("i-0123")
    groups = FakeGroups(refuses)
    worker = described("worker", head_address="127.0.0.1", headless_minutes=0.4 / 60)
    head = socket.create_server(("127.0.0.1", 0))
    port = head.getsockname()[1]
    thread = threading.Thread(target=leave_without_head, args=(worker, port, 0.05, groups))
    with caplog.at_level("INFO", "rungwise_aws"):
        thread.start()
        thread.join(0.8)  # twice as long as a head may be gone
        assert thread.is_alive()
        head.close()
        time.sleep(0.15)
        again = socket.create_server(("127.0.0.1", port))  # a restart of the head is no end
        thread.join(0.6)
        assert thread.is_alive()
        assert groups.left == []
        again.close()
        thread.join(10)
    assert not thread.is_alive()
    assert groups.left == [{"InstanceId": "i-0123", "ShouldDecrementDesiredCapacity": True}]
    assert ("may start another one" in caplog.text) == refuses


_JOURNALCTL = r"""#!/bin/bash
after=0
for word; do case $word in --after-cursor=*) after=${word#*=s=} ;; esac; done
tail --lines=+$((after + 1)) "$LINES_THERE"
last=$(wc --lines <"$LINES_THERE")
((last == 0)) || echo "-- cursor: s=$last"
"""


def test_a_journal_is_copied_once_and_what_could_not_be_copied_later(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said / "instance-id").write_text("i-0123")
    program, lines = tmp_path / "bin" / "journalctl", tmp_path / "lines"
    program.parent.mkdir()
    program.write_text(_JOURNALCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LINES_THERE", str(lines))
    folder, cursor = Folder.at(tmp_path / "bucket"), tmp_path / "cursor"
    lines.write_text("one\ntwo\n")
    (tmp_path / "bucket").write_text("in the way")
    journal.copy_entries(folder, cursor)
    (tmp_path / "bucket").unlink()
    for more in ("three\n", "", "four\n", ""):
        with lines.open("a") as file:
            file.write(more)
        journal.copy_entries(folder, cursor)
    assert [folder.read_bytes(name) for name in folder.names()] == [b"one\ntwo\nthree\n", b"four\n"]
