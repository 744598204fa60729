"""The stages that a recipe becomes; workflows (workflows/*.py) combine them in plain Python.

corpus ──> tokenizer ──> tokens ──> instances ──> pretrain ──> next step, fine-tuning or report

Where searches decide about later stages, the list grows with what is finished, alike for drivers
that are killed or work on the same recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Planned, Stage, Title, plan
from rungwise.core.storage.folder import Folder
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.instances.summary import INSTANCES, LONGER_INSTANCES
from rungwise.models.family import Family
from rungwise.models.fitting import MixturePart, RefiningFamily
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.pipeline.recipe import Recipe, StepConfig
from rungwise.report.stage import REPORT
from rungwise.serving.importing import INITIAL_WEIGHTS
from rungwise.serving.stage import REGISTER, RegisterConfig, RegistryConfig
from rungwise.tasks.config import TASK, TASK_TEXT, TASK_TOKENS, FilesTaskConfig, TaskTokensConfig
from rungwise.tokenizer import TOKENIZER
from rungwise.tokenizer.token_stage import TOKENS, TokensConfig
from rungwise.training.feed import MIXED_INSTANCES, is_read
from rungwise.training.fit_config import PRETRAIN, PretrainStageConfig, check_rows, require_gradient
from rungwise.training.initial import INITIAL, ImportConfig, check_vectors


@dataclass(frozen=True)
class TrainedStep:
    """A step with its stages by name, inputs first, but for the pretraining before it."""

    step: StepConfig
    stages: dict[str, Stage]


Before = Mapping[str, TrainedStep]  # by the input that its model is


@dataclass
class Graph:
    """Stages by title, each once: variants share stages of one fingerprint."""

    stages: dict[str, Stage] = field(default_factory=dict)
    _by_fingerprint: dict[str, Stage] = field(default_factory=dict)

    def include(self, stage: Stage) -> None:
        """Add a stage and all before it under their own titles."""
        for source in stage.inputs.values():
            self.include(source)
        self.stages.setdefault(stage.display_name, stage)
        self._by_fingerprint.setdefault(stage.fingerprint, stage)

    def add(self, stage: Stage, title: Title) -> Stage:
        """Add `stage` under `title`, or return an equal stage that was added before."""
        equal = self._by_fingerprint.get(stage.fingerprint)
        if equal is not None:
            return equal
        inputs = {name: self._by_fingerprint[of.fingerprint] for name, of in stage.inputs.items()}
        stage = replace(stage, inputs=inputs, title=title)
        assert stage.display_name not in self.stages, f"two stages called {title}"
        self.stages[stage.display_name] = self._by_fingerprint[stage.fingerprint] = stage
        return stage

    def add_steps(
        self, trained: Iterable[TrainedStep], title: Title, variant: str | None = None
    ) -> list[TrainedStep]:
        """Add the stages of steps under their names and `title`. Those titled by a step have the
        name of the variant too, since a task may have that of the step."""

        def add(name: str, stage: Stage) -> Stage:
            step = stage.title.step
            own = title if step is None else replace(title, variant=variant)
            return self.add(stage, replace(own, stage=name, step=step))

        return [
            TrainedStep(each.step, {name: add(name, stage) for name, stage in each.stages.items()})
            for each in trained
        ]


def train_steps(
    recipe: Recipe, examples: Stage | None = None, common: bool = False
) -> list[TrainedStep]:
    """Turn each step into stages. `examples` is the task whose text some steps read; `common` stops
    before the first of these. Raises as `check_steps` does."""
    configs, source = check_steps(recipe), _StepBuilder(recipe, _tokenizer_stage(recipe), examples)
    trained: list[TrainedStep] = []
    for step, config in zip(recipe.training_steps, configs, strict=True):
        if common and step.reads_each_task:
            break
        before = {INITIAL: trained[-1]} if trained else {}
        if config.pretrain.parts(config.model):
            trained = source.train_parts(step, config)
            before = {str(part.step.name): part for part in trained}
        trained.append(source.train(step, config, TokensConfig(share=recipe.text_share), before))
    return trained


@dataclass(frozen=True)
class _StepBuilder:
    """Builds the stages of steps on what all read: the tokenizer, made of the corpus, and the task
    whose text some of them read."""

    recipe: Recipe
    tokenizer: Stage
    examples: Stage | None

    def train_parts(self, step: StepConfig, config: PretrainStageConfig) -> list[TrainedStep]:
        """The steps that train the models which this one is made of, on their share of the text."""
        trained: dict[str, TrainedStep] = {}
        for name, part in config.pretrain.parts(config.model).items():
            own_step = _take_part(step, name, part)
            own = _check_step(self.recipe, own_step, None)
            share = self.recipe.text_share
            text = TokensConfig(skip=share * part.first, share=share * part.last)
            before = {part.reads: trained[part.reads]} if part.reads else {}
            trained[name] = self.train(own_step, own, text, before)
        return list(trained.values())

    def train(
        self, step: StepConfig, config: PretrainStageConfig, text: TokensConfig, before: Before
    ) -> TrainedStep:
        """The stages of one pretraining, which reads the weights of others or of those `before`
        it."""
        if config.pretrain.reads_tokens:
            stages = self.tokens(step, text)
            inputs = {"tokens": stages["tokens"]}
        else:
            stages = self.instances(step, text)
            inputs = {name: stage for name, stage in stages.items() if is_read(name)}
        if step.pretrain and (path := step.pretrain.imported):
            imported, tokenizer = ImportConfig(path=path), {"tokenizer": self.tokenizer}
            stages[INITIAL] = inputs[INITIAL] = INITIAL_WEIGHTS.stage(imported, tokenizer)
        inputs |= {name: each.stages["pretrain"] for name, each in before.items()}
        stages["pretrain"] = PRETRAIN.stage(config, inputs, Title("pretrain", step=step.name))
        return TrainedStep(step, stages)

    def instances(self, step: StepConfig, text: TokensConfig) -> dict[str, Stage]:
        if step.instances is None:
            self.recipe.require("builds instances", "instances")
        assert step.instances
        own = step.instances.tokens.model_copy(update={"share": text.share})
        stages = self.tokens(step, own)
        inputs, name = {"tokens": stages["tokens"]}, step.name
        stages["instances"] = INSTANCES.stage(step.instances, inputs, Title("instances", step=name))
        longer = self.recipe.longer_instances
        if longer is not None and (step.pretrain is None or step.pretrain.reads_longer):
            title = Title("longer_instances", step=name)
            stages["longer_instances"] = LONGER_INSTANCES.stage(longer, inputs, title)
        for member, rows in ({} if step.pretrain is None else step.pretrain.mixed_rows).items():
            tokens, own = stages["tokens"], step.mixed_tasks.get(member)
            task = own or step.task
            if rows.labelled and task and (own or not step.labelled):
                of_task = _task_tokens(task, self.tokenizer, name, f"_of_{member}")
                tokens = of_task["tokens"]
                stages |= {f"{key}_of_{member}": stage for key, stage in of_task.items()}
            key = MIXED_INSTANCES + member
            stages[key] = INSTANCES.stage(rows, {"tokens": tokens}, Title(key, step=name))
        return stages

    def tokens(self, step: StepConfig, config: TokensConfig) -> dict[str, Stage]:
        """Corpus, tokenizer and tokens, and the task that they are of; inputs come first."""
        general = self.tokenizer.inputs["corpus"]
        if step.labelled:
            assert step.task
            pairs = _task_tokens(step.task, self.tokenizer, step.name)
            return {"corpus": general, "tokenizer": self.tokenizer, **pairs}
        text = {"corpus": general} if step.corpus == general.config else self._own_text(step)
        inputs = {"corpus": text["corpus"], "tokenizer": self.tokenizer}
        tokens = TOKENS.stage(config, inputs, Title("tokens", step=step.name))
        return {**text, "tokenizer": self.tokenizer, "tokens": tokens}

    def _own_text(self, step: StepConfig) -> dict[str, Stage]:
        """The corpus of a step that does not read the recipe's, and its task if it reads that."""
        if step.corpus is not None:
            return {"corpus": CORPUS.stage(step.corpus, title=Title("corpus", step=step.name))}
        assert step.task_text
        own, examples = {}, self.examples
        if step.task is not None:
            own["task"] = examples = TASK.stage(step.task, title=Title("task", step=step.name))
        if examples is None:
            raise ConfigError(
                f"the step {step.name} reads the text of a task, but this workflow has none; give "
                "it a task or a corpus"
            )
        title = Title("task_text", step=step.name)
        return {**own, "corpus": TASK_TEXT.stage(step.task_text, {"task": examples}, title)}


def _take_part(step: StepConfig, name: str, part: MixturePart) -> StepConfig:
    """The step that trains a part of the model of `step`."""
    update = {"name": name, "model": part.model, "pretrain": part.pretrain}
    return step.model_copy(update=update)


def chain_stages(recipe: Recipe) -> tuple[list[Stage], list[TrainedStep]]:
    """Return the stages of all steps, inputs first, and the steps. Raises as `check_steps` does."""
    graph = Graph()
    trained = graph.add_steps(train_steps(recipe), Title(""))
    return list(graph.stages.values()), trained


def pretrain_stages(recipe: Recipe) -> dict[str, Stage]:
    """The stages of the last step by name, inputs first. Raises as `check_steps` does."""
    return train_steps(recipe)[-1].stages


def pretrain_config(recipe: Recipe) -> PretrainStageConfig:
    """The config of the last pretrain stage. Raises as `check_steps` does."""
    return check_steps(recipe)[-1]


def instances_stages(recipe: Recipe) -> dict[str, Stage]:
    """Corpus, tokenizer, tokens, instances and longer ones if any, of the last step; inputs come
    first. Tokens of labelled pairs are those of a task, which is then among the stages."""
    step, text = recipe.training_steps[-1], TokensConfig(share=recipe.text_share)
    return _StepBuilder(recipe, _tokenizer_stage(recipe), None).instances(step, text)


def _tokenizer_stage(recipe: Recipe) -> Stage:
    """The tokenizer of all steps; its input is the corpus of the recipe."""
    return TOKENIZER.stage(recipe.tokenizer, {"corpus": CORPUS.stage(recipe.corpus)})


def _task_tokens(
    task: FilesTaskConfig, tokenizer: Stage, step: str | None, member: str = ""
) -> dict[str, Stage]:
    """A task and the tokens of its pairs; `member` ends their titles."""
    of_task = TASK.stage(task, title=Title(f"task{member}", step=step))
    inputs = {"task": of_task, "tokenizer": tokenizer}
    title = Title(f"tokens{member}", step=step)
    return {"task": of_task, "tokens": TASK_TOKENS.stage(TaskTokensConfig(), inputs, title)}


def check_steps(recipe: Recipe) -> list[PretrainStageConfig]:
    """The configs of the pretrain stages, in order. Raises ConfigError if a block is missing or if
    blocks do not fit together."""
    recipe.require("trains", "model", "pretrain")
    steps, longer = recipe.training_steps, recipe.longer_instances
    reads_longer = any(step.pretrain and step.pretrain.reads_longer for step in steps)
    if (longer is not None) != reads_longer:
        raise ConfigError(
            "longer_instances are what the last pretrain.longer_share of the steps read, but only "
            f"{'the first' if longer else 'the second'} is set; set both or none"
        )
    configs: list[PretrainStageConfig] = []
    for number, step in enumerate(steps):
        with _name_step(recipe, number):
            configs.append(_check_step(recipe, step, configs[-1].model if configs else None))
    return configs


@contextmanager
def _name_step(recipe: Recipe, number: int) -> Iterator[None]:
    """Let an error name the step, and ask for a change of it where it has set the block."""
    try:
        yield
    except ConfigError as error:
        if not recipe.steps:
            raise
        within, own = f"steps.{number}", recipe.steps[number]
        changes = {
            f"{within}.{key}" if getattr(own, key.partition(".")[0], None) is not None else key: of
            for key, of in error.changes.items()
        }
        raise ConfigError(f"{within}: {error.message}", changes) from error


def _check_step(recipe: Recipe, step: StepConfig, before: Family | None) -> PretrainStageConfig:
    """The config of one pretrain stage. `before` is the model of the weights that it begins with.
    Raises the stage's ConfigErrors before any building."""
    model, pretrain = step.model, step.pretrain
    assert model
    assert pretrain
    pretrain.check(model, recipe.compute)
    if pretrain.imported:  # an input of the stage instead
        if before is not None:
            raise ConfigError(
                "pretrain.initial are the weights that the first step begins with, and this one "
                "begins with those of the step before; give it a block pretrain of its own"
            )
        pretrain = pretrain.model_copy(update={"initial": None})
    config = PretrainStageConfig(model=model, pretrain=pretrain)
    _check_weights(config, before)
    for name, part in pretrain.parts(model).items():
        _check_step(recipe, _take_part(step, name, part), None)
    for name, rows in pretrain.mixed_rows.items():
        member = config.model_copy(
            update={"pretrain": require_gradient(config, "mixture").pretrain.of_member(name)}
        )
        check_rows(member, rows.kind, rows.length, f"pretrain.mixture.{name}.instances")
    if pretrain.reads_tokens:
        return config
    blocks = {"instances": step.instances}
    if pretrain.reads_longer:
        blocks["longer_instances"] = longer = recipe.longer_instances
        if step.instances and longer and step.instances.tokens != longer.tokens:
            raise ConfigError(
                "longer_instances are of the tokens that instances are of, but their masking.unit "
                "or mask_units differ; give both the same"
            )
    for block, instances in blocks.items():
        if instances is not None:
            check_rows(config, instances.kind, instances.length, block)
    return config


def _check_weights(config: PretrainStageConfig, before: Family | None) -> None:
    """Raise ConfigError if a model cannot begin with the weights of `before`."""
    model, pretrain = config.model, config.pretrain
    if isinstance(model, RefiningFamily):
        if not isinstance(before, VectorFamily):
            actual = "no step" if before is None else f"a {before.kind}"
            raise ConfigError(
                f"model.kind is {model.kind}, which is made on the vectors of the step before it, "
                f"found {actual}",
                {"steps": [dict(model.vectors_by_default), {}]},
            )
    elif before is None:
        return
    elif not pretrain.takes_weights(model):
        raise ConfigError(
            f"a {model.kind} is fitted by {pretrain.kind} and begins with no other weights; make "
            "it the first step"
        )
    elif isinstance(before, VectorFamily):
        check_vectors(require_gradient(config, "vectors"), before)
    elif before != model:
        raise ConfigError(
            f"its model is not that of the step before it, a {before.kind}; take the same, or for "
            "the first one vectors of tokens (word2vec, glove, lsa)"
        )


def report_stage(recipe: Recipe, inputs: Mapping[str, Stage]) -> Stage:
    return REPORT.stage(recipe.report, {**inputs, **recipe.searches})


def measure_stage(recipe: Recipe, trained: Sequence[TrainedStep]) -> Stage:
    """The stage that measures the last of the steps with the recipe's suites."""
    return MEASURE.stage(MeasureConfig(suites=recipe.measure), measure_inputs(trained))


def measure_inputs(trained: Sequence[TrainedStep]) -> dict[str, Stage]:
    """The inputs of suites: the last pretraining, and the text of the first step of its model."""
    last = trained[-1]
    first = next(each for each in trained if each.step.model == last.step.model)
    text = {name: first.stages[name] for name in ("corpus", "tokenizer", "tokens")}
    return text | {"pretrain": last.stages["pretrain"]}


def register_stage(registry: RegistryConfig, model: str, inputs: Mapping[str, Stage]) -> Stage:
    """The stage that registers a `model`, called after its task or its kind of pretraining."""
    config = RegisterConfig(
        name=registry.name_model(model),
        alias=registry.alias,
        licences=_licences(inputs["pretrain"]),
    )
    return REGISTER.stage(config, inputs)


def _licences(stage: Stage) -> dict[str, tuple[str | None, ...]]:
    """The licences of the sources of each corpus below a stage, by fingerprint. They come from the
    config: a corpus's record may hold older ones."""
    licences: dict[str, tuple[str | None, ...]] = {}
    for source in stage.inputs.values():
        licences |= _licences(source)
    if isinstance(stage.config, CorpusConfig):
        licences[stage.fingerprint] = tuple(each.licence for each in stage.config.sources)
    return licences


@dataclass(frozen=True)
class FinishedStages:
    """The stages that are known so far, inputs first. The run goes on if one of the `optional`
    fingerprints fails; `missing` says what never comes because of such failures."""

    stages: Sequence[Stage]
    optional: frozenset[str] = frozenset()
    missing: str = ""


# What is known once artifacts are finished, and others have failed with these messages; both by
# fingerprint. Whoever is given the same artifacts gives the same stages, and never fewer for more.
Grow = Callable[[Mapping[str, Artifact], Mapping[str, str]], FinishedStages]


class Growth:
    """The plan of a run as far as it is known."""

    def __init__(self, stages: Sequence[Stage] | Grow, root: Folder, label: str) -> None:
        self.rows: list[Planned] = []
        self.fingerprints: dict[str, str] = {}  # of all rows, by displayed name
        self._make = stages if callable(stages) else lambda *_: FinishedStages(stages)
        self._root, self._label = root, label
        self.known = self._make({}, {})
        # What is known before anything is finished, which identifies a run however far it came.
        self.first = {stage.display_name: stage.fingerprint for stage in self.known.stages}
        self.grow({}, {})

    @property
    def finished(self) -> dict[str, Artifact]:
        """The artifacts that the plan found, by displayed name."""
        return {row.stage.display_name: row.artifact for row in self.rows if row.artifact}

    def grow(self, finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> list[Planned]:
        """Plan the stages that have become known; artifacts and messages are by displayed name."""
        artifacts = {each.fingerprint: each for each in finished.values()}
        errors = {self.fingerprints[name]: message for name, message in failed.items()}
        rows: list[Planned] = []
        while True:
            self.known = self._make(artifacts, errors)
            # A stage may take the place of one that cannot be built.
            stages = [
                each
                for each in self.known.stages
                if self.fingerprints.get(each.display_name) != each.fingerprint
            ]
            if not stages:
                self.rows += rows
                return rows
            self.fingerprints |= {each.display_name: each.fingerprint for each in stages}
            rows += plan(stages, self._root, self._label)
            artifacts |= {row.stage.fingerprint: row.artifact for row in rows if row.artifact}
