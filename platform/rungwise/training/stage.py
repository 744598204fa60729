"""Pretrain stage. A run that differs from a finished one only in its length or decay starts from
the steps that both share; its summary names the run it continued from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core.configuration.canonical import canonical_json, plain
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import ContinuableRun, StageType, Trunk
from rungwise.core.storage.folder import Folder
from rungwise.training.checkpoint_files import CheckpointFiles, CheckpointRules, EarlierRun
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import VERSION, FitConfig, PretrainStageConfig, require_gradient
from rungwise.training.initial import read_training_config
from rungwise.training.summary import PretrainSummary


def find_earlier(
    config: GradientFit, inputs: Mapping[str, str], finished: Sequence[Artifact]
) -> EarlierRun | None:
    """The finished run that shares the most steps and has a checkpoint of them; None if none does.
    `inputs` are fingerprints by name."""
    if not config.pretrain.shared_steps:
        return None
    own = _shared_facts(config, inputs)
    earlier: dict[int, EarlierRun] = {}
    for artifact in finished:
        facts = artifact.record["facts"]
        if facts["version"] != VERSION or facts["config"]["model"] != own["config"]["model"]:
            continue
        before = require_gradient(read_training_config(artifact), "steps")
        if canonical_json(_shared_facts(before, facts["inputs"])) != canonical_json(own):
            continue
        most = min(config.pretrain.shared_steps, before.pretrain.shared_steps)
        # Not verified: `Checkpoints.resume` skips a damaged one for the one before.
        folder = Folder(artifact.folder.uri) / "checkpoints"
        files = CheckpointFiles(CheckpointRules(folder, "", 1))
        if steps := [step for step in files.steps() if step <= most]:
            names = {"fingerprint": artifact.fingerprint, "label": artifact.label}
            earlier[steps[-1]] = EarlierRun(folder, steps[-1], names)
    return earlier[max(earlier)] if earlier else None


def plan_earlier(
    config: PretrainStageConfig, inputs: Mapping[str, str], finished: Sequence[Artifact]
) -> ContinuableRun | None:
    """The same for a plan."""
    if not config.pretrain.shared_steps:
        return None
    earlier = find_earlier(require_gradient(config, "steps"), inputs, finished)
    if earlier is None:
        return None
    name, label = earlier.names["fingerprint"], earlier.names["label"]
    return ContinuableRun(name, f"goes on from step {earlier.steps} of {label}-{name}")


def find_trunk(config: PretrainStageConfig, inputs: Mapping[str, str]) -> Trunk | None:
    """The settings of the steps that a run shares with longer ones, and their number; None if it
    shares none."""
    if not config.pretrain.shared_steps:
        return None
    facts = _shared_facts(require_gradient(config, "steps"), inputs)
    return canonical_json(facts), config.pretrain.shared_steps


def list_finished_runs(output: Folder) -> list[Artifact]:
    """The finished runs in the folder that holds `output`."""
    root, stage, _ = output.uri.rsplit("/", 2)
    return artifacts.list_artifacts(Folder.at(root), stage)


def _shared_facts(config: GradientFit, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the shared steps: without their number, and what comes after them."""
    blocks = plain(config.identity())
    for key in ("steps", "longer_share"):
        del blocks["pretrain"][key]
    schedule = blocks["pretrain"]["optimizer"]["schedule"]
    for key in ("decay_fraction", "decay_steps", "final_fraction"):
        del schedule[key]
    before = {name: value for name, value in inputs.items() if name != "longer_instances"}
    return {"config": blocks, "inputs": before}


def pretrain_model(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Fit the model and write its files. Raises UserError if the instances do not fit the model, or
    the fitting fails."""
    fit = FitConfig(config.model, config.pretrain)
    return config.pretrain.fitter(fit, inputs, output, context)


PRETRAIN = StageType(
    "pretrain",
    VERSION,
    pretrain_model,
    PretrainSummary,
    identity=PretrainStageConfig.identity,
    goes_on_from=plan_earlier,
    trunk=find_trunk,
    resumes=True,
    trains_alone=lambda config, compute: config.pretrain.trains_alone(compute),
)
