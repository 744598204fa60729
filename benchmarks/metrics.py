"""The cost of metrics for Prometheus: the driver's time for them, and what workers do for them.

    python -m benchmarks.metrics

The quickstart's BERT is trained for some steps on the text of docs/, by Ray Train on this machine,
and logs every step, which is the worst case. The time that the driver spends on events is stated as
a share of the training's, that on its heartbeat, every five seconds, as one of the whole run's. The
work in a worker, two readings of the clock and the straggler's share, is timed apart.
"""

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import rungwise
from rungwise.monitoring import Monitor
from rungwise.training.parallel import Group
from rungwise.training.summary import PretrainSummary
from rungwise.training.throughput import Clock, Costs, Progress

_STEPS = 300
_TIMES = 2000
_CHANGES = (
    "corpus.sources=[{kind: text, paths: [docs/**/*.md]}]",
    "corpus.held_out_fraction=0.3",
    "tokenizer.vocab_size=1024",
    f"pretrain.steps={_STEPS}",
    "pretrain.log_every_steps=1",
    f"pretrain.validation_every_steps={_STEPS}",
)


def main() -> None:
    os.chdir(Path(__file__).resolve().parents[1])
    spent: dict[str, float] = {}

    def timed(name: str) -> None:
        method = getattr(Monitor, name)

        @functools.wraps(method)
        def measured(monitor: Monitor, *arguments: Any) -> None:
            began = time.perf_counter()
            method(monitor, *arguments)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        setattr(Monitor, name, measured)

    with tempfile.TemporaryDirectory() as root:
        changes = [*_CHANGES, f"root={root}", "compute.max_concurrent_stages=1"]
        recipe = rungwise.load_recipe("workflows/configs/quickstart.yaml", changes)
        for name in ("handle", "beat"):
            timed(name)
        outcome = rungwise.run("workflows/pretrain.py", recipe)
        summary = PretrainSummary.of(outcome.artifacts["pretrain"])
    step = summary.seconds / _STEPS
    clock = Clock(Progress(), Costs())
    group = Group(0, 1, torch.device("cpu"))
    began = time.perf_counter()
    for _ in range(_TIMES):
        time.perf_counter()
        time.perf_counter()
        clock.straggler(group)
    in_worker = (time.perf_counter() - began) / _TIMES
    print(f"a step of the quickstart's BERT       {step * 1e3:8.2f} ms, logged each time")
    handled, beaten = spent["handle"], spent["beat"]
    print(
        f"{'the driver, events':<37} {handled / _STEPS * 1e3:8.3f} ms a step  "
        f"{handled / summary.seconds:.2%}"
    )
    print(
        f"{'the driver, its heartbeat':<37} {beaten / outcome.seconds * 1e3:8.3f} ms a second  "
        f"{beaten / outcome.seconds:.2%}"
    )
    print(f"{'a worker':<37} {in_worker * 1e3:8.3f} ms a step  {in_worker / step:.2%}")


if __name__ == "__main__":
    main()
