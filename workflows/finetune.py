"""Raw text to pretrained models, fine-tuned, compared on tasks and registered, with a report.

python workflows/finetune.py workflows/configs/quickstart.yaml
python workflows/finetune.py workflows/configs/ablation.yaml
"""

import sys
from pathlib import Path

# A job's working folder contains the package, but does not install it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.commands.run import run_workflow
from rungwise.core.stages.stage import Stage
from rungwise.pipeline.experiment import experiment_stages, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import report_stage


def stages(recipe: Recipe) -> list[Stage]:
    before = experiment_stages(recipe, resolve_variants(recipe))
    return [*before.values(), report_stage(recipe, before)]


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
