"""The inputs of an evaluation by variant: the artifacts and settings of its fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.title import Title
from rungwise.evaluation.comparison.summary import PretrainingCost, Selection
from rungwise.finetune import FinetuneConfig
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tuning.record import SweepSummary


@dataclass(frozen=True)
class VariantInputs:
    """A variant with its fine-tuning and its pretrainings, which differ only in their seed;
    `selection` is None where no sweep selected the settings."""

    name: str
    finetune: FinetuneConfig
    tokenizer: Artifact
    pretrains: tuple[Artifact, ...]
    selection: Selection | None

    @property
    def cost(self) -> PretrainingCost | None:
        """The cost of one of its pretrainings; None from random weights."""
        if self.finetune.initialisation == "random":
            return None
        summary = PretrainSummary.of(self.pretrains[0])
        return PretrainingCost(
            objective=summary.objective,
            steps=None if summary.gradient is None else summary.gradient.steps,
            tokens=summary.tokens,
            flops=summary.flops,
            parameters=summary.parameters,
            fingerprint=self.pretrains[0].fingerprint,
        )

    def file_stem(self, seed: int, inputs: Mapping[str, Artifact]) -> str:
        """The name of a seed's files. It depends on the settings, which differ between attempts if
        the sweep was rebuilt in between."""
        facts = {"settings": self.finetune, "inputs": [a.fingerprint for a in inputs.values()]}
        return f"{self.name}-{seed}-{fingerprint(facts)}"


def input_name(stage: str, variant: str, number: int | None = None, seed: int | None = None) -> str:
    """The name of the input from `stage` for a variant; `number` indexes upstream values, `seed`
    the pretrainings after the first."""
    return str(Title(stage, variant=variant, number=number, seed=seed))


def resolve_variant(
    name: str, finetune: FinetuneConfig, inputs: Mapping[str, Artifact]
) -> VariantInputs:
    """The variant with its artifacts; a sweep's winner replaces `finetune`, and its artifacts those
    of the other values that the sweep tried."""
    sweep = inputs.get(input_name("sweep", name))
    if sweep is None:
        tokenizer, pretrain = (inputs[input_name(s, name)] for s in ("tokenizer", "pretrain"))
        return VariantInputs(name, finetune, tokenizer, _all_seeds(name, pretrain, inputs), None)
    summary = SweepSummary.of(sweep)
    best = summary.best
    tokenizer, pretrain = (
        inputs.get(input_name(stage, name)) or inputs[input_name(stage, name, best.upstream)]
        for stage in ("tokenizer", "pretrain")
    )
    selection = Selection(score=summary.best_score, trial=best.name, seed=best.seed)
    pretrains = _all_seeds(name, pretrain, inputs)
    return VariantInputs(name, best.finetune, tokenizer, pretrains, selection)


def _all_seeds(name: str, first: Artifact, inputs: Mapping[str, Artifact]) -> tuple[Artifact, ...]:
    pretrains = [first]
    while (key := input_name("pretrain", name, seed=len(pretrains))) in inputs:
        pretrains.append(inputs[key])
    return tuple(pretrains)
