"""The golden user data: shell, units and description, each judged by what will read it."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from rungwise.cluster.description import Machine
from tests.conftest import REPOSITORY
from tests.infra.services import metadata_server

GOLDEN = REPOSITORY / "infra/terraform/modules/bootstrap/tests/golden"
ROLES = ("head", "worker", "tracking")
ROLE = {"AccessKeyId": "ASIAX", "SecretAccessKey": "planted/key+=", "Token": "planted-session=="}


def files_of(role: str) -> dict[str, str]:
    """What the user data writes, by path."""
    text = (GOLDEN / f"{role}.sh").read_text()
    found = re.findall(r"^write 0\d{3} (\S+) <<'RUNGWISE'\n(.*?)^RUNGWISE$", text, re.S | re.M)
    return dict(found)


@pytest.mark.parametrize("role", ROLES)
def test_the_description_in_the_user_data_is_one_that_the_package_reads(role: str) -> None:
    text = files_of(role)["/etc/rungwise/machine.json"]
    assert Machine.model_validate_json(text).role == role
    assert json.loads(text) == json.loads((GOLDEN / f"{role}.json").read_text())


@pytest.mark.parametrize("role", ROLES)
def test_the_scripts_are_sound_shell(role: str, tmp_path: Path) -> None:
    install = tmp_path / "install.sh"
    install.write_text(files_of(role)["/usr/local/sbin/rungwise-install"])
    for script in (GOLDEN / f"{role}.sh", install):
        subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck") is not None:
        package = REPOSITORY / "infra/package.sh"
        command = ["shellcheck", str(GOLDEN / f"{role}.sh"), str(install), str(package)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("role", ROLES)
def test_systemd_finds_nothing_wrong_with_the_units(role: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    units = []
    for path, text in files_of(role).items():
        if path.startswith("/etc/systemd/system/"):
            # systemd looks whether the program and the user are there, as they are on a machine.
            text = re.sub("^ExecStart=.*", "ExecStart=/bin/true", text, flags=re.M)
            units.append(tmp_path / Path(path).name)
            units[-1].write_text(text.replace("User=rungwise", "User=daemon"))
    assert units
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert str(tmp_path) not in said, said


@pytest.fixture
def bucket() -> Iterator[tuple[str, list[tuple[str, Message]]]]:
    """A server for one object; its address, and the paths and headers of what it was asked."""
    asked: list[tuple[str, Message]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "7")
            self.end_headers()
            self.wfile.write(b"package")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_download_is_signed_as_botocore_signs_it_and_no_argument_holds_a_key(
    bucket: tuple[str, list[tuple[str, Message]]], tmp_path: Path
) -> None:
    """curl's signature with the role's credentials, against botocore's for the same request."""
    host, asked = bucket
    said = tmp_path / "127.0.0.1/iam/security-credentials"
    said.mkdir(parents=True)
    (said / "machine").write_text(json.dumps(ROLE))
    metadata = metadata_server(tmp_path, "127.0.0.1", 0)
    thread = threading.Thread(target=metadata.serve_forever)
    thread.start()
    spy = tmp_path / "curl"
    spy.write_text(
        f'#!/bin/bash\necho "$*" >>{tmp_path}/arguments\nexec {shutil.which("curl")} "$@"'
    )
    spy.chmod(0o755)
    script = files_of("worker")["/usr/local/sbin/rungwise-install"]
    functions, marker, _ = script.partition("if [[ -f $target/package.sha256")
    assert marker
    functions = functions.replace("python=python3", f"python={sys.executable}")
    try:
        subprocess.run(
            ["bash", "-c", f"{functions}\nwork={tmp_path}\ndownload"],
            env={
                "PATH": f"{tmp_path}:/usr/bin:/bin",
                "AWS_ENDPOINT_URL": f"http://{host}",
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_port}",
            },
            check=True,
        )
    finally:
        metadata.shutdown()
        thread.join()
        metadata.server_close()
    assert (tmp_path / "package.tar.gz").read_bytes() == b"package"
    arguments = (tmp_path / "arguments").read_text()
    assert len(arguments.splitlines()) == 4
    assert "planted" not in arguments
    ((path, headers),) = asked
    assert path.startswith("/demo-bucket/packages/0123456789abcdef")
    authorization = headers["Authorization"]
    signed = re.search("SignedHeaders=([^,]*)", authorization)
    assert signed is not None
    names = signed.group(1).split(";")
    assert {"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"} <= set(names)
    request = AWSRequest("GET", f"http://{host}{path}", {name: headers[name] for name in names})
    request.context["timestamp"] = headers["x-amz-date"]
    credentials = Credentials(ROLE["AccessKeyId"], ROLE["SecretAccessKey"], ROLE["Token"])
    signer = S3SigV4Auth(credentials, "s3", "eu-central-1")
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert authorization.endswith(f"Signature={signer.signature(text, request)}")
