"""What our models reach where the text and its split are published, so that losses can be compared.

    python -m benchmarks.published_splits --seeds 0,1,2

shakespeare   characters of the tinyshakespeare file, the first 90 % to learn from, the rest held
              out; the size, batch, steps and schedule that nanoGPT's README gives for a CPU: 4
              layers of 128 with 4 heads, context 64, batch 12, 2,000 steps of AdamW with a cosine
              from 1e-3 to 1e-4. nanoGPT's own code, run that way, gave 1.8857 nats a character.
ptb           words of the Penn Treebank as Mikolov prepared it, train, valid and test as published;
              every line ends with <eos>, which is predicted too. A perplexity a word.
ptb_log_bilinear   the same words by five words before (Mnih & Hinton 2007), with Brown classes as
              its output layer, in blocks of 128; minutes.

The corpus stage is left out: it cuts text into sentences and splits by document, and these texts
are compared with their own line ends and their own split. Instances, model, loop and checkpoints
are the platform's, without Ray. Losses are over every held-out token, in blocks of the context
length, so the first token of a block is predicted from one token before it.
"""

import argparse
import gzip
import math
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import add_results
from benchmarks.measuring import instances_summary, shard_row
from benchmarks.texts import real_data
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import SpecialIds
from rungwise.instances import shards
from rungwise.instances.summary import InstancesSummary
from rungwise.instances.texts import CausalConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.nnlm import LogBilinearConfig
from rungwise.models.losses.output_layer import ClassesOutput
from rungwise.tokenizer.token_building import unigram_loss
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.feed import DataPhase, open_phases
from rungwise.training.fit_config import FitConfig
from rungwise.training.initial import build_model
from rungwise.training.loop import uses_bfloat16
from rungwise.training.optimizer import (
    AnyOptimizerConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from rungwise.training.parallel import Group, Worker, distribute
from rungwise.training.ray.gradient import plan_run, pretrain
from rungwise.training.step import Step, validate
from rungwise.training.tensor_files import MODEL, load_tensors

PUBLISHED = {
    "shakespeare": "1.8857 nats (nanoGPT with these settings, run elsewhere)",
    "shakespeare_muon": "as above",
    "ptb": "test 141.2 Kneser-Ney 5-gram (kenlm, run elsewhere), 124.7 RNNLM, 87.2 tied LSTM "
    "(published)",
    "ptb_log_bilinear": "test 144.5 log-bilinear (Mikolov's thesis, table 4.1), 163.5 of two words "
    "before (Mnih & Teh 2012)",
}
LENGTH, LONGER = 64, 128  # tokens of a block
_EVERYTHING = 1 << 30

NANO_GPT: dict[str, Any] = {
    "learning_rate": 1e-3,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "schedule": ScheduleConfig(kind="cosine", warmup_fraction=0.05, final_fraction=0.1),
}


def shakespeare_settings(optimizer: AnyOptimizerConfig) -> GradientFit:
    return FitConfig(
        model=GptConfig(
            num_layers=4,
            num_heads=4,
            hidden_size=128,
            intermediate_size=512,
            max_position_embeddings=LENGTH,
        ),
        pretrain=GradientConfig(
            objective="causal",
            steps=2000,
            global_batch_size=12,
            optimizer=optimizer,
            precision="float32",
            validation_every_steps=500,
            validation_instances=_EVERYTHING,
            log_every_steps=100,
        ),
    )


PTB = FitConfig(
    model=GptConfig(
        num_layers=2,
        num_heads=4,
        hidden_size=128,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
        dropout=0.1,
    ),
    pretrain=GradientConfig(
        objective="causal",
        steps=2400,
        global_batch_size=32,
        optimizer=MuonConfig(
            learning_rate=2e-3,
            beta2=0.99,
            epsilon=1e-8,
            weight_decay=0.1,
            schedule=ScheduleConfig(kind="cosine", warmup_fraction=0.03, final_fraction=0.05),
        ),
        precision="auto",
        validation_every_steps=600,
        validation_instances=_EVERYTHING,
        log_every_steps=100,
    ),
)


LOG_BILINEAR = FitConfig(
    model=LogBilinearConfig(dropout=0.1, output=ClassesOutput(by="brown")),
    pretrain=GradientConfig(
        objective="causal",
        steps=2270,  # five passes
        global_batch_size=16,
        optimizer=OptimizerConfig(
            learning_rate=3e-3,
            weight_decay=0.05,
            schedule=ScheduleConfig(kind="cosine", warmup_fraction=0.02, final_fraction=0.02),
        ),
        precision="float32",
        validation_every_steps=378,
        validation_instances=_EVERYTHING,
        log_every_steps=200,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PUBLISHED))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    data = real_data()
    if data is None:
        print(
            "no real data: set RUNGWISE_DATA to the folder that holds corpora/en", file=sys.stderr
        )
        return 2
    torch.set_num_threads(options.threads)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    texts = {
        "shakespeare": (shakespeare_settings(OptimizerConfig(**NANO_GPT)), shakespeare, LENGTH),
        "shakespeare_muon": (shakespeare_settings(MuonConfig(**NANO_GPT)), shakespeare, LENGTH),
        "ptb": (PTB, penn_treebank, LENGTH),
        "ptb_log_bilinear": (LOG_BILINEAR, penn_treebank, LONGER),
    }
    results: dict[str, Any] = {}
    for name in options.only.split(","):
        settings, read_splits, length = texts[name]
        results[name] = {"published": PUBLISHED[name], "runs": []}
        splits = read_splits(data / "corpora" / "en")
        for seed in seeds:
            row = learn(settings, splits, length, seed)
            print(f"{name} seed {seed}: {row}", file=sys.stderr)
            results[name]["runs"].append(row)
        results[name]["settings"] = settings.blocks()
    made_by = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    add_results("published-splits", made_by, results)
    show(results)
    return 0


def learn(
    settings: GradientFit, splits: dict[str, list[int]], length: int, seed: int
) -> dict[str, Any]:
    """Train with this seed on blocks of this length; the losses in nats a token, and how long it
    took."""
    training = settings.pretrain.model_copy(update={"seed": seed})
    settings = FitConfig(settings.model, training)
    compute = ComputeConfig(
        num_workers=1,
        micro_batch_size=training.global_batch_size,
        checkpoint_every_steps=training.steps,
    )
    worker = Worker(Group.current(torch.device("cpu")), compute)
    with tempfile.TemporaryDirectory(prefix="rungwise-splits-") as place:
        folder = Path(place)
        instances = write_instances(folder / "valid", splits["train"], splits["valid"], length)
        output = Folder.at(folder / "run")
        progress, _ = pretrain(
            settings, plan_run(settings, {"instances": instances}, output, compute), worker
        )
        row: dict[str, Any] = {
            "seed": seed,
            "validation": [
                [point["step"], round(point["lm_loss"], 4)] for point in progress.validation
            ],
            "unigram_loss": round(InstancesSummary.of(instances).unigram_loss, 4),
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
        }
        if "test" in splits:
            held_out = write_instances(folder / "test", splits["train"], splits["test"], length)
            vocab_size = InstancesSummary.of(held_out).vocab_size
            model = build_model(settings, vocab_size)
            model.load_state_dict(load_tensors(output, MODEL))
            (phase,) = open_phases(settings, [DataPhase("instances", range(1), held_out)], worker)
            step = Step(
                model,
                settings.objective,
                distribute(model, worker.group),
                (),
                training.optimizer,
                worker.group,
                uses_bfloat16(training.precision, worker.group.device),
            )
            values = validate(step, [phase])
            row["test_loss"] = round(values["lm_loss"], 4)
        return row


def shakespeare(folder: Path) -> dict[str, list[int]]:
    """Ids of the characters; the symbol for the end of a text is the last one of the vocabulary."""
    text = (folder / "tinyshakespeare" / "input.txt").read_text()
    ids = {character: number for number, character in enumerate(sorted(set(text)))}
    coded = [ids[character] for character in text]
    cut = int(0.9 * len(coded))
    return {"train": coded[:cut], "valid": coded[cut:]}


def penn_treebank(folder: Path) -> dict[str, list[int]]:
    """Ids of the words of each published split, with <eos> at the end of each line."""
    words: dict[str, list[str]] = {}
    for split in ("train", "valid", "test"):
        path = folder / "ptb" / f"ptb.{split}.txt"
        packed = path.with_name(path.name + ".gz")
        text = (
            gzip.decompress(packed.read_bytes()).decode() if packed.exists() else path.read_text()
        )
        words[split] = [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
    ids = {word: number for number, word in enumerate(sorted(set(words["train"])))}
    return {split: [ids[word] for word in text] for split, text in words.items()}


def write_instances(folder: Path, train: list[int], held_out: list[int], length: int) -> Artifact:
    """Packed blocks of one text a split, as the instances stage writes them."""
    folder.mkdir()
    end = max(train) + 1
    special = SpecialIds(pad=end, end=end, ids=(end,))
    config = CausalConfig(sequence_length=length)
    files = []
    for split, ids in (("train", train), ("validation", held_out)):
        text = TokenisedText(
            ids=np.array(ids, dtype=np.uint16),
            starts=np.array([0, len(ids)]),
            first_sentence=np.array([0, 1]),
            documents=np.zeros(1, np.uint64),
        )
        shard = config.build(text, special, np.random.default_rng(0)).shard
        name = f"{split}-00000.arrow"
        shards.write_shard(shard, folder / name)
        files.append(shard_row(folder / name, split, shard))
    summary = instances_summary(
        files,
        end + 1,
        special,
        kind="causal",
        sequence_length=length,
        unigram_loss=unigram_loss(
            *(np.bincount(ids, minlength=end + 1) for ids in (train, held_out))
        ),
    )
    record = {"config": config.model_dump(mode="json")}
    artifact = Artifact("instances", folder.name, Folder.at(folder), record)
    return summary.replace_summary(artifact)


def show(results: dict[str, Any]) -> None:
    table = Table("text", "seeds", "validation", "test", "beside it", box=None, pad_edge=False)
    for name, result in results.items():
        runs = result["runs"]
        last = [run["validation"][-1][1] for run in runs]
        tests = [run["test_loss"] for run in runs if "test_loss" in run]
        table.add_row(
            name,
            ", ".join(str(run["seed"]) for run in runs),
            _stated(last),
            _stated(tests) if tests else "",
            result["published"],
        )
    Console(width=160).print(table)


def _stated(losses: list[float]) -> str:
    spread = f" ({min(losses):.4f} to {max(losses):.4f})" if len(losses) > 1 else ""
    return f"{fmean(losses):.4f} nats{spread}, perplexity {math.exp(fmean(losses)):.2f}"


if __name__ == "__main__":
    sys.exit(main())
