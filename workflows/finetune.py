"""Raw text to a pretrained, fine-tuned, evaluated and registered BERT, and a page about it.

python workflows/finetune.py workflows/configs/quickstart.yaml
"""

import sys
from pathlib import Path

# A job's folder holds the package but has not installed it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.command_line import run_workflow
from rungwise.recipe import Recipe, finetune_stages, pretrain_stages, report_stage
from rungwise.stage import Stage


def stages(recipe: Recipe) -> list[Stage]:
    before = pretrain_stages(recipe)
    after = finetune_stages(recipe, before)
    return [*before.values(), *after.values(), report_stage(recipe, before | after)]


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
