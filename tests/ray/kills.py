"""A stage in a process to kill, on a Ray of its own or in one process that kills itself.

python -m tests.ray.kills WANTED.json
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rungwise.cluster import tasks
from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages import artifact
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.summary import CORPUS
from rungwise.instances.summary import INSTANCES, read_kind
from tests.conftest import REPOSITORY

COMPUTE = ComputeConfig(object_store_megabytes=100)
PARTS = 5


class KillsItself(SilentReporter):
    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done == PARTS:
            os.kill(os.getpid(), signal.SIGKILL)


def start(folder: Path, **wanted: Any) -> subprocess.Popen[str]:
    """Start the stage with this `config`, `output` and so on, in a process group of its own.

    It prints the digests of its files, if it comes to its end.
    """
    (folder / "wanted.json").write_text(json.dumps(wanted))
    path = os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ray.kills", str(folder / "wanted.json")],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def printed_by(process: subprocess.Popen[str]) -> dict[str, str]:
    """The digests that a stage has printed once it has ended."""
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return json.loads(printed.strip().splitlines()[-1])


def prepare(cpus: int) -> tuple[AbstractContextManager[None], Context]:
    """Start a Ray of these CPUs; without any, kill the job when `PARTS` parts are done."""
    if cpus:
        return session(COMPUTE, num_cpus=cpus), Context(COMPUTE)
    tasks._SMALL_BYTES = math.inf
    return contextlib.nullcontext(), Context(COMPUTE, KillsItself())


def main(stage: str, config: Any, inputs: dict[str, str], output: str, cpus: int) -> None:
    set_environment()
    loaded = ((name, artifact.load(Folder.at(uri))) for name, uri in inputs.items())
    artifacts = {name: each for name, each in loaded if each is not None}
    if stage == "corpus":
        build, config = CORPUS.run, validate(CorpusConfig, config)
    else:
        wanted = artifact.Artifact(stage, "", Folder.at("."), {"config": config})
        build, config = INSTANCES.run, read_kind(wanted)
    place, context = prepare(cpus)
    with place:
        summary = build(config, artifacts, Folder.at(output), context)
    print(json.dumps(summary.sha256))


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
