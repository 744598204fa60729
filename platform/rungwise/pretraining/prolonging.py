"""A longer run goes on from the plateau of a shorter one, or decays from any of its checkpoints.

With `schedule.kind: warmup_stable_decay` and `warmup_steps`, runs that differ in `steps`, in the
decay and in `longer_share` alone take the same first steps, up to the end of the shorter plateau
(`shared_steps`). So a checkpoint that a finished run left up to there is one of the new run too:
weights, moments, average, step and position in the data. The artifact is the one that the new
config names, whichever way it came about; its summary says from which run it went on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact
from rungwise.core.config import canonical_json, plain
from rungwise.core.storage import Folder
from rungwise.pretraining.config import VERSION, PretrainStageConfig
from rungwise.pretraining.initial import config_of
from rungwise.training.checkpoint import Checkpoints, EarlierRun
from rungwise.training.config import GradientConfig
from rungwise.training.curriculum import shared_steps


def goes_on_from(
    config: PretrainStageConfig, inputs: Mapping[str, str], finished: Sequence[Artifact]
) -> EarlierRun | None:
    """The one of the finished runs that shares the most steps and has a checkpoint of them.

    `inputs` are fingerprints by name. None where no run shares any.
    """
    if not isinstance(config.pretrain, GradientConfig) or not shared_steps(config.pretrain):
        return None
    own, found = _shared_facts(config, inputs), {}
    for artifact in finished:
        facts = artifact.record["facts"]
        if facts["version"] != VERSION or facts["config"]["model"] != own["config"]["model"]:
            continue
        before = config_of(artifact)
        if canonical_json(_shared_facts(before, facts["inputs"])) != canonical_json(own):
            continue
        assert isinstance(before.pretrain, GradientConfig)
        most = min(shared_steps(config.pretrain), shared_steps(before.pretrain))
        # Not checked against the record: a damaged checkpoint is passed over for the one before.
        folder = Folder(artifact.folder.uri) / "checkpoints"
        if steps := [step for step in Checkpoints(folder, "", 1).steps() if step <= most]:
            named = {"fingerprint": artifact.fingerprint, "label": artifact.label}
            found[steps[-1]] = EarlierRun(folder, steps[-1], named)
    return found[max(found)] if found else None


def told(
    config: PretrainStageConfig, inputs: Mapping[str, str], finished: Sequence[Artifact]
) -> str | None:
    """The words of a plan for a run that goes on from one of the finished ones."""
    found = goes_on_from(config, inputs, finished)
    return found and f"goes on from step {found.steps} of {name_of(found)}"


def beside(output: Folder) -> list[Artifact]:
    """The finished runs in the folder that holds `output`."""
    root, stage, _ = output.uri.rsplit("/", 2)
    return artifacts.all_of(Folder.at(root), stage)


def name_of(earlier: EarlierRun) -> str:
    return f"{earlier.named['label']}-{earlier.named['fingerprint']}"


def _shared_facts(config: PretrainStageConfig, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the shared steps: all but their number, and what comes after them."""
    blocks = plain(config.identity())
    for key in ("steps", "longer_share"):
        del blocks["pretrain"][key]
    schedule = blocks["pretrain"]["optimizer"]["schedule"]
    for key in ("decay_fraction", "decay_steps", "final_fraction"):
        del schedule[key]
    before = {name: value for name, value in inputs.items() if name != "longer_instances"}
    return {"config": blocks, "inputs": before}
