"""What classes and trees of words cost and save beside the softmax: claims K2 and K15.

    python -m benchmarks.output_layers                     all, one pass, a quarter of an hour
    python -m benchmarks.output_layers --only huffman --epochs 5
    python -m benchmarks.output_layers --epochs 0          speed alone, two minutes
    python -m benchmarks.output_layers --epochs 0 --threads 2 --only softmax,classes
    python -m benchmarks.output_layers --rounds 0 --share 0.5 --seeds 0,1,2 --only balanced,adaptive

A log-bilinear model of 100 units that reads five words (Mnih & Hinton 2007) learns the words of the
Penn Treebank as Mikolov prepared it with each output layer, by the platform's loop without Ray.
Rows are those of the output that a token multiplies, in the mean over the words of the training
text. Speed is words a second of the output layer alone, forward and backward, and of the whole step
with its optimizer: CPU seconds of one thread, seconds of the clock with more. Layers take turns in
one process. Perplexity is that of the
test words after so many passes of AdamW, over the share of the training words that comes first; of
several seeds, the mean with Student's 95 % interval.

Published beside it, test perplexities of the same words: 144.5 of a log-bilinear model (Mikolov's
thesis, table 4.1), 163.5 of one that reads two words (Mnih & Teh 2012).
"""

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.common import add_results, interval, take_turns
from benchmarks.published_splits import LENGTH, learn, penn_treebank
from benchmarks.texts import real_data
from rungwise.instances.batch import CausalBatch
from rungwise.models.families.nnlm import LogBilinearConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.losses.output_layer import OutputConfig, WordClasses, WordTree
from rungwise.training.config import GradientConfig, GradientFit
from rungwise.training.fit_config import FitConfig
from rungwise.training.optimizer import OptimizerConfig, ScheduleConfig, build_optimizers

LAYERS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "softmax"},
    "equal classes": {"kind": "classes", "by": "equal"},
    "classes by frequency": {"kind": "classes", "by": "frequency"},
    "Brown classes": {"kind": "classes", "by": "brown"},
    "random tree": {"kind": "tree", "shape": "random"},
    "Huffman tree": {"kind": "tree", "shape": "huffman"},
    "Brown tree": {"kind": "tree", "shape": "brown"},
    "balanced tree": {"kind": "tree", "shape": "balanced"},
    "adaptive tree": {"kind": "tree", "shape": "adaptive"},
    "adaptive tree, several leaves": {"kind": "tree", "shape": "adaptive", "overlap": 0.25},
}
BATCH = 32
_CONFIG: TypeAdapter[OutputConfig] = TypeAdapter(OutputConfig)


def settings(layer: str, epochs: float, words: int) -> GradientFit:
    steps = max(1, round(epochs * words / BATCH / LENGTH))
    return FitConfig(
        model=LogBilinearConfig(output=_CONFIG.validate_python(LAYERS[layer]), tied=False),
        pretrain=GradientConfig(
            objective="causal",
            steps=steps,
            global_batch_size=BATCH,
            optimizer=OptimizerConfig(
                learning_rate=4e-3,
                weight_decay=0.05,
                schedule=ScheduleConfig(kind="cosine", warmup_fraction=0.05, final_fraction=0.02),
            ),
            precision="float32",
            validation_every_steps=steps,
            validation_instances=512,
            log_every_steps=100,
        ),
    )


class Timed:
    """A model with one output layer, and its seconds a batch by a clock."""

    def __init__(
        self, layer: str, words: np.ndarray[Any, Any], vocab_size: int, clock: Callable[[], float]
    ) -> None:
        torch.manual_seed(0)
        fit = settings(layer, 1, len(words))
        self.clock = clock
        began = clock()
        self.model: Any = fit.model.build(vocab_size, CAUSAL)
        self.model.read_text(lambda: [words])
        self.arranged = clock() - began
        self.rows = mean_rows(self.model.factors, np.bincount(words, minlength=vocab_size))
        self.optimizers = build_optimizers(self.model, fit.pretrain.optimizer)
        self.layer: list[float] = []
        self.step: list[float] = []

    def measure(self, batch: CausalBatch[torch.Tensor]) -> None:
        states = self.model.states(batch.ids).detach().requires_grad_()
        began = self.clock()
        self.model.sums(states, batch.targets, batch.weights).total.backward()
        self.layer.append(self.clock() - began)
        began = self.clock()
        self.model.zero_grad()
        CAUSAL(self.model, batch).loss().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.step.append(self.clock() - began)

    def row(self) -> dict[str, float]:
        words = BATCH * LENGTH
        return {
            "rows": self.rows,
            "arranged_seconds": self.arranged,
            "layer_words_a_second": words / median(self.layer[1:]),
            "step_words_a_second": words / median(self.step[1:]),
        }


def measure_speeds(
    layers: Sequence[str],
    words: np.ndarray[Any, Any],
    vocab_size: int,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, dict[str, float]]:
    timed = {name: Timed(name, words, vocab_size, clock) for name in layers}
    size = BATCH * LENGTH
    for turn, name in take_turns(layers, rounds):
        part = torch.from_numpy(words[turn * size : (turn + 1) * size + 1].astype(np.int64))
        ids, targets = (each.view(BATCH, LENGTH) for each in (part[:-1], part[1:]))
        timed[name].measure(CausalBatch(ids, targets, torch.ones(BATCH, LENGTH)))
    return {name: each.row() for name, each in timed.items()}


def mean_rows(factors: nn.Module | None, counts_V: np.ndarray[Any, Any]) -> float:
    """The rows of the output that a word of the text multiplies."""
    match factors:
        case WordClasses():
            sizes, order = factors.sizes.numpy(), factors.order.numpy()
            mass = np.add.reduceat(counts_V[order], np.cumsum(sizes) - sizes)
            return len(sizes) + float((mass * sizes).sum() / mass.sum())
        case WordTree():
            depths = (factors.paths != 0).sum(1).numpy()
            each = np.bincount(factors.words.numpy(), depths, len(counts_V))
            return float((each * counts_V).sum() / counts_V.sum())
        case _:
            return float(len(counts_V))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(LAYERS), help="parts of names of layers")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--share", type=float, default=1.0, help="of the training words")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    data = real_data()
    if data is None:
        print("no real data: set RUNGWISE_DATA to the folder with corpora/en", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    asked = options.only.split(",")
    layers = [name for name in LAYERS if any(each in name for each in asked)]
    splits = penn_treebank(data / "corpora" / "en")
    words = np.array(splits["train"], dtype=np.uint16)
    vocab_size = int(words.max()) + 2
    speeds: dict[str, dict[str, float]] = {}
    if options.rounds:
        speeds = measure_speeds(layers, words, vocab_size, options.rounds, clock)
    made_by = {"python": platform.python_version(), "torch": torch.__version__}
    threads = f", {options.threads} threads" if options.threads > 1 else ""
    add_results("output-layers", made_by, {name + threads: row for name, row in speeds.items()})
    splits["train"] = splits["train"][: round(options.share * len(words))]
    read = f"{options.epochs:g} passes" + (f" of {options.share:g}" if options.share < 1 else "")
    perplexities: dict[str, list[float]] = {}
    for name in layers if options.epochs else ():
        fit = settings(name, options.epochs, len(splits["train"]))
        for seed in map(int, options.seeds.split(",")):
            trained = learn(fit, splits, LENGTH, seed)
            trained["perplexity"] = math.exp(trained["test_loss"])
            perplexities.setdefault(name, []).append(trained["perplexity"])
            print(f"{name}: {trained}", file=sys.stderr)
            key = f"{name}, {read}" + (f", seed {seed}" if seed else "")
            add_results("output-layers", made_by, {key: trained})
    show(speeds, {name: as_interval(values) for name, values in perplexities.items()})
    return 0


def as_interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}"
    mean, low, high = interval(values)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def show(speeds: dict[str, dict[str, float]], perplexities: dict[str, str]) -> None:
    heads = ("rows a word", "words/s, layer", "times", "words/s, step", "times")
    table = Table("output layer", *heads, "of a step", "perplexity", box=None, pad_edge=False)
    plain = speeds.get("softmax")
    for name in speeds or perplexities:
        if not speeds:
            table.add_row(name, *[""] * 6, perplexities[name])
            continue
        row = speeds[name]
        cells = [f"{row['rows']:,.1f}"]
        for key in ("layer_words_a_second", "step_words_a_second"):
            times = f"{row[key] / plain[key]:.1f}" if plain else ""
            cells += [f"{row[key]:,.0f}", times]
        cells.append(f"{row['step_words_a_second'] / row['layer_words_a_second']:.0%}")
        table.add_row(name, *cells, perplexities.get(name, ""))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
