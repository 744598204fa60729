"""Raw text to a pretrained model by the steps of the recipe, registered if it asks for that, with a
report.

python workflows/pretrain.py workflows/configs/quickstart.yaml pretrain.steps=200
"""

import sys
from pathlib import Path

# A job's working folder contains the package, but does not install it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rungwise.commands.run import run_workflow
from rungwise.core.stages.stage import Stage
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import chain_stages, measure_stage, register_stage, report_stage


def stages(recipe: Recipe) -> list[Stage]:
    chain, steps = chain_stages(recipe)
    # Of a task, only the text or the pairs were read.
    last = {name: stage for name, stage in steps[-1].stages.items() if name != "task"}
    chain.append(report_stage(recipe, last))
    if recipe.registry and recipe.model:
        if recipe.measure:
            last["measure"] = measure_stage(recipe, steps)
            chain.append(last["measure"])
        chain.append(register_stage(recipe.registry, recipe.model.kind, last))
    return chain


if __name__ == "__main__":
    sys.exit(run_workflow(__file__, sys.argv[1:]))
