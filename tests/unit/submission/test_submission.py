"""Submitting: what would go is what Ray packs; what cannot work is refused before anything goes."""

import contextlib
import io
import json
import os
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package, get_uri_for_directory

from rungwise import submission
from rungwise.__main__ import main
from rungwise.cluster.local import LocalCluster, save_cluster
from rungwise.core.errors import ConfigError, UserError
from rungwise.pipeline import places
from rungwise.submission import MOST_BYTES, check_upload, connect, find_server, follow, list_files
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.job_server import TOKEN, JobServer, job_server

# Ray's own client passes it to aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")

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
        assert list_files(top) == expected


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
    assert sum(check_upload(project).values()) < MOST_BYTES


def test_a_link_out_of_the_folder_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.txt").write_text("x")
    (project / "within.txt").symlink_to(next(project.glob("*/*.py")))
    check_upload(project)
    (project / "out.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(UserError, match=r"out.txt is a link to .*elsewhere.txt, outside"):
        check_upload(project)
    (project / ".rayignore").write_text("out.txt\n")
    check_upload(project)


SECRETS = (
    *(".kube/config", ".npmrc", ".hf_token", "terraform.tfvars", "secrets.yaml", "prod.env"),
    *(".docker/config.json", ".aws/config", "service-account-x.json", ".vault-token", "key.jks"),
    *("id_ed25519_sk", ".envrc", ".s3cfg", "credentials.csv", "github_token", "x.kdbx"),
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
        assert name in check_upload(project)
        return
    with pytest.raises(UserError, match="looks like a secret") as caught:
        check_upload(project)
    assert name in str(caught.value)
    (project / ".rayignore").write_text(f"{name}\n")
    assert name not in check_upload(project)


def private_keys() -> dict[str, bytes]:
    """Private keys in every text form that the library `cryptography` writes."""
    keys = {
        "rsa": rsa.generate_private_key(65537, 2048),
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
    }
    locked = serialization.BestAvailableEncryption(b"x")
    written = {}
    for name, key in keys.items():
        for form in ("PKCS8", "TraditionalOpenSSL", "OpenSSH"):
            for lock in (serialization.NoEncryption(), locked):
                with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
                    as_form = getattr(serialization.PrivateFormat, form)
                    data = key.private_bytes(serialization.Encoding.PEM, as_form, lock)
                    written[f"{name} {form} {lock is locked}"] = data
    pem = written["rsa PKCS8 False"]
    written["in JSON"] = json.dumps({"private_key": pem.decode()}).encode()
    written["in YAML"] = b"key: |\n" + b"".join(b"    " + line for line in pem.splitlines(True))
    written["in UTF-16"] = pem.decode().encode("utf-16")
    written["after text"] = b"# mine\n" * 50_000 + pem
    return written


def test_a_private_key_stays_here_whatever_the_name_of_its_file(project: Path) -> None:
    keys = private_keys()
    assert len(keys) > 10
    for number, (what, data) in enumerate(keys.items()):
        (project / f"notes-{number}").write_bytes(data)
        with pytest.raises(UserError, match=f"notes-{number} would be uploaded and looks"):
            check_upload(project)
        (project / f"notes-{number}").unlink()
        assert check_upload(project), what


@pytest.fixture
def project(tmp_path: Path) -> Path:
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
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", served.address)
        yield served


def created_uri(folder: Path) -> str:
    excludes = [*get_runtime_env_default_excludes(), *submission._LEFT_BY_RUNS]
    return get_uri_for_directory(str(folder), True, excludes=excludes)


def _submit(*more: str) -> int:
    return main(["submit", "workflows/pretrain.py", "small.yaml", *more])


@pytest.mark.parametrize("is_wheel", [False, True])
def test_a_folder_of_one_s_own_takes_the_package_along_and_no_root(
    cluster: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wheel: bool
) -> None:
    if is_wheel:
        package = tmp_path / "site-packages" / "rungwise"
        shutil.copytree(places.PACKAGE, package)
        shutil.copytree(REPOSITORY / "workflows", package / "workflows")
        monkeypatch.setattr(places, "PACKAGE", package)
        monkeypatch.setattr(submission, "PACKAGE", package)
    own = tmp_path / "own"
    for left in ("artifacts/corpus/x/a", "runs/mlflow.db", "runs/pretrain/w", "here/w"):
        (own / left).parent.mkdir(parents=True, exist_ok=True)
        (own / left).touch()
    for left in ("mlflow.db", "mlruns/0/x", ".venv/x", ".git/x", "notes.txt"):
        (own / left).parent.mkdir(parents=True, exist_ok=True)
        (own / left).touch()
    monkeypatch.chdir(own)
    assert main(["submit", "pretrain", "quickstart", "root=here", "--no-wait"]) == 0
    (sent,) = cluster.submitted
    assert sent["entrypoint"] == "python -m rungwise run pretrain quickstart root=here"
    packed = dict[str, list[str]]()
    for uri in (sent["runtime_env"]["working_dir"], *sent["runtime_env"]["py_modules"]):
        with zipfile.ZipFile(io.BytesIO(cluster.packages[uri.removeprefix("gcs://")])) as made:
            packed[uri] = [name for name in made.namelist() if not name.endswith("/")]
    folder, code = packed.values()
    assert folder == ["notes.txt"]
    assert {"rungwise/__main__.py", "rungwise/workflows/configs/quickstart.yaml"} <= set(code)
    assert not [name for name in code if "__pycache__" in name]


def test_an_archive_left_behind_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with zipfile.ZipFile(project / "words.zip", "w") as archive:
        archive.writestr("en/words.txt", "sea\n")
    (project / ".rayignore").write_text("*.zip\n")
    override = "measure={a: {kind: similarity, path: words.zip/en/words.txt}}"
    archived = submission.load_job(str(project), "pretrain", "small.yaml", [override])
    with pytest.raises(ConfigError, match=r"words\.zip is not uploaded"):
        submission.check_paths(archived, check_upload(project))
    (project / ".rayignore").unlink()
    assert submission.check_paths(archived, check_upload(project)) == []


def test_a_job_takes_the_folder_along_and_no_secret(
    cluster: JobServer, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.output = "one line\nand another\n"
    label = "corpus.sources.0.label=a 'quoted' $HOME name"
    assert _submit("name=other", label, "--working-dir", str(project)) == 0
    (sent,) = cluster.submitted
    command = shlex.split(sent["entrypoint"])
    assert command == ["python", "workflows/pretrain.py", "small.yaml", "name=other", label]
    assert sent["submission_id"].startswith("other-")
    assert sent["metadata"]["job_name"] == "other"
    (name,) = cluster.packages
    assert sent["runtime_env"]["working_dir"] == f"gcs://{name}" == created_uri(project)
    assert TOKEN not in json.dumps(sent)
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err
    assert "one line\nand another\n" in printed.out
    assert "small.yaml" in printed.out
    assert ": succeeded" in printed.out


def test_a_new_head_is_given_time(cluster: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    cluster.not_yet = 2
    assert _submit("--no-wait") == 0
    assert len(cluster.submitted) == 1
    monkeypatch.setattr("rungwise.submission._START_SECONDS", 0.0)
    cluster.not_yet = 2
    assert _submit("--no-wait") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ray_version": "2.58.1"}, "Ray is 2.58.1 on the cluster and"),
        ({"python_version": "3.9.2"}, "make this environment with Python 3.9"),
        ({"token": "another"}, "refuses this one"),
        # A version without the fields of Ray's, as any other server with JSON would answer.
        ({"ray_version": None}, "no job server of a Ray cluster answers"),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused_before_anything_is_sent(
    cluster: JobServer, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    for name, value in changes.items():
        setattr(cluster, name, value)
    assert _submit() == 2
    assert message in capfd.readouterr().err
    assert not cluster.submitted
    assert not cluster.packages


def test_no_token_and_no_server_each_say_what_to_do(
    cluster: JobServer,
    monkeypatch: pytest.MonkeyPatch,
    unused_port: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert _submit("--address", f"127.0.0.1:{unused_port}") == 2
    assert "kubectl port-forward" in capfd.readouterr().err
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", cluster.address)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    assert _submit() == 2
    assert "wants a token, and none is set; put the cluster's token" in capfd.readouterr().err
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    assert _submit() == 2
    assert "which cluster?" in capfd.readouterr().err


def test_an_address_that_is_given_wins_and_a_known_cluster_brings_its_token(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNGWISE_HOME", str(tmp_path / "rungwise"))
    token = tmp_path / "other-token"
    token.write_text("of-the-other")
    address = "http://127.0.0.1:1"
    save_cluster(LocalCluster(address, "127.0.0.2:6379", str(token), "/r", "/scratch"))
    assert find_server(None).address == cluster.address  # the environment's
    assert find_server("127.0.0.1:1").token == "of-the-other"
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # a driver's, no job server
    assert find_server(None).token_path == token
    assert os.environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "of-the-other" not in repr(find_server(None))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model=null",), "has no block model"),
        (("tracking.uri=postgresql://me:hunter2@host/db",), "tracking.uri holds a password"),
        (("corpus.sources.0.paths=[../elsewhere]",), "lies outside of the working folder"),
        (("corpus.sources.0.paths=[hidden]",), "hidden/text.txt is not uploaded"),
        (("corpus.sources.0.paths=[nowhere]",), "no file matches 'nowhere'"),
    ],
)
def test_what_cannot_run_is_refused_here(
    cluster: JobServer,
    project: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    for folder in (project / "hidden", project.parent / "elsewhere"):
        folder.mkdir()
        (folder / "text.txt").write_text("A text that is not uploaded.")
    (project / ".gitignore").write_text("hidden\n")
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
    assert main(["submit", "pretend", "small.yaml"]) == 2
    assert "WORKFLOW: there is no file workflows/pretend.py" in capfd.readouterr().err


def test_text_outside_of_the_folder_must_be_on_every_machine(
    cluster: JobServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus(tmp_path / "text", documents=2)
    assert _submit(f"corpus.sources.0.paths=[{text}]", "--no-wait") == 0
    assert f"every machine must have {text} at the same place" in capfd.readouterr().out
    assert _submit("corpus.sources.0.paths=[/only/there]", "--no-wait") == 0
    printed = capfd.readouterr().out
    assert "not checked here, because only the cluster may have it" in printed
    assert "every machine must have /only/there at the same place" in printed
    # What is wrong besides is refused all the same.
    assert _submit("corpus.sources.0.paths=[/only/there]", "pretrain=null") == 2


@pytest.mark.parametrize("cuts", [[], [0, 3, 150], [199]])
def test_a_log_is_written_once_however_often_the_line_breaks(
    cluster: JobServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    cuts: list[int],
) -> None:
    monkeypatch.setattr("rungwise.submission._POLL_SECONDS", 0.0)
    cluster.output = "".join(f"{number}ä\n" for number in range(100))[:200]
    cluster.cuts = list(cuts)
    cluster.job("small-1", "RUNNING")
    client = connect(find_server(None))
    details = client.get_job_info

    def end_after_cuts(job_id: str) -> Any:
        if not cluster.cuts:
            cluster.jobs["small-1"]["status"] = "SUCCEEDED"
        return details(job_id)

    monkeypatch.setattr(client, "get_job_info", end_after_cuts)
    assert follow(client, "small-1").status == "SUCCEEDED"
    assert capfd.readouterr().out == cluster.output


def test_a_server_that_comes_back_is_followed_on(
    cluster: JobServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rungwise.submission._POLL_SECONDS", 0.0)
    client = connect(find_server(None))
    cluster.output = "all of it\n"
    cluster.job("small-1", "SUCCEEDED")
    details = client.get_job_info
    errors = [requests.ConnectionError("away"), requests.Timeout("away")]

    def fail_twice(job_id: str) -> Any:
        if errors:
            raise errors.pop()
        return details(job_id)

    monkeypatch.setattr(client, "get_job_info", fail_twice)
    follow(client, "small-1")
    assert capfd.readouterr().out == "all of it\n"
    monkeypatch.setattr("rungwise.submission.PATIENCE_SECONDS", 0.0)
    errors.append(requests.ConnectionError("away"))
    with pytest.raises(UserError, match="no longer answers"):
        follow(client, "small-1")
    with pytest.raises(UserError, match="does not know the job small-2"):
        follow(client, "small-2")
