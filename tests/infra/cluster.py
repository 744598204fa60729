"""A cluster of tests/infra/machines.py, from what infra/ makes: the package, the user data."""

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import botocore.session
import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.infra.machines import (
    NETWORK,
    SERVICES,
    Machine,
    Network,
    end_with_parent,
    reason_to_skip,
)
from tests.infra.services import AWS
from tests.waiting import wait_until

REGION = "eu-central-1"
BUCKET = "demo-bucket"
HEAD = f"{NETWORK}.2"
TRACKING = f"{NETWORK}.3"
TRACKING_URI = "http://tracking.demo.internal:5000"
HOSTS = f"{HEAD} head.demo.internal\n{TRACKING} tracking.demo.internal\n"
PYTHON = "/usr/local/python/bin/python3"
SECRET_KEY = "planted-secret-key-of-the-role-0123456789"
PASSWORD = "planted:password\\of-the-database"
_MODULE = REPOSITORY / "infra/terraform/modules/bootstrap"
_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
# What a machine's services are told here and not on EC2.
ENVIRONMENT = {"AWS_ENDPOINT_URL": AWS, "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.005"}


# Instead of curl on a machine: the journal has the arguments of each call.
_CURL = '#!/bin/bash\necho "curl $*" >&2\nexec /usr/bin/curl "$@"\n'


def missing() -> str | None:
    """Why there can be no cluster here, None if there can."""
    if reason := reason_to_skip():
        return reason
    if tools := [
        tool for tool in ("terraform", "openssl", "runuser", "setpriv") if not shutil.which(tool)
    ]:
        return f"the cluster needs {', '.join(tools)}"
    return None if _POSTGRES else "the cluster needs PostgreSQL below /usr/lib/postgresql"


def made_package(folder: Path) -> Path:
    """infra/package.sh's, of rungwise, pip, and a wheel that stands for all the others.

    That wheel holds a path to this environment's packages, which every machine sees at
    /usr/local/packages, and the command of Ray.
    """
    wheel = _stand_in_wheel(folder)
    made = folder / "package.tar.gz"
    command = [str(REPOSITORY / "infra/package.sh"), str(made), "--no-deps", ".", str(wheel)]
    settings = {"PYTHON": sys.executable, "RDS_CA": (folder / "server.crt").as_uri()}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    if re.search("No matching distribution found for (hatchling|pip)", done.stderr):
        pytest.skip("the package cannot be made: no index has hatchling and pip")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hashlib.sha256(made.read_bytes()).hexdigest()
    return made


def _stand_in_wheel(folder: Path) -> Path:
    info = "environment-1.dist-info"
    files = {
        "environment.pth": "/usr/local/packages\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: environment\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nray = ray.scripts.scripts:main\n",
    }
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.writerow([name, f"sha256={digest.decode()}", len(text)])
    rows.writerow([f"{info}/RECORD", "", ""])
    wheel = folder / "environment-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record.getvalue()}.items():
            archive.writestr(name, text)
    return wheel


def rendered(machine: dict[str, Any], package: dict[str, str], folder: Path) -> str:
    """The user data that Terraform renders from the module."""
    shutil.copytree(_MODULE, folder, ignore=shutil.ignore_patterns("tests", ".terraform*"))
    variables = {"machine": machine, "package": package, "python": PYTHON}
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables))
    environment = os.environ | {"TF_CLI_CONFIG_FILE": os.devnull}
    for command in (["init"], ["apply", "-auto-approve"]):
        done = subprocess.run(
            ["terraform", *command, "-input=false", "-no-color"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(
        ["terraform", "output", "-raw", "user_data"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout


class Cluster:
    """The network, the services, the machines by their names, and what was planted."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))
        self.folder.chmod(0o755)
        self.network = Network()
        self.machines: dict[str, Machine] = {}
        self.user_data: dict[str, str] = {}
        self._processes: list[psutil.Popen] = []
        self._metadata = self.folder / "metadata"

    def open(self) -> None:
        self.network.open()
        self._start_services()
        self._make_certificate()
        package = made_package(self.folder)
        sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
        key = f"packages/{sha256}.tar.gz"
        self.package = {"bucket": BUCKET, "key": key, "sha256": sha256}
        place = {"LocationConstraint": REGION}
        self.aws("s3", "create_bucket", Bucket=BUCKET, CreateBucketConfiguration=place)
        self.aws("s3", "put_object", Bucket=BUCKET, Key=key, Body=package.read_bytes())
        self.token_secret = self.aws("secretsmanager", "create_secret", Name="token")["ARN"]

    def aws(self, service: str, operation: str, **arguments: Any) -> Any:
        """One call of AWS's API from within the network."""

        def call() -> Any:
            client = botocore.session.get_session().create_client(
                service,
                region_name=REGION,
                endpoint_url=AWS,
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
            return getattr(client, operation)(**arguments)

        return self.network.call(call)

    def add(
        self, name: str, address: str, machine: dict[str, Any], instance_id: str, **package: str
    ) -> Machine:
        """Boot a machine and start its user data; `package` replaces parts of the package."""
        said = {
            "instance-id": instance_id,
            "local-ipv4": address,
            "placement/availability-zone": f"{REGION}a",
            "iam/security-credentials/machine": json.dumps(
                {
                    "Code": "Success",
                    "Type": "AWS-HMAC",
                    "AccessKeyId": "ASIAPLANTED",
                    "SecretAccessKey": SECRET_KEY,
                    "Token": "planted-session-token-of-the-role",
                    "LastUpdated": "2026-01-01T00:00:00Z",
                    "Expiration": "2099-01-01T00:00:00Z",
                }
            ),
        }
        for path, text in said.items():
            self.announce(address, path, text)
        machine = {"cluster": "demo", "region": REGION, "environment": ENVIRONMENT} | machine
        folder = self.folder / f"render-{name}"
        self.user_data[name] = rendered(machine, self.package | package, folder)
        self.machines[name] = Machine(name, address, self.network, self.folder, HOSTS)
        curl = self.machines[name].root / "usr/local/sbin/curl"
        curl.write_text(_CURL)
        curl.chmod(0o755)
        self.machines[name].start_user_data(self.user_data[name])
        return self.machines[name]

    def journal(self, name: str) -> str:
        return self.machines[name].journal()

    def announce(self, address: str, path: str, text: str) -> None:
        """Have the metadata service say `text` to the machine with this address."""
        place = self._metadata / address / path
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}")
        part.write_text(text)
        part.replace(place)

    @staticmethod
    def user_environment() -> dict[str, str]:
        """What a person on the head sets to talk to Ray."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": "/etc/rungwise/token",
            "HOME": "/var/lib/rungwise",
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's nodes, dead ones too; none as long as the head does not answer."""
        code = f"import json, ray; ray.init('{HEAD}:6379', log_to_driver=False, "
        return self._on_head(code + "logging_level='ERROR'); print(json.dumps(ray.nodes()))") or []

    def draining(self) -> dict[str, int]:
        """When each draining node will be gone, in milliseconds of the epoch, by its id."""
        code = f"import json; from ray._raylet import GcsClient; c = GcsClient('{HEAD}:6379'); "
        code += "print(json.dumps(c.get_draining_nodes()))"
        found = self._on_head(code)
        assert found is not None, "the head does not say which nodes drain"
        return found

    def _on_head(self, code: str) -> Any:
        """The JSON that a Python program of the services' user prints last, None if it failed."""
        python = ("runuser", "--user", "rungwise", "--", "/opt/rungwise/bin/python", "-c", code)
        asked = self.machines["head"].run(*python, environment=self.user_environment())
        return None if asked.returncode else json.loads(asked.stdout.splitlines()[-1])

    def _make_certificate(self) -> None:
        """The database's, its own authority, which the package holds in place of those of RDS."""
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        make += ["-keyout", "server.key", "-out", "server.crt", "-subj", "/CN=database"]
        make += ["-addext", f"subjectAltName=IP:{SERVICES}"]
        subprocess.run(make, cwd=self.folder, check=True, capture_output=True)
        shutil.chown(self.folder / "server.key", "postgres")

    def start_database(self) -> str:
        """PostgreSQL with TLS and a password, as RDS has them; the ARN of its secret."""
        place = self.folder / "database"
        place.mkdir()
        shutil.chown(place, "postgres")
        initdb = [str(_POSTGRES[-1] / "initdb"), "--username=mlflow", "--auth=scram-sha-256"]
        (self.folder / "password").write_text(PASSWORD + "\n")
        shutil.chown(self.folder / "password", "postgres")
        as_postgres = ["runuser", "--user", "postgres", "--"]
        initdb += ["--pgdata", str(place / "data"), "--pwfile", str(self.folder / "password")]
        subprocess.run([*as_postgres, *initdb], cwd=place, check=True, capture_output=True)
        rules = f"hostssl all all {NETWORK}.0/24 scram-sha-256\n"
        (place / "data/pg_hba.conf").write_text(rules)
        server = [str(_POSTGRES[-1] / "postgres"), "-D", str(place / "data"), "-c", "ssl=on"]
        for setting in (
            f"listen_addresses={SERVICES}",
            f"unix_socket_directories={place}",
            f"ssl_key_file={self.folder}/server.key",
            f"ssl_cert_file={self.folder}/server.crt",
        ):
            server += ["-c", setting]
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self._start_inside("database", [*user, "--pdeathsig=KILL", *server])
        value = json.dumps({"username": "mlflow", "password": PASSWORD})
        made = self.aws("secretsmanager", "create_secret", Name="database", SecretString=value)
        return made["ARN"]

    def _start_services(self) -> None:
        self._metadata.mkdir()
        command = [sys.executable, "-m", "tests.infra.services", str(self._metadata)]
        log = self._start_inside("services", command)
        wait_until("the services", lambda: "ready" in log.read_text(), 60)

    def _start_inside(self, name: str, command: list[str]) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("w") as stream:
            started = psutil.Popen(
                ["ip", "netns", "exec", self.network.name, *command],
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=stream,
                stderr=stream,
                preexec_fn=end_with_parent,
                start_new_session=True,
            )
        self._processes.append(started)
        return log

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for member in [*process.children(recursive=True), process]:
                    member.terminate()
            process.wait(30)
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)
