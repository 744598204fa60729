"""Does a learning rate found on a narrow model serve a wide one? With `base_width` and without.

    python -m benchmarks.width_transfer TEXT.txt [--steps 200] [--optimizers adamw,muon]

A decoder of two layers learns the next character of the text, in the step that runs take, at three
widths and rates a factor of two apart. Printed is the mean loss of the last tenth of the steps:
with the rule the best rate, marked *, should be the same at each width.
"""

import argparse
import math
from pathlib import Path

import torch

from rungwise.instances.batch import CausalBatch
from rungwise.models.families.gpt import GptConfig
from rungwise.training.optimizer import (
    MuonConfig,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizers,
    learning_rate_at,
)
from rungwise.training.parallel import Group, distribute
from rungwise.training.step import Step

WIDTHS = (64, 128, 256)
HEAD = 32
B, T = 16, 64
MIDDLE = {"adamw": 8e-3, "muon": 3.2e-2}  # of the grid of rates
CONFIGS = {"adamw": OptimizerConfig, "muon": MuonConfig}


def measure_loss(
    ids: torch.Tensor,
    V: int,
    width: int,
    kind: str,
    rate: float,
    ruled: bool,
    steps: int,
    seed: int,
) -> float:
    """The mean loss over the last tenth of a run."""
    torch.manual_seed(seed)
    scale = math.sqrt(WIDTHS[0] / width) if ruled else 1.0
    family = GptConfig(
        num_layers=2,
        num_heads=width // HEAD,
        hidden_size=width,
        intermediate_size=4 * width,
        max_position_embeddings=T,
        initializer_range=0.08 * scale,
    )
    model, objective = family.build(V, family.objectives[0]), family.objectives[0]
    group = Group(0, 1, torch.device("cpu"))
    config = CONFIGS[kind](
        learning_rate=rate,
        base_width=WIDTHS[0] if ruled else None,
        schedule=ScheduleConfig(warmup_fraction=0.1),
    )
    exchange = distribute(model, group, "ddp", 1)
    optimizers = build_optimizers(model, config)
    step = Step(model, objective, exchange, optimizers, config, group, bfloat16=False)
    draw = torch.Generator().manual_seed(seed)
    losses = []
    for number in range(steps):
        begin_B1 = torch.randint(len(ids) - T - 1, (B, 1), generator=draw)
        rows = ids[begin_B1 + torch.arange(T + 1)]
        batch = CausalBatch(rows[:, :-1], rows[:, 1:], torch.ones(B, T))
        now = learning_rate_at(number, steps, config)
        sums, _, _ = step([batch], objective.counts(batch), now)
        losses.append(float(sums[0, 0] / sums[1, 0]))
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--optimizers", default="adamw,muon")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    characters = options.text.read_bytes()
    numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
    ids = torch.tensor([numbers[character] for character in characters])
    V = len(numbers)
    for kind in options.optimizers.split(","):
        rates = [MIDDLE[kind] * 2.0**power for power in range(-2, 3)]
        for ruled in (True, False):
            print(f"{kind}, {'with' if ruled else 'without'} base_width {WIDTHS[0]}")
            print("width  " + "  ".join(f"{rate:8.1e}" for rate in rates))
            for width in WIDTHS:
                losses = [
                    measure_loss(ids, V, width, kind, rate, ruled, options.steps, options.seed)
                    for rate in rates
                ]
                best = min(losses)
                cells = (f"{loss:7.3f}{'*' if loss == best else ' '}" for loss in losses)
                print(f"{width:5d}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
