"""Raw text to pretraining instances only.

python workflows/instances.py workflows/configs/instances.yaml instances.masking.unit=whole_word
"""

import sys
from pathlib import Path

# A job's working folder contains the package, but does not install it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.commands.run import run_workflow
from rungwise.core.stages.stage import Stage
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import instances_stages


def stages(recipe: Recipe) -> list[Stage]:
    return list(instances_stages(recipe).values())


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
