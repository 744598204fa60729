"""Raw text to a pretrained model, trained on by the steps of `continue_with` if there are any,
registered if the recipe asks for it, with a report.

python workflows/pretrain.py workflows/configs/quickstart.yaml pretrain.steps=200
"""

import sys
from pathlib import Path

# A job's working folder contains the package, but does not install it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.commands.running.run import run_workflow
from rungwise.core.stages.stage import Stage
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import chained_stages, measure_stage, register_stage, report_stage


def stages(recipe: Recipe) -> list[Stage]:
    chain, last = chained_stages(recipe)
    chain.append(report_stage(recipe, last))
    if recipe.registry and recipe.model:
        if recipe.measure:
            last["measure"] = measure_stage(recipe, last)
            chain.append(last["measure"])
        chain.append(register_stage(recipe.registry, recipe.model.kind, last))
    return chain


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
