"""The ladder: train every rung on one corpus and compare them on the same suites.

python workflows/ladder.py workflows/configs/ladder-quick.yaml
"""

import sys
from pathlib import Path

# A job's working folder contains the package, but does not install it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.commands.run import run_workflow
from rungwise.core.stages.stage import Stage
from rungwise.pipeline.ladder import ladder_stages
from rungwise.pipeline.recipe import Recipe


def stages(recipe: Recipe) -> list[Stage]:
    return list(ladder_stages(recipe).values())


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
