"""General text, then the text of a task without labels: real stages on Ray, and real sentences."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from rungwise.core.configuration.overrides import ComputeConfig, load
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import Stage, StageType
from rungwise.core.storage.folder import Folder
from rungwise.instances.order import ShardShare
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.instances.reader import InstanceReader
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import train_steps
from rungwise.tasks.kinds.examples import (
    SPLITS,
    Example,
    ExampleCounts,
    TaskInfo,
    TaskSummary,
    Text,
    write_examples,
)
from rungwise.tasks.stage import TaskTextConfig
from rungwise.training.feed import Source, held_out_batches
from rungwise.training.pretrained import load_module, read_training_config
from tests.conftest import small_recipe, write_recipe
from tests.summaries import end_stage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
# One of the two CPUs, or a stage would wait for room beside the workers of another test.
COMPUTE = ComputeConfig(num_workers=1, micro_batch_size=32, checkpoint_every_steps=20)


def task_of(splits: dict[str, list[Example]]) -> Stage:
    def build(config: Any, inputs: Any, output: Folder, context: Context) -> TaskSummary:
        for split in SPLITS:
            write_examples(splits[split], output, split)
        return TaskSummary(
            info=TaskInfo("classification", ("0", "1"), False, "accuracy"),
            examples=ExampleCounts(train=1, validation=1, test=1),
            baselines={},
            overlap={},
            irregular={},
            headline="task",
        )

    made = StageType("task", 1, build, TaskSummary, outside=lambda config: {"texts": str(splits)})
    return made.stage(TaskTextConfig())


def built(stages: Iterable[Stage], root: Folder) -> dict[str, Artifact]:
    """Each stage's artifact by what it is called; without tracking, else as the runner does it."""
    done: dict[str, Artifact] = {}
    for stage in stages:
        folder = artifacts.find_folder(root, stage.name, "x", stage.fingerprint)
        inputs = {name: done[source.display_name] for name, source in stage.inputs.items()}
        found = artifacts.load(folder)
        if found is None:
            summary = stage.type.run(stage.config, inputs, folder, Context(COMPUTE))
            found = end_stage(folder, stage, "x", summary)
        done[stage.display_name] = found
    return done


@torch.no_grad()
def mlm_loss(pretrain: Artifact, instances: Artifact, split: str) -> float:
    """Nats a masked token of the instances of a split, at most 2000 of them."""
    model = load_module(pretrain)
    objective = read_training_config(pretrain).objective
    batches = held_out_batches(
        Source(InstanceReader(instances, split, 1 << 30)), 2000, ShardShare(1, 0, 1), 64, 0
    )
    total = sum(objective(model, batch).packed()[:2, 0] for batch in batches)
    assert isinstance(total, torch.Tensor)
    return float(total[0] / total[1])


def texts(name: str, sentences: list[str]) -> list[Example]:
    return [Text(f"{name}:{n}", sentence, None, str(n % 2)) for n, sentence in enumerate(sentences)]


def small(tmp_path: Path, text: Path, **blocks: Any) -> Recipe:
    recipe = small_recipe(tmp_path / "root", text)
    recipe |= {name: recipe[name] | block for name, block in blocks.items()}
    return load(Recipe, write_recipe(tmp_path / "recipe.yaml", recipe))


def with_step(recipe: Recipe, name: str, steps: int, rate: float) -> Recipe:
    """The recipe with a step on the text of the task, as short sentences need it."""
    assert recipe.pretrain
    assert isinstance(recipe.instances, MaskedPairsConfig)
    pretrain = recipe.pretrain.model_dump(mode="json") | {
        "objective": "mlm",
        "steps": steps,
        "validation_every_steps": steps,
        "optimizer": {"kind": "adamw", "learning_rate": rate},
    }
    length = {"kind": "masked_blocks", "sequence_length": recipe.instances.sequence_length}
    step = {"name": name, "task_text": {}, "instances": length, "pretrain": pretrain}
    return recipe.with_changes({"steps": [{}, step]}, "test")


def sst(folder: Path, name: str) -> list[str]:
    with (folder / "tasks/en/SST-2" / f"{name}.tsv").open(encoding="utf-8", newline="") as stream:
        return [row[0] for row in csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)]


def test_the_text_of_sst2_lowers_the_loss_on_its_dev_set(tmp_path: Path, real_data: Path) -> None:
    """A small general model of the Brown corpus, and then the training sentences of the task."""
    root = Folder.at(tmp_path / "root")
    brown = real_data / "corpora/en/brown/brown.txt.gz"
    layout = {"documents": "blank_line", "lines": "sentence"}
    recipe = small(
        tmp_path,
        brown,
        corpus={"sources": [{"kind": "text", "paths": [str(brown)], **layout}]},
        tokenizer={"vocab_size": 4000, "min_frequency": 2},
        model={"num_layers": 2, "hidden_size": 64, "intermediate_size": 256},
        pretrain={"steps": 400, "global_batch_size": 64, "validation_every_steps": 400},
    )
    train, dev = sst(real_data, "train"), sst(real_data, "dev")
    assert not set(train) & set(dev)
    splits = {"train": texts("train.tsv", train), "validation": texts("dev.tsv", dev), "test": []}
    task = task_of(splits)
    general, adapted = (
        each.stages for each in train_steps(with_step(recipe, "task", 200, 0.001), task)
    )
    # Rows of the dev sentences: a task that has them where its training text should be.
    measured = task_of({"train": splits["validation"], "validation": [], "test": []})
    rows = train_steps(with_step(recipe, "dev", 200, 0.001), measured)[-1].stages
    done = built([*general.values(), task, *adapted.values()], root)
    rows.pop("pretrain")
    held_out = built([*general.values(), measured, *rows.values()], root)["instances/dev"]
    before, after = (
        mlm_loss(done[name], held_out, "train") for name in ("pretrain", "pretrain/task")
    )
    print(
        f"masked words of the dev sentences: {before:.3f} nats, {after:.3f} after the task's text"
    )
    assert after < before - 0.1
