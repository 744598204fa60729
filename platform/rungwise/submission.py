"""Jobs on a cluster: check what is uploaded, submit it, and follow its log over broken connections.

The submitting machine may not have the job's data; the files that are uploaded are listed by Ray's
own rules. Everything else that is done with a job is `ray job`, whose commands are printed.
"""

import asyncio
import contextlib
import fnmatch
import logging
import os
import platform
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import ray
import requests
from packaging.version import Version
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from rich.filesize import decimal

from rungwise.cluster.local import DASHBOARD_PORT, find_cluster
from rungwise.core.configuration.secrecy import list_texts
from rungwise.core.errors import ConfigError, UserError, format_count, list_first
from rungwise.core.exit_codes import FAILED, INTERRUPTED, OK, plain_console
from rungwise.core.stages.provenance import COMMIT_VARIABLE, commit
from rungwise.core.storage.folder import is_remote, local_path
from rungwise.core.storage.source_files import on_disk
from rungwise.pipeline.places import PACKAGE, data_parent
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import load_recipe, make_stages
from rungwise.ray_private import default_excludes, folder_excludes, walk_folder

# The job server takes smaller requests only, and Ray does not compress.
MOST_BYTES = 100 << 20
_MOST_FILES = 100_000
_MOST_NAMES = 5
# What runs leave in the folder where they are started.
_LEFT_BY_RUNS = ("/artifacts", "/mlruns", "/mlartifacts", "/mlflow.db*")
_SILENT = logging.Logger("packing", logging.CRITICAL + 1)
# Names and places that tools give to files with secrets, and names of files without any.
_SECRET_NAMES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *(".pgpass", ".boto", ".s3cfg", ".htpasswd", "credentials", "credentials.*", "kaggle.json"),
    *("*credentials.json", "service-account*.json", ".*token", "token", "*.token", "*_token"),
    *("kubeconfig*", "secrets.*", "*.tfvars", "*.tfvars.json", "*.tfstate", "*.tfstate.*"),
    *("id_rsa", "id_ecdsa*", "id_ed25519*", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
)
_SECRET_PLACES = (".kube/config", ".docker/config.json", ".aws/*", ".ssh/*", ".gnupg/*", ".azure/*")
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.pub")
# A private key in a file of any name. Code that only names the mark has no such line after it.
_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----.{0,400}?[A-Za-z0-9+/]{48}"
    rb"|PuTTY-User-Key-File-\d|AGE-SECRET-KEY-1[A-Z0-9]{40}",
    re.DOTALL,
)


def check_upload(folder: Path, excludes: Sequence[str] = ()) -> dict[str, int]:
    """List the files to upload. Raises UserError if they are too large, or one holds a secret."""
    sizes = list_files(folder, excludes)
    if (total := sum(sizes.values())) >= MOST_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_NAMES]
        names = ", ".join(f"{name} {decimal(sizes[name])}" for name in largest)
        raise UserError(
            f"{folder} would be {decimal(total)} to upload, and a cluster takes less "
            f"than {decimal(MOST_BYTES)}; the largest: {names}. Name what "
            f"the job does not need in {folder / '.rayignore'} (the syntax is .gitignore's), and "
            "put data where every machine reads it, such as s3://"
        )
    if secret := [path for path in sizes if _is_secret(folder, path)]:
        raise UserError(
            f"{list_first(secret, _MOST_NAMES)} would be uploaded and looks like a secret; name "
            f"it in {folder / '.rayignore'}, and give machines rights by their role instead"
        )
    return sizes


def list_files(folder: Path, excludes: Sequence[str] = ()) -> dict[str, int]:
    """List what Ray would pack: the bytes of each file by its path; that of an empty folder ends in
    /. Raises UserError if a part cannot be read, links to outside, or there are too many."""
    sizes: dict[str, int] = {}
    folder, real = folder.absolute(), folder.resolve()

    def add(path: Path) -> None:
        is_folder = path.is_dir()
        if is_folder and next(path.iterdir(), None) is not None:
            return
        if is_folder or path.is_file():
            if not os.access(path, os.R_OK):
                raise PermissionError(13, os.strerror(13), str(path))
            name = path.relative_to(folder).as_posix()
            if not path.resolve().is_relative_to(real):
                raise UserError(
                    f"{name} is a link to {path.resolve()}, outside of {folder}, and what is there "
                    "would be uploaded; exclude it in .rayignore, or copy it here"
                )
            sizes[f"{name}/" if is_folder else name] = 0 if is_folder else path.stat().st_size
            if len(sizes) > _MOST_FILES:
                raise UserError(
                    f"{folder} holds more than {_MOST_FILES:,} files; choose the project's own "
                    "folder with --working-dir, or exclude what a job does not need in .rayignore"
                )

    skips = [folder_excludes(folder, [*default_excludes(), *excludes])]
    try:
        obeys = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
        walk_folder(folder, skips, add, include_gitignore=obeys, logger=_SILENT)
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename} ({error.strerror}), which would be uploaded; exclude it "
            "in .rayignore, or make it readable"
        ) from error
    return dict(sorted(sizes.items()))


def _is_secret(folder: Path, path: str) -> bool:
    name = path.rpartition("/")[2].lower()

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    place = any(fnmatch.fnmatchcase(f"/{path}", f"*/{place}") for place in _SECRET_PLACES)
    if not matches(_EXAMPLES) and (place or matches(_SECRET_NAMES)):
        return True
    if path.endswith("/"):
        return False
    data = (folder / path).read_bytes()
    # In UTF-16, as some shells write it, every other byte is 0.
    return bool(_KEY.search(data) or _KEY.search(data.replace(b"\0", b"")))


# Recipe keys whose values are files, folders or globs.
_PATH_KEYS = ("paths", "path", "train", "validation", "test", "initial")


@dataclass(frozen=True)
class SubmittedJob:
    """A job to submit. `workflow` and `config` are files, relative to the working folder `folder`,
    or names of those in an installed package, which is then uploaded too."""

    folder: Path
    workflow: str
    config: str
    overrides: tuple[str, ...]
    recipe: Recipe

    @property
    def input_paths(self) -> dict[str, str]:
        """The keys of files, folders or globs in the recipe, by path."""
        texts = list_texts(self.recipe.model_dump(mode="json"))
        # A list of paths is given whole.
        keys = [(re.sub(r"(\.\d+)+$", "", key), text) for key, text in texts]
        return {path: key for key, path in keys if key.rpartition(".")[2] in _PATH_KEYS}

    @property
    def entrypoint(self) -> str:
        """The shell command that the head runs."""
        run = [] if Path(self.workflow).suffix else ["-m", "rungwise", "run"]
        return shlex.join(["python", *run, self.workflow, self.config, *self.overrides])

    @property
    def excludes(self) -> list[str]:
        """Patterns of files that are not uploaded, as in a .gitignore: roots, files of MLflow."""
        stores = {file.parent.name for file in self.folder.glob("*/mlflow.db")}
        root = self.folder / self.recipe.root
        if not is_remote(self.recipe.root) and root.is_relative_to(self.folder):
            stores.add(root.relative_to(self.folder).as_posix())
        return [*_LEFT_BY_RUNS, *(f"/{name}" for name in sorted(stores - {"."}))]

    def environment(self, scratch: Path) -> dict[str, Any]:
        """Return the runtime environment by which Ray uploads files of this machine. Without a
        checkout in the folder the package goes along, as in a wheel, from a copy in `scratch`."""
        environment: dict[str, Any] = {"working_dir": str(self.folder), "excludes": self.excludes}
        if not (Path(self.workflow).suffix and Path(self.config).suffix):
            package = scratch / PACKAGE.name
            workflows = data_parent("workflows") / "workflows"
            ignore = shutil.ignore_patterns("__pycache__")
            for source, copy in ((PACKAGE, package), (workflows, package / "workflows")):
                shutil.copytree(source, copy, ignore=ignore, dirs_exist_ok=True)
            environment["py_modules"] = [str(package)]
        return environment


def load_job(folder: str, workflow: str, config: str, overrides: Sequence[str]) -> SubmittedJob:
    """Read the job and its recipe. Raises UserError for what is missing, outside or wrong."""
    top = local_path(folder).resolve()
    if not top.is_dir():
        raise UserError(f"--working-dir: expected a folder, found {folder}")
    workflow = _relative_file(top, workflow, "workflows", ".py", "WORKFLOW")
    config = _relative_file(top, config, "workflows/configs", ".yaml", "CONFIG")
    recipe = load_recipe(top / config if Path(config).suffix else config, overrides)
    return SubmittedJob(top, workflow, config, tuple(overrides), recipe)


def check_stages(job: SubmittedJob) -> list[str]:
    """Build the stages; return what only the cluster can check. Raises UserError for a fault."""
    with contextlib.chdir(job.folder):
        elsewhere = [path for path in job.input_paths if _is_elsewhere(path)]
        try:
            make_stages(job.workflow, job.recipe)
        except UserError as error:
            if not any(path in str(error) for path in elsewhere):
                raise
            return [f"not checked here, because only the cluster may have it: {error}"]
    return []


def check_paths(job: SubmittedJob, sizes: Mapping[str, int]) -> list[str]:
    """The paths of the recipe that every machine of the cluster must have at the same place. Raises
    ConfigError if a relative path is not uploaded, since the job reads it from the upload."""
    absolute = []
    with contextlib.chdir(job.folder):
        for path, key in job.input_paths.items():
            if _is_elsewhere(path):
                absolute += [] if is_remote(path) else [path]
                continue
            if os.path.normpath(path).split(os.sep)[0] == "..":
                raise ConfigError(
                    f"{key}: {path} lies outside of the working folder {job.folder}, which is all "
                    f"that is uploaded; give an absolute path that every machine has, such as "
                    f"{os.path.abspath(path)} for a cluster on this one, or s3://"
                )
            for file in on_disk(path):
                name = os.path.relpath(file.uri.removeprefix("file://"), job.folder)
                if Path(name).as_posix() not in sizes:
                    raise ConfigError(
                        f"{key}: {name} is not uploaded, because a .gitignore or .rayignore "
                        "excludes it, or it is below a root of artifacts; let it through with a "
                        "line beginning with ! in .rayignore's own folder, or give an absolute "
                        "path that every machine has, or s3://"
                    )
    return absolute


def _is_elsewhere(path: str) -> bool:
    """Whether a path may exist on the cluster even if it does not exist here."""
    return is_remote(path) or path.startswith("~") or Path(path).is_absolute()


def _relative_file(folder: Path, name: str, place: str, suffix: str, what: str) -> str:
    """The file, relative to the working folder, or the name of one of the installed package."""
    short = not Path(name).suffix
    file = Path(place, f"{name}{suffix}") if short else Path(name)
    path = next((path for path in (file, folder / file) if path.is_file()), None)
    if path is None:
        if short and (data_parent("workflows") / file).is_file():
            return name
        raise UserError(f"{what}: there is no file {file}, here or in {folder}")
    path = path.resolve()
    if not path.is_relative_to(folder):
        raise UserError(
            f"{what} {file} lies outside of the working folder {folder}, which is all that is "
            "uploaded; choose the folder that holds it with --working-dir"
        )
    return path.relative_to(folder).as_posix()


ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_DEFAULT_TOKEN = Path(".ray", "auth_token")  # the last place where Ray looks, below the home


@dataclass(frozen=True)
class Server:
    """A job server, and the token to show it, if any."""

    address: str
    token: str | None = field(repr=False)
    token_path: Path | None  # None also if the token is in a variable

    def command(self, *arguments: str) -> str:
        """`ray job ARGUMENTS` for a shell, with the address and the token's file."""
        variables = ["RAY_AUTH_MODE=token"] if self.token is not None else []
        if self.token_path is not None:
            variables.append(f"RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.token_path))}")
        verb, *rest = arguments
        command = shlex.join(["ray", "job", verb, "--address", self.address, *rest])
        return " ".join([*variables, command])


def find_server(address: str | None) -> Server:
    """The server at `address`, in the environment, or of the cluster here, or UserError."""
    if address := address or os.environ.get(ADDRESS_VARIABLE):
        url = address if "://" in address else f"http://{address}"
        return _make_server(url.rstrip("/"))
    if cluster := find_cluster():
        return _make_server(cluster.job_address)
    raise UserError(
        "which cluster? give --address http://HOST:8265 or set RAY_API_SERVER_ADDRESS (after "
        "`kubectl port-forward service/rungwise-head-svc 8265` it is http://127.0.0.1:8265), or "
        "start one here with: rungwise up"
    )


def connect(server: Server) -> JobSubmissionClient:
    """Ray's client of the server. Raises UserError if none answers, or it refuses the token."""
    for module in ("dashboard_sdk", "job.sdk"):  # else these tell of packages and sockets
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
    os.environ[ADDRESS_VARIABLE] = server.address  # which Ray's client prefers to its argument
    try:
        return JobSubmissionClient(server.address, headers=headers)
    except AuthenticationError as error:
        raise UserError(
            f"the cluster at {server.address} wants a token, and "
            + ("none is set" if server.token is None else "refuses this one")
            + "; put the cluster's token in a file and name the file in RAY_AUTH_TOKEN_PATH"
        ) from error
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no job server of a Ray cluster answers at {server.address}; start one with `rungwise "
            "up`, or forward the port of one on Kubernetes and leave it open: kubectl port-forward "
            f"service/rungwise-head-svc {DASHBOARD_PORT}"
        ) from error


def _make_server(address: str) -> Server:
    """The server with the token of the cluster started here, or else from where Ray looks."""
    cluster = find_cluster()
    default = Path.home() / _DEFAULT_TOKEN
    if cluster and cluster.job_address == address:
        path = Path(cluster.token_path)
    elif value := os.environ.get("RAY_AUTH_TOKEN"):
        return Server(address, value.strip(), None)
    elif value := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        path = local_path(value)
    elif default.is_file():
        path = default
    else:
        return Server(address, None, None)
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the token at {path} ({error}); name its file in RAY_AUTH_TOKEN_PATH"
        ) from error
    return Server(address, token, path)


_LONGEST_NAME = 40
_POLL_SECONDS = 1.0
# A head that has just started turns submissions away until its agent runs.
_NOT_YET = "No available agent"
_START_SECONDS = 60.0
# Longer than a laptop sleeps, but not for ever for a dead cluster.
PATIENCE_SECONDS = 1800.0
# How long a job may take after SIGTERM to close its runs before Ray kills it; Ray's default of 3 s
# is too short for a slow tracking server.
_VARIABLES = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}


def submit(job: SubmittedJob, server: Server, *, wait: bool) -> int:
    """Check, submit and follow the job. Raises UserError before anything is uploaded."""
    console = plain_console()
    notes = check_stages(job)
    sizes = check_upload(job.folder, job.excludes)
    client = connect(server)
    check_versions(client)
    if paths := check_paths(job, sizes):
        notes.append(f"every machine must have {', '.join(paths)} at the same place")
    files = format_count(sum(not name.endswith("/") for name in sizes), "file")
    console.print(f"command  {job.entrypoint}", highlight=False, markup=False)
    console.print(f"upload   {files} of {job.folder}, {decimal(sum(sizes.values()))}", markup=False)
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    job_id = _submit(client, job)
    console.print(f"\nsubmitted {job_id}")
    commands = [server.command("logs", "--follow", job_id), server.command("stop", job_id)]
    if not wait:
        console.print("\n  ".join(["follow it, or end it:", *commands]))
        return OK
    console.print("Ctrl-C leaves it running\n")
    try:
        details = follow(client, job_id)
    except KeyboardInterrupt:
        console.print("\n  ".join([f"\n{job_id} goes on; follow it, or end it:", *commands]))
        return INTERRUPTED
    console.print(f"\n{job_id}: {details.status.value.lower()}")
    if details.status is JobStatus.SUCCEEDED:
        return OK
    if details.driver_exit_code is None and details.message:
        console.print(details.message.strip(), markup=False)  # Ray's: the command never ran
    console.print("submit it again, and it continues from its checkpoints")
    return FAILED


def check_versions(client: JobSubmissionClient) -> None:
    """Raise UserError if the cluster has another minor version of Ray or Python."""
    metadata = client._do_request("GET", "/api/v0/cluster_metadata").json()["data"]
    here = {"Ray": ray.__version__, "Python": platform.python_version()}
    for name, local in here.items():
        remote = metadata[f"{name.lower()}Version"]
        if Version(remote).release[:2] != Version(local).release[:2]:
            raise UserError(
                f"{name} is {remote} on the cluster and {local} here; make this environment with "
                f"{name} {remote}"
            )


def follow(client: JobSubmissionClient, job_id: str) -> JobDetails:
    """Print the job's output, each character once, until it has ended. Raises UserError after
    PATIENCE_SECONDS without an answer. KeyboardInterrupt does not stop the job."""
    printed = 0

    def write(text: str, position: int) -> None:
        """Write the new part of `text`, which begins at `position` in the output."""
        nonlocal printed
        sys.stdout.write(text[max(0, printed - position) :])
        sys.stdout.flush()
        printed = max(printed, position + len(text))

    async def tail() -> None:
        # Every connection receives the output from its beginning.
        position = 0
        async for text in client.tail_job_logs(job_id):
            write(text, position)
            position += len(text)

    last_answer = time.monotonic()
    while True:
        with contextlib.suppress(aiohttp.ClientError, RuntimeError, OSError):
            asyncio.run(tail())
        try:
            details = client.get_job_info(job_id)
            if details.status.is_terminal():
                write(client.get_job_logs(job_id), 0)
                return details
            last_answer = time.monotonic()
        except requests.RequestException as error:
            if time.monotonic() - last_answer > PATIENCE_SECONDS:
                raise UserError(
                    f"{client.get_address()} no longer answers, and {job_id} may go on; submit it "
                    "again later, and it continues from its checkpoints"
                ) from error
        except RuntimeError as error:
            raise UserError(
                f"{client.get_address()} does not know the job {job_id} ({error}); a head that "
                "starts anew forgets its jobs: submit it again, and it continues"
            ) from error
        time.sleep(_POLL_SECONDS)


def _submit(client: JobSubmissionClient, job: SubmittedJob) -> str:
    """Upload and submit the job; return its id."""
    name, head = job.recipe.name, commit(job.folder) or ""
    deadline = time.monotonic() + _START_SECONDS
    with tempfile.TemporaryDirectory() as scratch:
        environment = job.environment(Path(scratch))
        environment["env_vars"] = {**_VARIABLES, COMMIT_VARIABLE: head}
        while True:
            try:
                return client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=f"{name[:_LONGEST_NAME]}-{secrets.token_hex(3)}",
                    runtime_env=environment,
                    metadata={"job_name": name, "commit": head},
                )
            except RuntimeError as error:
                if _NOT_YET not in str(error) or time.monotonic() > deadline:
                    raise UserError(
                        f"{client.get_address()} refuses the job: {str(error).splitlines()[-1]}"
                    ) from error
                time.sleep(_POLL_SECONDS)
