"""A recipe: the blocks of one YAML file, and the stages they become.

    corpus ──> tokenizer ──> instances ──> pretrain ──> sweep ──> evaluate ──> register ──> report
         └──> task ────────────────────────────────────┘

Workflows (workflows/*.py) compose these functions in plain Python.
"""

from __future__ import annotations

from pydantic import Field

from rungwise import registry, sweep, tokenizer
from rungwise.config import Config
from rungwise.context import ComputeConfig
from rungwise.corpus import stage as corpus
from rungwise.corpus.sources import CorpusConfig, identity, outside
from rungwise.errors import ConfigError
from rungwise.evaluation import compare
from rungwise.evaluation.compare import EvaluateConfig
from rungwise.finetune import FinetuneConfig
from rungwise.instances import kinds
from rungwise.instances import stage as instances
from rungwise.instances.kinds import InstancesConfig
from rungwise.models.config import ModelConfig
from rungwise.registry import RegistryConfig
from rungwise.report import page
from rungwise.report.page import ReportConfig
from rungwise.stage import Stage
from rungwise.sweep import SweepConfig
from rungwise.tasks import paragraphs
from rungwise.tasks.paragraphs import TaskConfig
from rungwise.tokenizer import TokenizerConfig
from rungwise.tracking import TrackingConfig
from rungwise.training import trainer
from rungwise.training.loop import PretrainConfig
from rungwise.training.reading import READ_BY_NAME


class Recipe(Config):
    """All blocks. Optional ones are needed by the workflows that go so far: `model` and `pretrain`
    by those that train, the last five by those that fine-tune."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # labels folders and runs
    root: str = "artifacts"  # a folder or s3://bucket/prefix
    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    instances: InstancesConfig
    longer_instances: InstancesConfig | None = None  # of the last steps: pretrain.longer_share
    model: ModelConfig | None = None
    pretrain: PretrainConfig | None = None
    report: ReportConfig = ReportConfig()
    compute: ComputeConfig = ComputeConfig()
    tracking: TrackingConfig = TrackingConfig()
    task: TaskConfig | None = None
    finetune: FinetuneConfig | None = None
    sweep: SweepConfig | None = None
    evaluate: EvaluateConfig | None = None
    registry: RegistryConfig | None = None


def instances_stages(recipe: Recipe) -> dict[str, Stage]:
    """Corpus, tokenizer, instances and longer ones if any; inputs come first."""
    text = Stage(
        name="corpus",
        version=2,
        run=corpus.run,
        config=recipe.corpus,
        identity=identity(recipe.corpus),
        outside=outside(recipe.corpus),
    )
    words = Stage(
        "tokenizer",
        2,
        tokenizer.run,
        recipe.tokenizer,
        inputs={"corpus": text},
        identity=tokenizer.identity(recipe.tokenizer),
        outside=tokenizer.outside(recipe.tokenizer),
    )
    stages = {stage.name: stage for stage in (text, words)}
    built = {"instances": recipe.instances, "longer_instances": recipe.longer_instances}
    for name, config in built.items():
        if config is not None:
            stages[name] = Stage(
                name,
                3,
                instances.run,
                config,
                inputs={"corpus": text, "tokenizer": words},
                identity=kinds.identity(config),
                outside=kinds.outside(config),
                resumes=True,
            )
    return stages


def pretrain_stages(recipe: Recipe) -> dict[str, Stage]:
    """Corpus, tokenizer, instances, pretrain; inputs come first. Raises as `check_training`."""
    check_training(recipe)
    assert recipe.model
    assert recipe.pretrain
    before = instances_stages(recipe)
    trained = Stage(
        "pretrain",
        1,
        trainer.run,
        trainer.PretrainStageConfig(model=recipe.model, pretrain=recipe.pretrain),
        inputs={name: stage for name, stage in before.items() if name in READ_BY_NAME},
        resumes=True,
    )
    return before | {"pretrain": trained}


def check_training(recipe: Recipe) -> None:
    """Raise ConfigError where blocks that training needs are missing or do not go together."""
    _need(recipe, "trains", "model", "pretrain")
    assert recipe.pretrain
    if (recipe.longer_instances is None) != (recipe.pretrain.longer_share is None):
        raise ConfigError(
            "longer_instances are what the last pretrain.longer_share of the steps read, but only "
            f"{'the first' if recipe.longer_instances else 'the second'} is set; set both or none"
        )


def finetune_stages(recipe: Recipe, before: dict[str, Stage]) -> dict[str, Stage]:
    """Task, sweep, evaluate and register, on top of the pretraining stages `before`.

    Raises ConfigError if the recipe lacks one of their blocks.
    """
    _need(recipe, "fine-tunes", "task", "finetune", "sweep", "evaluate", "registry")
    assert recipe.task
    assert recipe.finetune
    assert recipe.sweep
    assert recipe.evaluate
    assert recipe.registry
    task = Stage("task", 1, paragraphs.run, recipe.task, inputs={"corpus": before["corpus"]})
    sources = {"task": task, "tokenizer": before["tokenizer"], "pretrain": before["pretrain"]}
    swept = Stage(
        "sweep",
        1,
        sweep.run,
        sweep.SweepStageConfig(finetune=recipe.finetune, sweep=recipe.sweep),
        inputs=sources,
    )
    evaluated = Stage(
        "evaluate", 1, compare.run, recipe.evaluate, inputs=sources | {"sweep": swept}
    )
    registered = Stage(
        "register",
        1,
        registry.run,
        recipe.registry,
        inputs={**before, "task": task, "sweep": swept, "evaluate": evaluated},
        place="driver",
    )
    return {stage.name: stage for stage in (task, swept, evaluated, registered)}


def report_stage(recipe: Recipe, before: dict[str, Stage]) -> Stage:
    """One page about all stages so far."""
    return Stage("report", 2, page.run, recipe.report, inputs=before)


def _need(recipe: Recipe, does: str, *blocks: str) -> None:
    missing = [name for name in blocks if getattr(recipe, name) is None]
    if missing:
        raise ConfigError(
            f"this workflow {does}, but the config has no block {', '.join(missing)}; add what is "
            "missing (workflows/configs/quickstart.yaml has all), or use a workflow that needs "
            "less: instances.py, pretrain.py"
        )
