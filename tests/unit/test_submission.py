"""Submitting: what would go is what Ray packs; what cannot work is refused before anything goes."""

import contextlib
import json
import os
import shlex
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package

from rungwise.__main__ import main
from rungwise.cluster import registry
from rungwise.cluster.description import Scaling
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary
from rungwise.submission import follow, jobs, local, probe, resources
from rungwise.submission.connection import Server, connect, find_server
from rungwise.submission.packing import MOST_BYTES, check_upload, list_files, package_uri
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.job_server import TOKEN, JobServer, job_server

_NAMES = st.sampled_from(["a", "b.py", "data", ".env2", "venv", ".git", "ä.txt", "__pycache__"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_PATTERNS = st.lists(
    st.sampled_from(["data", "*.py", "/a", "!b.py", "a/", "data/*", "**/a", "# x", ""]), max_size=3
)
_IGNORE_FILES = st.dictionaries(
    st.sampled_from([".gitignore", ".rayignore", "a/.gitignore", "data/.rayignore"]), _PATTERNS
)


@given(
    files=st.dictionaries(_PATHS, st.integers(0, 400), max_size=12),
    folders=st.lists(_PATHS, max_size=3),
    ignored=_IGNORE_FILES,
    links=st.dictionaries(st.sampled_from(["link", "data/link"]), _PATHS, max_size=2),
    gitignore=st.booleans(),
)
@settings(max_examples=120)
def test_what_is_listed_is_what_ray_packs_to_the_byte(
    files: dict[str, int],
    folders: list[str],
    ignored: dict[str, list[str]],
    links: dict[str, str],
    gitignore: bool,
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0" if gitignore else "1")
        top = Path(scratch, "project")
        top.mkdir()
        for name, size in files.items():
            _try(lambda path, size=size: path.write_bytes(bytes(size)), top / name)
        for name in folders:
            _try(lambda path: path.mkdir(exist_ok=True), top / name)
        for name, lines in ignored.items():
            _try(lambda path, lines=lines: path.write_text("\n".join(lines)), top / name)
        for name, target in links.items():
            if (top / target).is_file():
                _try(lambda path, target=target: path.symlink_to(top / target), top / name)
        package = Path(scratch, "package.zip")
        create_package(
            str(top),
            package,
            include_gitignore=gitignore,
            include_parent_dir=False,
            excludes=get_runtime_env_default_excludes(),
        )
        with zipfile.ZipFile(package) as made:
            expected = {row.filename: row.file_size for row in made.infolist()}
        assert list_files(top).sizes == expected


def _try(make: Any, path: Path) -> None:
    """Random paths may need a file to be a folder; those are left out."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        pass


def test_a_file_too_large_is_refused_by_its_size_alone(project: Path) -> None:
    for index in range(6):
        with (project / f"data{index}.bin").open("wb") as file:
            # The first is so large that reading it would take longer than a test may.
            file.truncate((1 << 40) >> (10 * index if index < 2 else 20 + index))
    with pytest.raises(UserError, match=r"data0\.bin 1\.1 TB, data1\.bin 1\.1 GB") as caught:
        check_upload(project)
    assert str(project / ".rayignore") in str(caught.value)
    assert str(caught.value).count(".bin") == 5
    (project / ".rayignore").write_text("*.bin\n")
    assert check_upload(project).size_bytes < MOST_BYTES


def test_a_package_is_refused_at_the_limit_and_not_below(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = check_upload(project).size_bytes
    monkeypatch.setattr("rungwise.submission.packing.MOST_BYTES", size)
    with pytest.raises(UserError, match="a cluster takes less than"):
        check_upload(project)
    monkeypatch.setattr("rungwise.submission.packing.MOST_BYTES", size + 1)
    check_upload(project)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.txt").write_text("x")
    (project / "within.txt").symlink_to(next(project.glob("*/*.py")))
    check_upload(project)
    (project / "out.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(UserError, match=r"out.txt is a link to .*elsewhere.txt, outside"):
        check_upload(project)
    (project / ".rayignore").write_text("out.txt\n")
    check_upload(project)


SECRETS = (
    *(".kube/config", ".npmrc", ".hf_token", "terraform.tfvars", "prod.auto.tfvars.json"),
    *(".docker/config.json", ".aws/config", ".ssh/known", "secrets.yaml", "prod.env", "w.token"),
    *("service-account-x.json", "application_default_credentials.json", "key.jks", ".vault-token"),
    *("id_ed25519_sk", ".envrc", "kaggle.json", "rclone.conf", ".databrickscfg", "office.ovpn"),
    *("my.keystore", ".htpasswd", ".s3cfg", ".boto", "credentials.csv", "github_token", "x.kdbx"),
)
HARMLESS = (
    *("tokens.py", "tokenizer.json", "special_tokens.py", "config", "kube/config", "secrecy.py"),
    *("terraform.tfvars.example", "tokens/stage.py"),
)


@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        (".env", "A=1", True),
        ("deep/.env.production", "A=1", True),
        (".env.example", "A=", False),
        ("environment.py", "A=1", False),
        # Code that looks for keys, and a key that is left out of a page.
        ("keys.py", 'MARK = "-----BEGIN EC PRIVATE KEY-----"\n', False),
        ("page.md", "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n", False),
        ("authority.pem", "-----BEGIN CERTIFICATE-----", False),
        ("terraform.tfstate", "{}", True),
        ("id_ed25519", "x", True),
        ("id_ed25519.pub", "x", False),
        *((name, "x", True) for name in SECRETS),
        *((name, "x", False) for name in HARMLESS),
    ],
)
def test_what_looks_secret_stays_here(project: Path, name: str, text: str, secret: bool) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)
    if not secret:
        assert name in check_upload(project).sizes
        return
    with pytest.raises(UserError, match="looks like a secret") as caught:
        check_upload(project)
    assert name in str(caught.value)
    (project / ".rayignore").write_text(f"{name}\n")
    assert name not in check_upload(project).sizes


def private_keys() -> dict[str, bytes]:
    """Private keys in every form that the library `cryptography` writes."""
    keys = {
        "rsa": rsa.generate_private_key(65537, 2048),
        "p256": ec.generate_private_key(ec.SECP256R1()),
        "p384": ec.generate_private_key(ec.SECP384R1()),
        "p521": ec.generate_private_key(ec.SECP521R1()),
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
    }
    locked = serialization.BestAvailableEncryption(b"x")
    written = {}
    for name, key in keys.items():
        for form in ("PKCS8", "TraditionalOpenSSL", "OpenSSH"):
            for encoding in ("PEM", "DER"):
                for lock in (serialization.NoEncryption(), locked):
                    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
                        as_form = getattr(serialization.PrivateFormat, form)
                        data = key.private_bytes(
                            getattr(serialization.Encoding, encoding), as_form, lock
                        )
                        written[f"{name} {form} {encoding} {lock is locked}"] = data
    (pem,) = (data for name, data in written.items() if name == "p256 PKCS8 PEM False")
    written["in JSON"] = json.dumps({"private_key": pem.decode()}).encode()
    written["in YAML"] = b"key: |\n" + b"".join(b"    " + line for line in pem.splitlines(True))
    written["in UTF-16"] = pem.decode().encode("utf-16")
    written["after text"] = b"# mine\n" * 50_000 + pem
    written["in PKCS#12"] = pkcs12.serialize_key_and_certificates(
        b"x", keys["rsa"], None, None, locked
    )
    return written


def test_a_private_key_stays_here_whatever_the_name_of_its_file(project: Path) -> None:
    keys = private_keys()
    assert len(keys) > 25
    for number, (what, data) in enumerate(keys.items()):
        (project / f"notes-{number}").write_bytes(data)
        with pytest.raises(UserError, match=f"notes-{number} would be uploaded and looks"):
            check_upload(project)
        (project / f"notes-{number}").unlink()
        assert check_upload(project), what


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a workflow, a recipe and a corpus."""
    top = tmp_path / "project"
    (top / "workflows").mkdir(parents=True)
    text = (REPOSITORY / "workflows" / "pretrain.py").read_text()
    (top / "workflows" / "pretrain.py").write_text(text)
    write_corpus(top / "text", documents=6)
    write_recipe(top / "small.yaml", small_recipe(Path("s3://bucket/root"), Path("text")))
    return top


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, project: Path) -> Iterator[JobServer]:
    """A job server that the environment names, its token in a file; the project is the folder."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS", "RUNGWISE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.chdir(project)
    with job_server() as served:
        served.nodes = [_node(CPU=4)]
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", served.address)
        yield served


def _node(state: str = "ALIVE", group: str = "head", **resources: float) -> dict[str, Any]:
    labels = {"ray.io/node-group": group}
    return {"state": state, "resources_total": resources, "labels": labels}


def _submit(*more: str) -> int:
    return main(["submit", "workflows/pretrain.py", "small.yaml", *more])


def test_short_names_are_found_in_the_folder(cluster: JobServer, project: Path) -> None:
    (project / "workflows" / "configs").mkdir()
    (project / "small.yaml").rename(project / "workflows" / "configs" / "small.yaml")
    assert main(["submit", "pretrain", "small"]) == 0
    (sent,) = cluster.submitted
    assert sent["entrypoint"] == "python workflows/pretrain.py workflows/configs/small.yaml"


def test_names_in_the_installed_package_take_it_along(
    cluster: JobServer, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project.parent / "site-packages" / "rungwise"
    shutil.move(project / "workflows", package / "workflows")
    for module in (local, jobs):
        monkeypatch.setattr(module, "PACKAGE", package)
    assert main(["submit", "pretrain", "small.yaml", "--no-wait"]) == 0
    (job,) = cluster.submitted
    assert job["entrypoint"] == "python -m rungwise run pretrain small.yaml"
    environment = job["runtime_env"]
    assert environment["py_modules"] == [package_uri(package)]
    assert environment["working_dir"] == package_uri(project)
    assert len(cluster.packages) == 2
    cluster.packages.clear()
    cluster.job("small-1", "STOPPED", runtime_env=environment, entrypoint=job["entrypoint"])
    assert main(["resume", "small-1"]) == 0
    assert len(cluster.packages) == 2
    assert cluster.submitted[-1]["runtime_env"]["py_modules"] == environment["py_modules"]


def test_an_archive_that_is_not_uploaded_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with zipfile.ZipFile(project / "words.zip", "w") as archive:
        archive.writestr("en/words.txt", "sea\n")
    (project / ".rayignore").write_text("*.zip\n")
    override = "measure={a: {kind: similarity, path: words.zip/en/words.txt}}"
    job = local.load_job(str(project), "pretrain", "small.yaml", [override])
    with pytest.raises(ConfigError, match=r"words\.zip, which the recipe reads, is not uploaded"):
        local.check_paths(job, check_upload(project))
    (project / ".rayignore").unlink()
    assert local.check_paths(job, check_upload(project)) == []


def test_a_job_takes_the_folder_along_and_no_secret(
    cluster: JobServer, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.output = "one line\nand another\n"
    assert _submit("name=other", "--working-dir", str(project)) == 0
    (sent,) = cluster.submitted
    assert sent["entrypoint"] == "python workflows/pretrain.py small.yaml name=other"
    assert sent["submission_id"].startswith("other-")
    assert sent["metadata"]["job_name"] == "other"
    (name,) = cluster.packages
    assert sent["runtime_env"]["working_dir"] == f"gcs://{name}" == package_uri(project)
    assert TOKEN not in json.dumps(sent)
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err
    assert "one line\nand another\n" in printed.out
    assert "small.yaml" in printed.out
    assert "has succeeded" in printed.out


def test_a_head_that_has_just_started_is_given_time(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    cluster.not_yet = 2
    assert _submit("--no-wait") == 0
    assert len(cluster.submitted) == 1
    monkeypatch.setattr("rungwise.submission.connection._START_SECONDS", 0.0)
    cluster.not_yet = 2
    assert _submit("--no-wait") == 2


def test_overrides_reach_the_command_as_they_were_given(cluster: JobServer) -> None:
    assert _submit("corpus.sources.0.label=a 'quoted' $HOME name", "--no-wait") == 0
    (sent,) = cluster.submitted
    assert shlex.split(sent["entrypoint"])[3] == "corpus.sources.0.label=a 'quoted' $HOME name"


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"ray_version": "2.58.1"}, (), "Ray is 2.58.1 on the cluster and"),
        ({"ray_version": "2.58.1"}, ("--ignore-versions",), None),
        ({"python_version": "3.9.2"}, (), "make the environment with Python 3.9"),
        ({"token": "another"}, (), "refuses the token from RAY_AUTH_TOKEN_PATH"),
        ({"nodes": []}, ("root=artifacts",), None),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused_before_anything_is_sent(
    cluster: JobServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    arguments: tuple[str, ...],
    message: str | None,
) -> None:
    monkeypatch.setattr(
        probe, "query_head", lambda client: probe.Head(_groups(cpu=(4, 0)), "s3://b")
    )
    for name, value in changes.items():
        setattr(cluster, name, value)
    status = _submit(*arguments)
    assert status == (2 if message else 0)
    assert bool(cluster.submitted) == (message is None)
    assert (message or "") in capfd.readouterr().err
    if message:
        assert not cluster.packages


def test_another_patch_version_is_told_and_taken(
    cluster: JobServer, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.ray_version = ".".join([*cluster.ray_version.split(".")[:2], "99"])
    assert _submit("--no-wait") == 0
    assert "note: Ray is 2.60.99 on the cluster" in capfd.readouterr().out


def test_no_token_and_no_server_each_say_what_to_do(
    cluster: JobServer,
    monkeypatch: pytest.MonkeyPatch,
    unused_port: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["jobs", "--address", f"127.0.0.1:{unused_port}"]) == 2
    assert "start the port forwarding" in capfd.readouterr().err
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    assert main(["jobs"]) == 2
    assert "wants a token and none is set; put the cluster's token" in capfd.readouterr().err
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    assert main(["jobs"]) == 2
    assert "which cluster?" in capfd.readouterr().err


def test_something_else_at_the_address_is_told_from_a_job_server(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A version without the fields of Ray's, as any other server with JSON would answer.
    monkeypatch.setattr(cluster, "ray_version", None)
    with pytest.raises(UserError, match="is not the job server of a Ray cluster"):
        connect(find_server(cluster.address, None))


def test_an_address_that_is_given_wins_and_a_known_cluster_brings_its_token(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNGWISE_HOME", str(tmp_path / "rungwise"))
    token = tmp_path / "other-token"
    token.write_text("of-the-other")
    registry.save(
        registry.RegisteredCluster(
            "local", "http://127.0.0.1:1", "127.0.0.2:6379", str(token), "", None, "/r", ()
        )
    )
    assert find_server(None, None).address == cluster.address  # the environment's
    assert find_server("127.0.0.1:1", None).token == "of-the-other"
    assert find_server(None, "local").address == "http://127.0.0.1:1"
    assert connect(find_server(f"{cluster.address}/", None)).server.option == (
        f" --address {cluster.address}"
    )
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # a driver's, no job server
    assert find_server(None, None).token_from == "of the cluster local"
    assert os.environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "of-the-other" not in repr(find_server(None, "local"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pretrain.stepz=5",), "pretrain.stepz=5: unknown key; did you mean 'steps'?"),
        (("model=null",), "has no block model"),
        (("tracking.uri=postgresql://me:hunter2@host/db",), "tracking.uri holds a password"),
        (("corpus.sources.0.paths=[../elsewhere]",), "lies outside of the working folder"),
        (("corpus.sources.0.paths=[hidden]",), "hidden/text.txt, which the recipe reads"),
        (("corpus.sources.0.paths=[nowhere]",), "no file matches 'nowhere'"),
        (("root=artifacts",), "the machines of this cluster would each keep a part"),
        (("compute.num_workers=9",), "lower compute.num_workers to 8"),
        (("compute.gpus_per_worker=1",), "asks for 1 GPU and 1 CPU on one machine"),
    ],
)
def test_what_cannot_run_is_refused_here(
    cluster: JobServer,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(probe, "query_head", lambda client: probe.Head(None, None))
    for folder in (project / "hidden", project.parent / "elsewhere"):
        folder.mkdir()
        (folder / "text.txt").write_text("A text that is not uploaded.")
    (project / ".gitignore").write_text("hidden\n")
    cluster.nodes *= 2
    assert _submit(*arguments) == 2
    printed = capfd.readouterr()
    assert message in printed.err
    assert "hunter2" not in printed.out + printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not cluster.submitted
    assert not cluster.packages


def test_a_recipe_elsewhere_or_a_workflow_elsewhere_is_refused(
    cluster: JobServer, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outside = project.parent / "outside.yaml"
    outside.write_text((project / "small.yaml").read_text())
    assert main(["submit", "workflows/pretrain.py", str(outside)]) == 2
    assert "CONFIG" in (printed := capfd.readouterr().err)
    assert "choose the folder that holds it with --working-dir" in printed
    with (project / "small.yaml").open("a") as stream:  # which would be uploaded
        stream.write("\ntracking: {uri: 'https://me:hunter2@host'}\n")
    assert _submit() == 2
    printed = capfd.readouterr().err
    assert "tracking.uri holds a password" in printed
    assert "hunter2" not in printed
    assert main(["submit", "pretend", "small.yaml"]) == 2
    assert "WORKFLOW: there is no file workflows/pretend.py" in capfd.readouterr().err


def test_data_that_only_the_cluster_has_is_no_reason_to_refuse(
    cluster: JobServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _submit("corpus.sources.0.paths=[/only/there]", "--no-wait") == 0
    printed = capfd.readouterr().out
    assert "not looked at here, because only the cluster may have it" in printed
    assert "every machine must have /only/there at the same place" in printed
    # What is wrong besides is refused all the same.
    assert _submit("corpus.sources.0.paths=[/only/there]", "pretrain=null") == 2


def _groups(**groups: tuple[int, float]) -> Scaling:
    """Groups of at most so many machines, with so many GPUs each and 8 CPUs."""
    return Scaling.model_validate(
        {
            "groups": {
                name: {
                    "autoscaling_group": f"asg-{name}",
                    "maximum": maximum,
                    "resources": {"CPU": 8, "GPU": gpus} if gpus else {"CPU": 8},
                    "price_per_hour": 10.0,
                }
                for name, (maximum, gpus) in groups.items()
            }
        }
    )


@pytest.mark.parametrize(
    ("compute", "nodes", "scaling", "now", "at_most"),
    [
        # The sums would do for one worker of 8 GPUs; no machine does.
        ({"gpus_per_worker": 8}, [_node(CPU=8, GPU=4)] * 4, None, 0, 0),
        ({"gpus_per_worker": 2}, [_node(CPU=8, GPU=3)] * 2, None, 2, 2),
        ({"cpus_per_worker": 3}, [_node(CPU=8), _node(CPU=2), _node("DEAD", CPU=64)], None, 2, 2),
        ({"gpus_per_worker": 0.3}, [_node(CPU=8, GPU=0.9)], None, 3, 3),
        ({"gpus_per_worker": 1}, [_node(CPU=0)], {"gpu": (3, 4)}, 0, 12),
        # A machine of a group that is there is one of the group's maximum.
        ({"gpus_per_worker": 1}, [_node(group="gpu", CPU=8, GPU=4)], {"gpu": (3, 4)}, 4, 12),
        ({"gpus_per_worker": 8}, [_node(CPU=0)], {"gpu": (9, 4), "cpu": (9, 0)}, 0, 0),
        ({"cpus_per_worker": 8}, [_node(CPU=0)], {"gpu": (2, 4), "cpu": (9, 0)}, 0, 11),
    ],
)
def test_room_is_counted_machine_by_machine(
    compute: dict[str, Any],
    nodes: list[dict[str, Any]],
    scaling: dict[str, tuple[int, float]] | None,
    now: int,
    at_most: int,
) -> None:
    (demand,) = resources.list_demands(ComputeConfig(**compute), {"corpus": 1, "pretrain": 1})
    there = resources.list_machines(nodes, _groups(**scaling) if scaling else None)
    assert resources.count_room(demand, there) == resources.Room(now, at_most)


def test_more_than_can_ever_be_there_names_what_to_lower() -> None:
    there = resources.list_machines([_node(CPU=2)], _groups(gpu=(2, 4)))

    def check(**compute: Any) -> resources.Room:
        (demand,) = resources.list_demands(ComputeConfig(**compute), {"pretrain": 1})
        return resources.check_room(demand, there)

    with pytest.raises(UserError, match=r"room for 8 once all that may come \(2\) are there"):
        check(num_workers=9, gpus_per_worker=1)
    with pytest.raises(UserError, match="gpu has 0 of 4 GPUs and 8 CPUs, 2 more may come; lower"):
        check(num_workers=1, gpus_per_worker=8)
    assert check(num_workers=9, min_workers=8, gpus_per_worker=1).at_most == 8


@pytest.mark.parametrize(("workers", "offers"), [(5, [("gpu", 2, 20.0)]), (50, [])])
def test_the_price_is_of_the_machines_that_a_group_needs(workers: int, offers: list) -> None:
    there = resources.list_machines([_node(CPU=2)], _groups(gpu=(3, 4)))
    compute = ComputeConfig(num_workers=workers, gpus_per_worker=1)
    (demand,) = resources.list_demands(compute, {"pretrain": 1})
    assert resources.list_prices(demand, there) == offers


def test_what_each_workflow_asks_for_follows_from_its_stages() -> None:
    compute = ComputeConfig(num_workers=3, gpus_per_trial=0.5, max_concurrent_trials=4)
    stages = {"corpus": 1, "pretrain": 1, "sweep": 1, "evaluate": 1}
    training, trial = resources.list_demands(compute, stages)
    assert (training.count, dict(training.resources)) == (3, {"CPU": 1.0})
    assert (trial.count, trial.fewest, dict(trial.resources)) == (4, 1, {"CPU": 1.0, "GPU": 0.5})
    (task,) = resources.list_demands(compute, {"corpus": 1, "instances": 1})
    assert (task.count, dict(task.resources)) == (1, {"CPU": 1.0})


@pytest.mark.parametrize(("at_once", "workers", "trials"), [(1, 3, 4), (2, 6, 8), (9, 6, 12)])
def test_stages_side_by_side_want_room_for_each(at_once: int, workers: int, trials: int) -> None:
    compute = ComputeConfig(num_workers=3, max_concurrent_trials=4, max_concurrent_stages=at_once)
    stages = {"pretrain": 2, "sweep": 3, "evaluate": 1}
    training, trial = resources.list_demands(compute, stages)
    assert (training.count, trial.count) == (workers, trials)
    assert (training.fewest, trial.fewest) == (3, 1)  # with room for one, they take turns
    (evaluation,) = resources.list_demands(compute, {"evaluate": 2})
    assert evaluation.count == min(at_once, 2)


def test_only_stages_that_do_not_need_each_other_are_counted_side_by_side() -> None:
    pretrain = StageType("pretrain", 1, lambda *_: Summary(headline=""), Summary)
    first, second = (pretrain.stage(ComputeConfig(num_workers=number)) for number in (1, 2))
    continued = pretrain.stage(ComputeConfig(), {"initial": first})
    assert resources.count_parallel([first, continued]) == {"pretrain": 1}
    assert resources.count_parallel([first, second, continued]) == {"pretrain": 2}


@given(cuts=st.lists(st.integers(0, 200), max_size=4), length=st.integers(0, 200))
@settings(max_examples=25)
def test_a_log_is_written_once_however_often_the_line_breaks(cuts: list[int], length: int) -> None:
    text = "".join(f"{number}ä\n" for number in range(100))[:length]
    with job_server() as served, pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "_FIRST_WAIT_SECONDS", 0.0)
        served.output = text
        served.cuts = [cut for cut in cuts if cut < length]
        # The job ends when the last line is open; before, it runs.
        served.job("small-1", "RUNNING")
        written: list[str] = []
        client = connect(Server(served.address, TOKEN, "here"))

        def write(fresh: str) -> None:
            written.append(fresh)
            if not served.cuts:
                served.jobs["small-1"]["status"] = "SUCCEEDED"

        if not length:
            served.jobs["small-1"]["status"] = "SUCCEEDED"
        done = follow.Follower(client, "small-1", write, lambda note: None).follow()
        assert done.status == "SUCCEEDED"
        assert "".join(written) == text


def test_a_server_that_comes_back_is_followed_on(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(find_server(None, None))
    cluster.output = "all of it\n"
    cluster.job("small-1", "SUCCEEDED")
    monkeypatch.setattr(follow, "_FIRST_WAIT_SECONDS", 0.0)
    real, said, written = client.get_details, list[str](), list[str]()
    away = iter([True, True, False])

    def details(job: str) -> Any:
        if next(away):
            raise follow.UnreachableError("away")
        return real(job)

    monkeypatch.setattr(client, "get_details", details)
    follow.Follower(client, "small-1", written.append, said.append).follow()
    assert "".join(written) == "all of it\n"
    lost = "the connection is lost, the job goes on; trying again"
    assert said == [lost, "connected again", lost, "connected again"]
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 0.0)
    away = iter([True])
    with pytest.raises(UserError, match="away"):
        follow.Follower(client, "small-1", written.append, said.append).follow()


def test_a_job_is_found_by_how_its_id_begins(cluster: JobServer) -> None:
    for name in ("small-1a", "small-2b", "large-3c"):
        cluster.job(name, "RUNNING")
    cluster.job("raysubmit_probe", "RUNNING", metadata={"rungwise_probe": "1"})
    client = connect(find_server(None, None))
    assert jobs._find(client, "l").submission_id == "large-3c"
    assert jobs._find(client, "small-2b").submission_id == "small-2b"
    with pytest.raises(UserError, match="several jobs begin with small: small-2b, small-1a"):
        jobs._find(client, "small")
    with pytest.raises(UserError, match=r"knows no job smal1-1a; did you mean small-1a\?"):
        jobs._find(client, "smal1-1a")
    with pytest.raises(UserError, match="knows no job raysubmit_probe"):
        jobs._find(client, "raysubmit_probe")


def test_resuming_brings_the_same_package_or_says_why_not(
    cluster: JobServer, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = package_uri(project).removeprefix("gcs://")
    env = {"working_dir": f"gcs://{name}", "env_vars": {"THEIRS": "1"}}
    told = {"job_name": "small"}
    cluster.job("small-1", "STOPPED", runtime_env=env, metadata=told)
    assert main(["resume", "small-1"]) == 0
    assert list(cluster.packages) == [name]  # it was gone, and the folder is as it was
    (sent,) = cluster.submitted
    assert sent["metadata"] == {**told, "resumes": "small-1"}
    assert sent["runtime_env"]["working_dir"] == f"gcs://{name}"
    assert sent["runtime_env"]["env_vars"]["THEIRS"] == "1"
    assert sent["entrypoint"] == cluster.jobs["small-1"]["entrypoint"]
    (project / "new.py").write_text("")
    assert main(["resume", "small-1"]) == 0  # the package is there, so the folder does not matter
    assert len(cluster.packages) == 1
    cluster.packages.clear()
    capfd.readouterr()
    command = ["workflows/pretrain.py", "small.yaml", "corpus={sources: ['$HOME/a b*', \"it's\"]}"]
    cluster.job("small-3", "STOPPED", runtime_env=env, entrypoint=shlex.join(["python", *command]))
    address = f"{cluster.address}/a&b"
    assert find_server(address, None).option == f" --address '{address}'"
    assert main(["resume", "small-3", "--working-dir", str(project)]) == 2
    typed = shlex.split(capfd.readouterr().err.partition("submit what is there now: ")[2])
    assert typed == ["rungwise", "submit", *command, "--working-dir", str(project)]
    cluster.job("small-4", "RUNNING")
    assert main(["resume", "small-4"]) == 2
    assert "rungwise logs --follow small-4" in capfd.readouterr().err


def test_a_job_that_is_unknown_or_a_server_that_breaks_is_one_line(
    cluster: JobServer, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(find_server(None, None))
    with pytest.raises(UserError, match="does not know the job gone-1"):
        client.get_details("gone-1")
    cluster.job("small-1", "RUNNING")
    cluster.broken = True
    with pytest.raises(follow.UnreachableError, match="answered 500"):
        client.get_details("small-1")
    for command in (["jobs"], ["logs", "small-1"], ["stop", "small-1"]):
        assert main(command) == 2
        message = capfd.readouterr().err
        assert "answered 500: it broke; the head's logs say more" in message
        assert len(message.strip().splitlines()) == 1


def test_a_head_that_does_not_answer_the_probe_is_said_with_the_place_of_its_log(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(find_server(None, None))
    cluster.job("raysubmit_1", "RUNNING")
    monkeypatch.setattr(client, "submit_job", lambda **_: "raysubmit_1")
    monkeypatch.setattr(client, "stop_job", lambda _: True)
    monkeypatch.setattr(probe, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(UserError, match=rf"dashboard at {cluster.address} shows .*raysubmit_1"):
        probe.query_head(client)


def test_a_probe_deletes_those_that_ended_a_while_ago_alone(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(find_server(None, None))
    asked = {"metadata": {"rungwise_probe": "1"}}
    cluster.job("long-ago", "SUCCEEDED", **asked)
    cluster.job("just-now", "SUCCEEDED", **asked, end_time=int(time.time() * 1000))
    cluster.job("at-work", "RUNNING", **asked)
    cluster.job("a-users", "SUCCEEDED")
    cluster.job("new", "SUCCEEDED")
    monkeypatch.setattr(client, "submit_job", lambda **_: "new")
    deleted: list[str] = []
    monkeypatch.setattr(client, "delete_job", deleted.append)
    cluster.output = 'rungwise-head:{"scaling": null, "root": "s3://bucket"}\n'
    assert probe.query_head(client) == probe.Head(None, "s3://bucket")
    assert deleted == ["long-ago"]


def test_a_job_that_failed_is_told_by_every_command(
    cluster: JobServer, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.output = "error: it broke\n"
    cluster.job("small-1", "FAILED")
    assert main(["logs", "small-1", "--follow"]) == 1
    printed = capfd.readouterr().out
    assert "error: it broke\n" in printed
    assert "rungwise resume small-1" in printed
    assert main(["logs", "small-1"]) == 0
    assert capfd.readouterr().out == "error: it broke\n"
    assert main(["jobs"]) == 0
    assert "failed" in capfd.readouterr().out
    assert main(["jobs", "--json"]) == 0
    [job] = json.loads(capfd.readouterr().out)
    assert (job["id"], job["status"]) == ("small-1", "failed")
    assert main(["stop", "small-1"]) == 0
    assert capfd.readouterr().out == "small-1 has failed already\n"
