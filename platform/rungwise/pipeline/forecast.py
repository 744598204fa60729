"""Whether a run will build something, as far as its recipe's text and the root say.

Ray can then start while PyTorch is imported, which the whole answer, the plan, needs first.
"""

import glob
import json
from collections.abc import Sequence
from pathlib import Path

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.configuration.yaml_file import parse_overrides, read_mapping
from rungwise.core.errors import UserError
from rungwise.core.stages.checked import RECORD
from rungwise.core.stages.provenance import command
from rungwise.pipeline.places import recipe_file, root_folder


def expect_building(config: str, overrides: Sequence[str]) -> ComputeConfig | None:
    """The block `compute` of a run that will probably build, else None: nothing of this name is
    below the root yet, or the recipe or the command is another than that of the newest artifact.
    A recipe with faults is None too."""
    try:
        file = recipe_file(config)
        data = with_overrides(read_mapping(file), parse_overrides(overrides))
        compute = validate(ComputeConfig, data.get("compute") or {}, "compute")
        root = root_folder(str(data.get("root", "artifacts")))
    except UserError:
        return None
    if root.remote:
        return None
    name = glob.escape(str(data.get("name")))
    records = list(Path(root.uri).glob(f"*/{name}-*/{RECORD}"))
    if not records:
        return compute
    newest = max(records, key=lambda record: record.stat().st_mtime)
    if newest.stat().st_mtime < file.stat().st_mtime:
        return compute
    try:
        made_by = json.loads(newest.read_bytes())["made_by"]
    except (ValueError, KeyError):
        return None
    return None if made_by["command"] == command() else compute
