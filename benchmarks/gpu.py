"""Everything that only a GPU can tell, in one command on a bare machine.

    PYTHONPATH=platform:. python -m benchmarks.gpu               on the GPUs of this machine
    PYTHONPATH=platform:. python -m benchmarks.gpu --simulate    small shapes on a CPU

It needs PyTorch, NumPy, pydantic and PyYAML, and neither Ray, MLflow nor a network; pytest and
transformers are used if they are there. Its parts:

    tests         tests/gpu: kernels, precision, and what a step waits for
    families      the step of each family compiled: graphs after one step and after four. A break of
                  a graph is an error; a graph that comes later is a recompilation
    resume        a step in bfloat16 goes on from saved weights and moments with the same bits
    workers       tokens a second on all GPUs by DDP and by FSDP2, over one; a CPU stands for two
    throughput    tokens a second, MFU and peak memory beside transformers, compiled, and a
                  nanoGPT-style step, in turns (training_step.py)

A part that fails is in the results with its error, and the others run; the command then ends in 1.
Parts that have no time left are named. Written to benchmarks/results: DATE-gpu.json, and a page
beside it.
"""

import argparse
import datetime
import importlib.util
import io
import json
import platform
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn

from benchmarks import training_step
from benchmarks.common import REPOSITORY, RESULTS
from benchmarks.training_cases import CASES, Case, draw
from benchmarks.training_step import OURS, Competitor, Setting, build_ours
from rungwise.training.optimizer import OptimizerConfig, build_optimizers
from rungwise.training.parallel import Group, Parallel, distribute
from rungwise.training.step import Step

_STEPS = 4
_FEWEST_SECONDS = 120  # a case of throughput compiles first
ONLY_A_GPU = (
    "Simulated on a CPU: shapes are small, so rates, MFU, memory and the gain of more workers say "
    "nothing. A GPU alone can tell them, and whether its kernels agree (tests), whether Inductor's "
    "code is as fast as its peers', and whether bfloat16 resumes with the same bits there."
)


@dataclass(frozen=True)
class Plan:
    """Where and how everything runs."""

    cases: str  # a key of CASES
    setting: Setting
    rounds: int
    seconds: float  # a competitor and round
    deadline: float  # on the monotonic clock

    @property
    def device(self) -> torch.device:
        return torch.device(self.setting.device)

    @property
    def workers(self) -> int:
        return torch.cuda.device_count() if self.setting.device == "cuda" else 2


def run_tests(plan: Plan) -> dict[str, Any]:
    if importlib.util.find_spec("pytest") is None:
        return {"not run": "pytest is not installed"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(done.stdout[-4000:] + done.stderr[-1000:])
    return {"result": done.stdout.strip().splitlines()[-1]}


def compile_families(plan: Plan) -> dict[str, Any]:
    """Compiled graphs by family. In a simulation graphs are traced and run as they are."""
    from tests.gpu_step_cases import FAMILIES, V, micro_batch

    compiler = torch.compile
    if plan.setting.device == "cpu":
        compiler = _compile_nothing
    graphs = {}
    for name in (*FAMILIES, "packed"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        family, kind = FAMILIES["mlm" if name == "packed" else name]
        objective, config = family.objective(kind), OptimizerConfig()
        model = family.build(V, objective)
        group = Group(0, 1, plan.device)
        exchange = distribute(model, group)
        optimizers = build_optimizers(model, config)
        with mock.patch("torch.compile", compiler):
            step = Step(
                model, objective, exchange, optimizers, config, group, plan.setting.bfloat16, True
            )
            counts = []
            for seed in range(_STEPS):
                part = micro_batch(family, kind, seed, name == "packed").to(plan.device)
                step([part], objective.counts(part), 1e-3)
                counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        graphs[name] = {"after one step": counts[0], f"after {_STEPS}": counts[-1]}
    again = [name for name, each in graphs.items() if len(set(each.values())) > 1]
    if again:
        raise RuntimeError(f"compiled again for batches of the same shape: {again}: {graphs}")
    return graphs


def _compile_nothing(function: Any, **options: Any) -> Any:
    return torch._dynamo.optimize(
        "eager", nopython=options.get("fullgraph", False), dynamic=options.get("dynamic")
    )(function)


def resume_exactly(plan: Plan) -> dict[str, Any]:
    """Compare the weights of a run with those of one that was stopped half-way."""
    cases = [case for case in CASES[plan.cases] if case.micro_batches == 1]
    results = {case.name: _resumes_exactly(case, plan) for case in cases}
    if not all(results.values()):
        raise RuntimeError(f"other weights after going on: {results}")
    return {"same bits": results}


def _resumes_exactly(case: Case, plan: Plan) -> bool:
    def train(seeds: range, buffer: io.BytesIO | None = None) -> Competitor:
        torch.manual_seed(seeds.start)
        ours = build_ours(case, plan.setting, Group(0, 1, plan.device))
        if buffer is not None:
            weights, *moments = torch.load(buffer, map_location=plan.device, weights_only=True)
            ours.model.load_state_dict(weights)
            for optimizer, state in zip(ours.optimizers, moments, strict=True):
                optimizer.load_state_dict(state)
        for seed in seeds:
            ours.step(ours.micro_batches(draw(case, seed)))
        return ours

    buffer = io.BytesIO()
    half = train(range(_STEPS // 2))
    torch.save([each.state_dict() for each in (half.model, *half.optimizers)], buffer)
    del half
    buffer.seek(0)
    resumed = train(range(_STEPS // 2, _STEPS), buffer)
    whole = train(range(_STEPS))
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def compare_workers(plan: Plan) -> dict[str, Any]:
    """Tokens a second of the first case on one worker and on all, which each have as many rows."""
    if plan.workers < 2:
        return {"not run": "there is one GPU"}
    rates = {"one": _rate(plan, 1, "ddp")}
    for parallel in ("ddp", "fsdp"):
        rates[parallel] = _rate(plan, plan.workers, parallel)
    return {
        "workers": plan.workers,
        "tokens a second": rates,
        "over one": {name: rate / rates["one"] for name, rate in rates.items() if name != "one"},
    }


def _rate(plan: Plan, world_size: int, parallel: Parallel) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = get_context("spawn").SimpleQueue()
    spawn(_train, (world_size, port, parallel, plan, queue), nprocs=world_size)
    return queue.get()


def _train(
    rank: int, world_size: int, port: int, parallel: Parallel, plan: Plan, queue: Any
) -> None:
    on_gpu = plan.setting.device == "cuda"
    device = torch.device(plan.setting.device, rank) if on_gpu else plan.device
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
    )
    torch.manual_seed(0)
    case = CASES[plan.cases][0]
    ours = build_ours(case, plan.setting, Group(rank, world_size, device), parallel)
    rows = draw(case, rank)
    parts = ours.micro_batches(rows)

    def take_steps(number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            ours.step(parts)
        if on_gpu:
            torch.cuda.synchronize()
        distributed.barrier()
        return time.perf_counter() - began

    take_steps(_STEPS)  # compiles
    steps = 10
    seconds = take_steps(steps)
    if rank == 0:
        queue.put(rows.tokens * world_size * steps / seconds)
    distributed.destroy_process_group()


def compare_throughput(plan: Plan) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for number, case in enumerate(CASES[plan.cases]):
        if time.monotonic() + _FEWEST_SECONDS > plan.deadline:
            results[case.name] = {"not run": "no time was left; raise --minutes"}
            continue
        result = training_step.compare(plan.cases, number, plan.setting, plan.rounds, plan.seconds)
        results[case.name] = result
        print("\n".join(training_step.lines(result)), flush=True)
    return results


PARTS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "tests": run_tests,
    "families": compile_families,
    "resume": resume_exactly,
    "workers": compare_workers,
    "throughput": compare_throughput,
}


def run_parts(plan: Plan, names: list[str]) -> dict[str, Any]:
    """The results of the parts; of a failed one, its error."""
    results: dict[str, Any] = {}
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            results[name] = PARTS[name](plan)
        except Exception as error:  # the machine is there for a short time: the others should run
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        if name != "throughput":
            print(f"  {json.dumps(results[name])}", flush=True)
    return results


def describe_machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": gpus,
    }


def write_page(results: dict[str, Any], simulated: bool) -> Iterator[str]:
    """The lines of the page, in Markdown."""
    machine = results["machine"]
    yield f"# What a GPU tells, {machine['date']}"
    yield ""
    yield "    PYTHONPATH=platform:. python -m benchmarks.gpu" + " --simulate" * simulated
    yield ""
    yield f"PyTorch {machine['torch']}; " + (ONLY_A_GPU if simulated else str(machine["gpus"]))
    for name in PARTS:
        part = results["parts"].get(name)
        if part is None:
            continue
        yield f"\n## {name.capitalize()}\n"
        if "error" in part or "not run" in part:
            yield f"Failed: {part['error']}" if "error" in part else f"Not run: {part['not run']}."
        elif name == "throughput":
            yield "| case | | tokens a second | MFU | peak MiB | ours over it |"
            yield "|---|---|---:|---:|---:|---:|"
            for case, result in part.items():
                yield from _rows_of_page(case, result)
        else:
            yield "```json"
            yield json.dumps(part, indent=1)
            yield "```"


def _rows_of_page(case: str, result: dict[str, Any]) -> Iterator[str]:
    if "not run" in result:
        yield f"| {case} | not run: {result['not run']} | | | | |"
        return
    for name, rate in result["tokens_per_second"].items():
        peak = max(turn["peak_bytes"] for turn in result["measured"][name]) / 2**20
        ratio = "" if name == OURS else f"{result['ratios'][name]:.2f}"
        mfu = f"{result['mfu'][name]:.1%}"
        yield f"| {case} | {name} | {rate:,.0f} | {mfu} | {peak:,.0f} | {ratio} |"
    for name in result["not_installed"]:
        yield f"| {case} | {name} | not installed | | | |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulate", action="store_true", help="small shapes on a CPU")
    parser.add_argument("--minutes", type=float, default=25.0, help="start no case after that")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"--only: expected some of {', '.join(PARTS)}, found {', '.join(unknown)}")
    if not options.simulate and not torch.cuda.is_available():
        parser.error("there is no GPU here; --simulate tries everything but the GPU")
    simulated: bool = options.simulate
    plan = Plan(
        "simulated" if simulated else "cuda",
        Setting("cpu" if simulated else "cuda", "bfloat16", compile=not simulated, threads=1),
        rounds=2 if simulated else 3,
        seconds=0.2 if simulated else 3.0,
        deadline=time.monotonic() + 60 * options.minutes,
    )
    results = {"machine": describe_machine(), "simulated": simulated}
    results["parts"] = run_parts(plan, names)
    options.to.mkdir(parents=True, exist_ok=True)
    file = options.to / f"{results['machine']['date']}-gpu{'-simulated' * simulated}.json"
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = file.with_suffix(".md")
    page.write_text("\n".join(write_page(results, simulated)) + "\n", encoding="utf-8")
    print(f"{file}\n{page}")
    return int(any("error" in part for part in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
