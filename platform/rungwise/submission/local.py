"""Checks of a job on the submitting machine, which may not have the job's data."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.core.configuration.config import flatten
from rungwise.core.configuration.secrecy import without_passwords
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.storage import archives
from rungwise.core.storage.folder import local_path
from rungwise.core.storage.object_store import is_remote
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import load_recipe, stages_of
from rungwise.submission import resources
from rungwise.submission.upload import Upload

# Recipe keys whose values are files, folders or globs.
_PATH_KEYS = ("paths", "path", "word_list", "phrases", "train", "validation", "test", "initial")


@dataclass(frozen=True)
class Job:
    """A job to submit; `workflow` and `config` are relative to `folder`, its working folder."""

    folder: Path
    workflow: str
    config: str
    overrides: tuple[str, ...]
    recipe: Recipe

    @property
    def entrypoint(self) -> str:
        """The shell command that the head runs."""
        return shlex.join(["python", self.workflow, self.config, *self.overrides])


def read(folder: str, workflow: str, config: str, overrides: Sequence[str]) -> Job:
    """Read the job and its recipe. Raises UserError if a file is missing or outside `folder`, or if
    the recipe or an override is wrong or contains a password."""
    top = local_path(folder).resolve()
    if not top.is_dir():
        raise UserError(f"--working-dir: expected a folder, found {folder}")
    if not workflow.endswith(".py"):
        workflow = str(Path("workflows") / f"{workflow}.py")
    if not Path(config).suffix:
        config = str(Path("workflows", "configs") / f"{config}.yaml")
    script, recipe_file = (
        _inside(top, name, what) for name, what in ((workflow, "WORKFLOW"), (config, "CONFIG"))
    )
    recipe = load_recipe(top / recipe_file, overrides)
    for key, value in flatten(recipe).items():
        if without_passwords(value) != value:
            raise UserError(
                f"{key} holds a password, and a job's recipe is uploaded, its command line shown "
                "to all who look at the cluster; write it in the environment of the cluster "
                "instead, such as MLFLOW_TRACKING_URI"
            )
    return Job(top, script, recipe_file, tuple(overrides), recipe)


def stages(job: Job, notes: list[str]) -> dict[str, int]:
    """The names of the workflow's stages, and how many of each can run side by side.

    Builds the stages as the job will do on the cluster, which reads the digests of input files. If
    a file is missing here that the cluster may have, the names are guessed from the recipe and
    `notes` says what was not checked. Raises UserError for any other fault.
    """
    with contextlib.chdir(job.folder):
        elsewhere = [path for path in paths_of(job.recipe) if _elsewhere(path)]
        try:
            return resources.side_by_side(stages_of(job.workflow, job.recipe))
        except UserError as error:
            if not any(path in str(error) for path in elsewhere):
                raise
            notes.append(f"not looked at here, because only the cluster may have it: {error}")
    blocks = {"pretrain": ("pretrain",), "finetune": ("sweep", "evaluate")}
    given = [names for block, names in blocks.items() if getattr(job.recipe, block) is not None]
    return {name: 1 for names in given for name in names}


def check_paths(job: Job, upload: Upload) -> list[str]:
    """The paths of the recipe that every machine must have at the same place. Raises UserError if a
    relative path is not uploaded, since the job reads it from the upload."""
    apart = []
    with contextlib.chdir(job.folder):
        for path in dict.fromkeys(paths_of(job.recipe)):
            if is_remote(path):
                continue
            if path.startswith("~") or Path(path).is_absolute():
                apart.append(path)
                continue
            normal = os.path.normpath(path)
            if normal.split(os.sep)[0] == "..":
                raise ConfigError(
                    f"{path} lies outside of the working folder {job.folder}, which is all that is "
                    "uploaded; give an absolute path that every machine has, or s3://"
                )
            for file in archives.on_disk(path):
                name = os.path.relpath(file.uri.removeprefix("file://"), job.folder)
                if not upload.holds(Path(name).as_posix()):
                    raise ConfigError(
                        f"{name}, which the recipe reads, is not uploaded, because a .gitignore or "
                        ".rayignore excludes it; let it through with a line beginning with ! in "
                        ".rayignore's own folder, or give an absolute path that every machine has, "
                        "or s3://"
                    )
    return apart


def paths_of(recipe: Recipe) -> list[str]:
    leaves = _leaves(recipe.model_dump(mode="json"))
    return [leaf for key, leaf in leaves if key in _PATH_KEYS and isinstance(leaf, str)]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists, each with the last key above it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, str(name).rpartition(".")[2])
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value


def _elsewhere(path: str) -> bool:
    """Whether a path may exist on the cluster even if it does not exist here."""
    return is_remote(path) or path.startswith("~") or Path(path).is_absolute()


def _inside(folder: Path, name: str, what: str) -> str:
    """The file `name`, here or in the working folder, relative to the working folder."""
    candidates = [place for place in (Path(name), folder / name) if place.is_file()]
    if not candidates:
        raise UserError(f"{what}: there is no file {name}, here or in {folder}")
    path = candidates[0].resolve()
    if not path.is_relative_to(folder):
        raise UserError(
            f"{what} {name} lies outside of the working folder {folder}, which is all that is "
            "uploaded; choose the folder that holds it with --working-dir"
        )
    return path.relative_to(folder).as_posix()
