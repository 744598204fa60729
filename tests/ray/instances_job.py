"""The instances stage in a process to kill: `python instances_job.py CONFIG.json`."""

import json
import sys
from pathlib import Path

from rungwise.cluster.environment import set_environment
from rungwise.core.stages import artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances import building
from rungwise.instances.summary import read_kind
from tests.ray.kills import prepare

if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text())
    set_environment()
    found = {name: artifact.load(Folder.at(uri)) for name, uri in wanted["inputs"].items()}
    inputs = {name: each for name, each in found.items() if each is not None}
    config = read_kind(artifact.Artifact("instances", "", Folder.at("."), wanted))
    place, context = prepare(wanted["cpus"])
    with place:
        output = Folder.at(wanted["output"])
        summary = building.build_instances(config, inputs, output, context)
    print(json.dumps(summary.sha256))
