"""A job and its checks on the submitting machine, which may not have the job's data."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.core.errors import ConfigError, UserError
from rungwise.core.package_data import PACKAGE
from rungwise.core.storage import archives
from rungwise.core.storage.folder import local_path
from rungwise.core.storage.object_store import is_remote
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import load_recipe, make_stages
from rungwise.submission.packing import Upload

# Recipe keys whose values are files, folders or globs.
_PATH_KEYS = ("paths", "path", "word_list", "phrases", "train", "validation", "test", "initial")


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
    def needs_package(self) -> bool:
        return not (Path(self.workflow).suffix and Path(self.config).suffix)

    @property
    def input_paths(self) -> list[str]:
        return list(dict.fromkeys(_input_paths(self.recipe.model_dump(mode="json"))))

    @property
    def entrypoint(self) -> str:
        """The shell command that the head runs."""
        run = [] if Path(self.workflow).suffix else ["-m", "rungwise", "run"]
        return shlex.join(["python", *run, self.workflow, self.config, *self.overrides])

    @property
    def environment(self) -> dict[str, Any]:
        """Return the runtime environment by which Ray uploads files of this machine."""
        package = {"py_modules": [str(PACKAGE)], "excludes": ["__pycache__"]}
        return {"working_dir": str(self.folder), **(package if self.needs_package else {})}


def load_job(folder: str, workflow: str, config: str, overrides: Sequence[str]) -> SubmittedJob:
    """Read the job and its recipe. Raises UserError if a file is missing or outside `folder`, or if
    the recipe or an override is wrong."""
    top = local_path(folder).resolve()
    if not top.is_dir():
        raise UserError(f"--working-dir: expected a folder, found {folder}")
    workflow = _relative_file(top, workflow, "workflows", ".py", "WORKFLOW")
    config = _relative_file(top, config, "workflows/configs", ".yaml", "CONFIG")
    recipe = load_recipe(top / config if Path(config).suffix else config, overrides)
    return SubmittedJob(top, workflow, config, tuple(overrides), recipe)


def check_stages(job: SubmittedJob) -> list[str]:
    """Build the stages as the job will do on the cluster, which reads the digests of input files.
    Return what only the cluster can check. Raises UserError for any fault."""
    with contextlib.chdir(job.folder):
        elsewhere = [path for path in job.input_paths if _is_elsewhere(path)]
        try:
            make_stages(job.workflow, job.recipe)
        except UserError as error:
            if not any(path in str(error) for path in elsewhere):
                raise
            return [f"not checked here, because only the cluster may have it: {error}"]
    return []


def check_paths(job: SubmittedJob, upload: Upload) -> list[str]:
    """The paths of the recipe that every machine must have at the same place. Raises UserError if a
    relative path is not uploaded, since the job reads it from the upload."""
    absolute = []
    with contextlib.chdir(job.folder):
        for path in job.input_paths:
            if _is_elsewhere(path):
                absolute += [] if is_remote(path) else [path]
                continue
            if os.path.normpath(path).split(os.sep)[0] == "..":
                raise ConfigError(
                    f"{path} lies outside of the working folder {job.folder}, which is all that is "
                    "uploaded; give an absolute path that every machine has, or s3://"
                )
            for file in archives.on_disk(path):
                name = os.path.relpath(file.uri.removeprefix("file://"), job.folder)
                if Path(name).as_posix() not in upload.sizes:
                    raise ConfigError(
                        f"{name}, which the recipe reads, is not uploaded, because a .gitignore or "
                        ".rayignore excludes it; let it through with a line beginning with ! in "
                        ".rayignore's own folder, or give an absolute path that every machine has, "
                        "or s3://"
                    )
    return absolute


def _input_paths(value: Any, key: str = "") -> Iterator[str]:
    """The paths in nested mappings and lists, `key` being the last key above the value."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _input_paths(item, str(name).rpartition(".")[2])
    elif isinstance(value, list):
        for item in value:
            yield from _input_paths(item, key)
    elif key in _PATH_KEYS and isinstance(value, str):
        yield value


def _is_elsewhere(path: str) -> bool:
    """Whether a path may exist on the cluster even if it does not exist here."""
    return is_remote(path) or path.startswith("~") or Path(path).is_absolute()


def _relative_file(folder: Path, name: str, place: str, suffix: str, what: str) -> str:
    """The file `name`, here or in the working folder, relative to the working folder. The short
    name of a file that only the installed package has stays a name."""
    short = not Path(name).suffix
    file = Path(place, f"{name}{suffix}") if short else Path(name)
    path = next((path for path in (file, folder / file) if path.is_file()), None)
    if path is None:
        if short and (PACKAGE / file).is_file():
            return name
        raise UserError(f"{what}: there is no file {file}, here or in {folder}")
    path = path.resolve()
    if not path.is_relative_to(folder):
        raise UserError(
            f"{what} {file} lies outside of the working folder {folder}, which is all that is "
            "uploaded; choose the folder that holds it with --working-dir"
        )
    return path.relative_to(folder).as_posix()
