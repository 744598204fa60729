"""General text, then the text of a task without labels: real stages on Ray, and real sentences."""

from pathlib import Path

import pytest

from rungwise.__main__ import main
from rungwise.core.stages.artifact import list_artifacts
from rungwise.core.storage.folder import Folder
from rungwise.training.summary import PretrainSummary
from tests.conftest import small_recipe, write_recipe


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_text_of_sst2_lowers_the_loss_on_sentences_held_out_of_it(
    ray_session: None, tmp_path: Path, real_data: Path
) -> None:
    """A small general model of the Brown corpus, and then the training sentences of the task."""
    recipe = small_recipe(tmp_path / "root", real_data / "corpora/en/brown/brown.txt.gz")
    recipe["corpus"]["sources"][0] |= {"documents": "blank_line", "lines": "sentence"}
    recipe["tokenizer"] |= {"vocab_size": 4000, "min_frequency": 2}
    recipe["model"] |= {"num_layers": 2, "hidden_size": 64, "intermediate_size": 256}
    recipe["pretrain"] |= {"steps": 400, "global_batch_size": 64, "validation_every_steps": 400}
    # One of the two CPUs, or a stage would wait for room beside the workers of another test.
    recipe["compute"] |= {"num_workers": 1, "micro_batch_size": 32, "checkpoint_every_steps": 100}
    sentences = real_data / "tasks/en/SST-2"
    form = {"kind": "table", "columns": {"text": 0, "label": 1}, "header": False}
    files = {
        split: str(sentences / f"{name}.tsv")
        for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    step = {
        "name": "task",
        "task": {"kind": "files", "format": form, **files},
        "task_text": {},
        "instances": {"kind": "masked_blocks", "sequence_length": 32},
        "pretrain": recipe["pretrain"]
        | {"objective": "mlm", "steps": 200, "validation_every_steps": 200}
        | {"optimizer": {"kind": "adamw", "learning_rate": 0.001}},
    }
    config = write_recipe(tmp_path / "recipe.yaml", recipe | {"steps": [{}, step]})
    assert main(["run", "pretrain", str(config)]) == 0
    made = list_artifacts(Folder.at(tmp_path / "root"), "pretrain")
    [adapted] = [each for each in made if "initial" in each.record["inputs"]]
    run = PretrainSummary.of(adapted).gradient
    assert run
    before, after = (run.validation[place]["mlm_loss"] for place in (0, -1))
    print(f"masked words of held-out sentences: {before:.3f} nats, {after:.3f} after the task's")
    assert (run.validation[0]["step"], len(made)) == (0, 2)
    assert after < before - 0.1
