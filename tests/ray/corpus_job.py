"""The corpus stage in a process to kill: `python corpus_job.py WANTED.json`."""

import json
import sys
from pathlib import Path

from rungwise.cluster.environment import set_environment
from rungwise.core.configuration.config import validate
from rungwise.core.storage.folder import Folder
from rungwise.corpus import CorpusConfig
from rungwise.corpus.building import stage
from tests.ray.kills import prepare

if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text())
    set_environment()
    place, context = prepare(wanted["cpus"])
    with place:
        config = validate(CorpusConfig, wanted["config"])
        stage.build_corpus(config, {}, Folder.at(wanted["output"]), context)
