"""Pretrain language models on Ray, and say with evidence what each is worth.

    recipe = rungwise.load_recipe("workflows/configs/quickstart.yaml", ["pretrain.steps=500"])
    for row in rungwise.plan("workflows/pretrain.py", recipe):
        print(row.stage.name, row.reason)
    rungwise.run("workflows/pretrain.py", recipe)
    pretrained = rungwise.load(recipe)

Names are imported on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # that of typing, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from rungwise.pipeline.loading import load
    from rungwise.pipeline.recipe import Recipe
    from rungwise.pipeline.workflow import load_recipe, plan, run

__all__ = ["Recipe", "load", "load_recipe", "plan", "run"]

_PLACES = {
    "Recipe": "rungwise.pipeline.recipe",
    "load": "rungwise.pipeline.loading",
    "load_recipe": "rungwise.pipeline.workflow",
    "plan": "rungwise.pipeline.workflow",
    "run": "rungwise.pipeline.workflow",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
