"""The rendered user data, run for real: a head, workers and a tracking machine, each a systemd.

Stand-ins, since there is no AWS here: the metadata service and moto's S3, Secrets Manager and
autoscaling groups (tests/infra/services.py), PostgreSQL for RDS, /etc/hosts for the private zone.
The package holds the real rungwise and pip; all other wheels are one that points to this
environment. Everything else is what runs on EC2: the user data as Terraform renders it, its script
and units under systemd, curl, Ray with its autoscaler, MLflow, Prometheus.
"""

import contextlib
import json
import re
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY, made_up_sentences, small_recipe, write_recipe
from tests.infra.cluster import (
    BUCKET,
    HEAD,
    PASSWORD,
    REGION,
    SECRET_KEY,
    TRACKING,
    TRACKING_URI,
    Cluster,
    missing,
)
from tests.infra.machines import NETWORK, Machine
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORKERS = {"worker-1": f"{NETWORK}.11", "worker-2": f"{NETWORK}.12"}
ARTIFACTS = f"s3://{BUCKET}/rungwise"
RESOURCES = {"CPU": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers of one group, the second as on spot; nothing is waited for but joining."""
    if reason := missing():
        pytest.skip(reason)
    made = Cluster()
    try:
        made.open()
        ids = _autoscaling_group(made)
        database = {"host": f"{NETWORK}.1", "name": "postgres", "secret": made.start_database()}
        hosts = ["tracking.demo.internal", "tracking.demo.internal:*", "127.0.0.1:*"]
        tracking = {"role": "tracking", "artifact_uri": ARTIFACTS, "database": database}
        made.add("tracking", TRACKING, tracking | {"allowed_hosts": hosts}, "i-tracking")
        group = {"autoscaling_group": "demo-cpu", "minimum": 2, "maximum": 2}
        groups = {"cpu": group | {"resources": RESOURCES}}
        head = {"role": "head", "resources": {"CPU": 0}, "scaling": {"groups": groups}}
        made.add("head", HEAD, _ray_machine(made) | head, "i-head")
        for (name, address), instance_id in zip(WORKERS.items(), ids, strict=True):
            spot = name == "worker-2"
            made.add(name, address, worker(made) | {"spot": spot}, instance_id)
        wait_until("the nodes", lambda: len(alive(made)) == 3, 450)
        yield made
    finally:
        print(*(f"{name}:\n{machine.tail()}" for name, machine in made.machines.items()))
        made.close()


def _autoscaling_group(cluster: Cluster) -> list[str]:
    image = cluster.aws("ec2", "describe_images")["Images"][0]["ImageId"]
    launch = {"ImageId": image, "InstanceType": "t3.small", "LaunchConfigurationName": "demo"}
    cluster.aws("autoscaling", "create_launch_configuration", **launch)
    sizes = {"MinSize": 2, "MaxSize": 2, "DesiredCapacity": 2}
    group = {"AutoScalingGroupName": "demo-cpu", "LaunchConfigurationName": "demo", **sizes}
    zones = [f"{REGION}a"]
    cluster.aws("autoscaling", "create_auto_scaling_group", AvailabilityZones=zones, **group)
    groups = cluster.aws("autoscaling", "describe_auto_scaling_groups")["AutoScalingGroups"]
    return [instance["InstanceId"] for instance in groups[0]["Instances"]]


def _ray_machine(cluster: Cluster) -> dict[str, Any]:
    return {
        "token_secret": cluster.token_secret,
        "tracking_uri": TRACKING_URI,
        "artifact_uri": ARTIFACTS,
    }


def worker(cluster: Cluster) -> dict[str, Any]:
    """What a worker of the group is told."""
    own = {"role": "worker", "head_address": "head.demo.internal", "group": "cpu"}
    return _ray_machine(cluster) | own | {"resources": RESOURCES, "labels": {"disk": "none"}}


def alive(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Ray's living nodes by their addresses."""
    return {node["NodeManagerAddress"]: node for node in cluster.nodes() if node["Alive"]}


def ray_log(cluster: Cluster, name: str) -> str:
    """A log of Ray on the head."""
    return cluster.machines["head"].run("cat", f"/scratch/ray/session_latest/logs/{name}").stdout


def token(cluster: Cluster) -> str:
    secret = cluster.aws("secretsmanager", "get_secret_value", SecretId=cluster.token_secret)
    return secret["SecretString"]


def test_the_token_made_on_the_head_reaches_every_machine_and_its_user_alone(
    cluster: Cluster,
) -> None:
    made = token(cluster)
    assert re.fullmatch("[0-9a-f]{64}", made)
    for name in ("head", *WORKERS):
        machine = cluster.machines[name]
        path = machine.root / "etc/rungwise/token"
        assert path.read_text() == made
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        owner = machine.run("stat", "--format=%U", "/etc/rungwise/token").stdout.strip()
        assert owner == "rungwise"
    versions = cluster.aws(
        "secretsmanager", "list_secret_version_ids", SecretId=cluster.token_secret
    )
    assert len(versions["Versions"]) == 1


def test_nodes_have_the_resources_and_labels_of_their_groups(cluster: Cluster) -> None:
    nodes = alive(cluster)
    assert set(nodes) == {HEAD, *WORKERS.values()}
    assert "CPU" not in nodes[HEAD]["Resources"]
    for name, address in WORKERS.items():
        assert nodes[address]["Resources"]["CPU"] == 2
        labels = nodes[address]["Labels"]
        assert labels["ray.io/node-group"] == "cpu"
        assert labels["ray.io/market-type"] == ("spot" if name == "worker-2" else "on-demand")
        assert labels["ray.io/availability-zone"] == f"{REGION}a"
        assert labels["disk"] == "none"
    assert cluster.machines["worker-1"].state("rungwise-notice") == "inactive"
    assert cluster.machines["worker-2"].state("rungwise-notice") == "active"


def test_rays_autoscaler_runs_on_the_head_and_knows_the_machines_of_the_group(
    cluster: Cluster,
) -> None:
    running = r"->RAY_RUNNING \(id=[^,]*, type=cpu"
    wait_until(
        "the autoscaler", lambda: len(re.findall(running, ray_log(cluster, "monitor.log"))) == 2, 60
    )


@pytest.mark.parametrize(
    "path", ["/api/version", "/api/jobs/", "/api/prometheus/sd", "/nodes?view=summary"]
)
def test_the_dashboard_answers_on_the_heads_loopback_and_with_the_token_only(
    cluster: Cluster, path: str
) -> None:
    def status(machine: str, host: str, *options: str) -> str:
        url = f"http://{host}:8265{path}"
        code = ["--output", "/dev/null", "--write-out", "%{http_code}"]
        done = cluster.machines[machine].run("/usr/bin/curl", "--silent", *code, *options, url)
        return done.stdout

    right = ["--header", f"Authorization: Bearer {token(cluster)}"]
    wrong = ["--header", f"Authorization: Bearer {'0' * 64}"]
    assert status("head", "127.0.0.1", *right) == "200"
    assert status("head", "127.0.0.1") == "401"
    assert status("head", "127.0.0.1", *wrong) == "403"
    for machine in ("head", "worker-1"):
        assert status(machine, HEAD, *right) == "000"  # no connection


_ASK = """
for url in "$@"; do for method in GET POST; do
  status=$(/usr/bin/curl --silent --max-time 5 --request $method --output /tmp/answer \\
    --write-out '%{http_code}' "$url")
  case $status in 2*) echo "$method $url $(head --bytes=30 /tmp/answer | tr '\\n' ' ')" ;; esac
done; done
"""


def test_no_port_of_the_head_gives_a_stranger_more_than_metrics(cluster: Cluster) -> None:
    """Every port that another machine reaches, asked for what Ray's servers have over HTTP."""
    listed = cluster.machines["head"].run("ss", "--listening", "--tcp", "--numeric", "--no-header")
    ports = {line.split()[3] for line in listed.stdout.splitlines()}
    reached = {port.rpartition(":")[2] for port in ports if not port.startswith("127.0.0.1:")}
    assert {"6379", "8080"} <= reached
    paths = ("/", "/api/version", "/api/jobs/", "/api/job_agent/jobs/", "/nodes?view=summary")
    paths += ("/api/local_raylet_healthz", "/get_or_create_runtime_env", "/get_runtime_envs_info")
    urls = [f"http://{HEAD}:{port}{path}" for port in sorted(reached) for path in paths]
    asked = cluster.machines["worker-1"].run("bash", "-c", _ASK, "ask", *urls, timeout=500)
    answers = [line.split(maxsplit=2) for line in asked.stdout.splitlines()]
    assert answers, asked
    # Servers of metrics have them under every path; the other one says that the raylet lives.
    more = [found for found in answers if not found[2].startswith(("# HELP", "success"))]
    assert not more


@pytest.mark.parametrize("authentication", ["wrong token", "no token", "disabled"])
def test_a_machine_without_the_token_neither_joins_nor_asks(
    cluster: Cluster, authentication: str
) -> None:
    stranger = cluster.machines.get("stranger") or Machine(
        "stranger", f"{NETWORK}.66", cluster.network, cluster.folder
    )
    cluster.machines["stranger"] = stranger
    (stranger.root / "tmp/token").write_text("0" * 64)
    environment = {
        "PYTHONPATH": "/usr/local/packages",
        "RAY_AUTH_MODE": "disabled" if authentication == "disabled" else "token",
        "HOME": "/tmp",
    }
    if authentication == "wrong token":
        environment["RAY_AUTH_TOKEN_PATH"] = "/tmp/token"
    ray = ["/usr/local/python/bin/python3", "-m", "ray.scripts.scripts"]
    before = set(alive(cluster))
    joined = stranger.run(
        "timeout",
        "60",
        *ray,
        *("start", "--address", f"{HEAD}:6379", "--node-ip-address", stranger.address),
        environment=environment,
    )
    assert joined.returncode != 0, joined.stdout + joined.stderr
    code = f"from ray._raylet import GcsClient; print(GcsClient(address='{HEAD}:6379')"
    code += ".get_all_node_info(timeout=10))"
    asked = stranger.run("timeout", "60", *ray[:1], "-c", code, environment=environment)
    assert asked.returncode != 0, asked.stdout
    code = f"import ray; ray.init('ray://{HEAD}:10001'); print(ray.nodes())"
    asked = stranger.run("timeout", "60", *ray[:1], "-c", code, environment=environment)
    assert asked.returncode != 0, asked.stdout
    assert set(alive(cluster)) == before


def test_prometheus_scrapes_every_node(cluster: Cluster) -> None:
    head = cluster.machines["head"]
    if not (head.root / "usr/bin/prometheus").exists():
        pytest.skip("there is no /usr/bin/prometheus here; the unit passes over it")

    def up() -> set[str]:
        answer = head.run("curl", "--silent", "http://127.0.0.1:9090/api/v1/targets?state=active")
        targets = json.loads(answer.stdout or "{}").get("data", {}).get("activeTargets", [])
        urls = {target["scrapeUrl"] for target in targets if target["health"] == "up"}
        return {re.sub("http://(.*):.*", r"\1", url) for url in urls}

    wait_until("all targets", lambda: {HEAD, *WORKERS.values()} <= up(), 90)


def test_mlflow_keeps_runs_in_postgresql_and_answers_to_its_names_only(cluster: Cluster) -> None:
    head = cluster.machines["head"]
    url = f"{TRACKING_URI}/api/2.0/mlflow/experiments/create"
    body = ["--header", "Content-Type: application/json", "--data", '{"name": "by hand"}']
    wait_until("MLflow", lambda: not head.run("curl", "-sf", f"{TRACKING_URI}/health").returncode)
    created = head.run("/usr/bin/curl", "--silent", *body, url)
    assert "experiment_id" in created.stdout, created
    other = url.replace("tracking.demo.internal", TRACKING)
    assert "Invalid Host header" in head.run("/usr/bin/curl", "--silent", *body, other).stdout
    passfile = cluster.machines["tracking"].root / "run/rungwise-mlflow/pgpass"
    assert stat.S_IMODE(passfile.stat().st_mode) == 0o600
    assert "planted" in passfile.read_text()


def test_a_rotated_password_is_written_anew(cluster: Cluster) -> None:
    tracking = cluster.machines["tracking"]
    passfile = tracking.root / "run/rungwise-mlflow/pgpass"
    before = passfile.read_text()

    def put(password: str) -> None:
        value = json.dumps({"username": "mlflow", "password": password})
        cluster.aws("secretsmanager", "put_secret_value", SecretId="database", SecretString=value)

    assert tracking.state("rungwise-password.timer") == "active"
    put("planted-rotated")
    tracking.run("systemctl", "start", "rungwise-password").check_returncode()
    assert passfile.read_text() == before.rpartition(":planted")[0] + ":planted-rotated\n"
    put(PASSWORD)
    tracking.run("systemctl", "start", "rungwise-password").check_returncode()
    assert passfile.read_text() == before


def test_journals_lie_in_the_bucket_of_every_machine(cluster: Cluster) -> None:
    """Those of Ray and MLflow in the first minute; of a machine that ends, also its last words."""

    def copied(machine: str) -> str:
        prefix = f"rungwise/journals/{machine}/"
        found = cluster.aws("s3", "list_objects_v2", Bucket=BUCKET, Prefix=prefix)
        keys = [entry["Key"] for entry in found.get("Contents", [])]
        bodies = [cluster.aws("s3", "get_object", Bucket=BUCKET, Key=key)["Body"] for key in keys]
        return "".join(cluster.network.call(body.read).decode() for body in bodies)

    for machine, word in (("head-i-head", "rungwise-install"), ("tracking-i-tracking", "mlflow")):
        wait_until(machine, lambda machine=machine, word=word: word in copied(machine), 120)
    tracking = cluster.machines["tracking"]
    tracking.run("systemd-run", "--unit=rungwise-last", "echo", "last words").check_returncode()
    tracking.run("systemctl", "restart", "rungwise-journal").check_returncode()
    said = [line for line in copied("tracking-i-tracking").splitlines() if "echo[" in line]
    assert [line.rpartition("]: ")[2] for line in said] == ["last words"]


def test_running_the_user_data_again_changes_nothing(cluster: Cluster) -> None:
    head = cluster.machines["head"]

    def running() -> str:
        properties = ["--property=MainPID", "--property=ActiveEnterTimestampMonotonic"]
        return head.run("systemctl", "show", *properties, "rungwise-ray").stdout

    before, first = running(), token(cluster)
    head.run("systemctl", "restart", "user-data").check_returncode()
    assert running() == before
    again = head.run("/usr/local/sbin/rungwise-install")
    assert again.returncode == 0
    assert "is installed" in again.stdout
    assert token(cluster) == first


def test_a_package_with_another_sum_is_refused(cluster: Cluster) -> None:
    other = "0" * 64
    machine = cluster.add("mismatch", f"{NETWORK}.77", worker(cluster), "i-mismatch", sha256=other)
    wait_until("the refusal", lambda: machine.state("rungwise-install") == "failed")
    said = machine.journal("--unit=rungwise-install")
    assert f"has the SHA-256 {cluster.package['sha256']}, expected {other}" in said
    assert not (machine.root / "opt/rungwise").exists()
    assert machine.state("rungwise-ray") == "inactive"


def commands(machine: Machine) -> Iterator[str]:
    """The command lines of its processes, but of those that end meanwhile."""
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):
            yield " ".join(process.cmdline())


def test_a_job_goes_on_when_a_machine_is_lost_in_the_middle(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Three workers of a training on two machines of two CPUs, and one loses its power."""
    steps = 1500
    folder = cluster.machines["head"].root / "var/lib/rungwise/job"
    folder.mkdir()
    for name in ("platform", "workflows"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for number in range(60):
        text = "\n\n".join(made_up_sentences(number, 30))
        key = f"text/{number}.txt"
        cluster.aws("s3", "put_object", Bucket=BUCKET, Key=key, Body=text.encode())
    recipe = small_recipe(Path("artifacts"), Path("text"))
    recipe["corpus"]["sources"] = [{"kind": "text", "paths": [f"s3://{BUCKET}/text"]}]
    recipe["pretrain"] |= {"steps": steps, "global_batch_size": 24, "validation_every_steps": 500}
    recipe["compute"] |= {
        "num_workers": 3,
        "min_workers": 1,
        "micro_batch_size": 4,
        "checkpoint_every_steps": 50,
    }
    write_recipe(folder / "recipe.yaml", recipe)
    log = tmp_path / "job.log"
    submit = ["/opt/rungwise/bin/ray", "job", "submit", "--address", "http://127.0.0.1:8265"]
    submit += ["--working-dir", "/var/lib/rungwise/job", "--"]
    job = cluster.machines["head"].start(
        *submit,
        *("python", "workflows/pretrain.py", "recipe.yaml"),
        log=log,
        environment=cluster.user_environment(),
    )

    def training() -> dict[str, int]:
        """Workers of the training by machine."""
        assert job.poll() is None, log.read_text()
        return {
            name: sum("RayTrainWorker" in command for command in commands(cluster.machines[name]))
            for name in ("head", *WORKERS)
        }

    def saved() -> set[str]:
        assert job.poll() is None, log.read_text()
        found = cluster.aws("s3", "list_objects_v2", Bucket=BUCKET, Prefix="rungwise/artifacts")
        keys = {entry["Key"] for entry in found.get("Contents", [])}
        # Its record is written last: without it a checkpoint is none.
        return {key for key in keys if "/pretrain/" in key and key.endswith("/checkpoint.json")}

    # It may begin with two, before the machines are free for three.
    wait_until("three workers", lambda: sum(training().values()) == 3, 500)
    before = saved()
    wait_until("a checkpoint of theirs", lambda: bool(saved() - before), 500)
    spread = training()
    assert sorted(spread.values()) == [0, 1, 2], spread
    assert spread["head"] == 0
    cluster.machines["worker-1"].kill()
    try:
        assert job.wait(500) == 0
    finally:
        print(log.read_text())
    found = cluster.aws("s3", "list_objects_v2", Bucket=BUCKET, Prefix="rungwise/artifacts")
    (key,) = [
        entry["Key"]
        for entry in found["Contents"]
        if "/pretrain/" in entry["Key"] and entry["Key"].endswith("/artifact.json")
    ]
    body = cluster.aws("s3", "get_object", Bucket=BUCKET, Key=key)["Body"]
    record = json.loads(cluster.network.call(body.read))
    assert record["summary"]["gradient"]["steps"] == steps
    attempts = record["summary"]["gradient"]["attempts"]
    assert attempts[0]["step"] == 0
    assert max(attempt["workers"] for attempt in attempts[:-1]) == 3, attempts
    assert attempts[-1]["workers"] < 3
    assert 0 < attempts[-1]["step"] < steps
    run = record["mlflow_run_id"]
    url = f"{TRACKING_URI}/api/2.0/mlflow/runs/get?run_id={run}"
    answer = cluster.machines["head"].run("/usr/bin/curl", "--silent", url).stdout
    assert json.loads(answer)["run"]["info"]["status"] == "FINISHED"


def test_a_notice_of_interruption_drains_the_node(cluster: Cluster) -> None:
    machine, address = cluster.machines["worker-2"], WORKERS["worker-2"]
    node = alive(cluster)[address]["NodeID"]
    deadline = (datetime.now(UTC) + timedelta(seconds=120)).replace(microsecond=0)
    said = {"action": "terminate", "time": deadline.strftime("%Y-%m-%dT%H:%M:%SZ")}
    cluster.announce(address, "spot/instance-action", json.dumps(said))
    wait_until("the drain", lambda: f"node {node} drains" in cluster.journal("worker-2"), 30)
    expected = {node: round(deadline.timestamp()) * 1000}
    # It drains until the deadline, or goes at once if nothing is left on it.

    def drains_or_is_gone() -> bool:
        there = alive(cluster)
        assert HEAD in there, "the head does not answer"
        return cluster.draining() == expected or address not in there

    wait_until("Ray's word", drains_or_is_gone, 60)
    time.sleep(5)  # two looks more
    assert machine.journal("--unit=rungwise-notice").count(" drains") == 1


def test_no_secret_is_where_others_could_read_it(cluster: Cluster) -> None:
    """Planted and real ones: in journals, Ray's logs, arguments, variables, descriptions, state."""
    secrets = {
        "token": token(cluster),
        "password": PASSWORD,
        "rotated password": "planted-rotated",
        "key of the role": SECRET_KEY,
        "session of the role": "planted-session-token-of-the-role",
    }

    def assert_none(text: str, where: str) -> None:
        found = [name for name, secret in secrets.items() if secret in text]
        assert not found, f"{found} in {where}"

    journals = 0
    for name, user_data in cluster.user_data.items():
        assert_none(user_data, f"the user data of {name}")
        machine = cluster.machines[name]
        if not machine.running:
            continue
        journal = machine.journal()
        assert "curl --config - --fail" in journal  # the arguments of every curl are there
        assert_none(journal, f"the journal of {name}")
        journals += 1
        assert_none((machine.root / "etc/rungwise/machine.json").read_text(), "machine.json")
        for process in machine.processes():
            assert_none(" ".join(process.cmdline()), f"arguments of {name}")
            assert_none(str(process.environ()), f"variables of {process.name()} on {name}")
        for path in (machine.root / "scratch").rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert_none(path.read_bytes().decode(errors="replace"), f"{path} of {name}")
    assert journals >= 3
    for state in cluster.folder.glob("render-*/terraform.tfstate"):
        assert_none(state.read_text(), str(state))
