"""The bare training step of ours beside Hugging Face's models and a plain nanoGPT-style step.

    python -m benchmarks.training_step                   on this CPU
    python -m benchmarks.training_step --device cuda     on a GPU: bfloat16, compiled

It needs PyTorch, NumPy, pydantic and PyYAML, and neither Ray nor MLflow: it is meant for a bare GPU
machine, with `PYTHONPATH=platform:.`. Without `transformers` its rows say so.

A step is forward, loss, backward, clipping and fused AdamW, on batches that are on the device
already; ours is the one that the training loop calls (training/step.py), on batches as its feed
makes them. What is the same for all: rows, batch size, precision, threads, optimizer and its
groups, compilation (the whole loss; fullgraph, but for transformers, whose forward does not promise
it), on a GPU the output matrix padded to a multiple of 64 rows. No dropout anywhere. Peers get an
attention mask only where rows are padded, and their own usual loss. What differs is the code under
test, and:

- `transformers` takes BERT's logits at every position, as `BertForPreTraining` does; a second row
  has only the masked ones, as a user could write it. GPT-2 likewise has its own chain of operations
  for GELU, and a second row has one kernel.
- packed texts come to the peers in a row each, padded to the longest of the micro-batch.
- ragged rows come shuffled to the peers, each micro-batch padded to its longest row, as a padding
  collator makes them; ours are cut from rows sorted by length, as the training loop does it.

Every competitor is a process of its own that stays; they take turns, round after round, and in each
round another one is first. Only real tokens count: neither padding nor what fills a fixed shape. On
one CPU thread time is that of the processor, so that a busy machine falls on nobody; else it is
wall time. A ratio is the median of the ratios of the rounds.
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import REPOSITORY, median_ratio, take_turns
from benchmarks.training_cases import CASES, Case, Rows, draw, tensor
from rungwise.instances.batch import Batch, CausalBatch, MaskedBatch
from rungwise.models.families.bert import ModernBertConfig
from rungwise.models.transformer.block import parameter_count
from rungwise.training.optimizer import (
    OptimizerConfig,
    Optimizers,
    build_optimizers,
    clip_gradients,
    update,
)
from rungwise.training.parallel import Group, Parallel, distribute
from rungwise.training.step import Step
from rungwise.training.throughput import COUNTING_RULE, matmul_rate

_STEPS_TO_WARM_UP = {"cpu": 1, "cuda": 4}  # the first compiles
_VOCABULARY_MULTIPLE = {"cpu": 1, "cuda": 64}
_IGNORED = -100

OURS = "ours"
BERT_PEERS = ("transformers", "transformers, masked head")
MODERN_BERT_PEER = "transformers"
GPT_PEERS = ("transformers", "transformers, one GELU kernel", "nanoGPT-style")


@dataclass(frozen=True)
class Setting:
    """What is the same for all competitors."""

    device: str
    precision: str
    compile: bool
    threads: int

    @property
    def bfloat16(self) -> bool:
        return self.precision == "bfloat16"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.bfloat16 else torch.float32

    def vocabulary(self, case: Case) -> int:
        """As large as the peers have it."""
        multiple = _VOCABULARY_MULTIPLE[self.device]
        return -(-case.vocab_size // multiple) * multiple

    def clock(self) -> Callable[[], float]:
        """Processor time where one thread does everything, else wall time."""
        if self.device == "cpu" and self.threads == 1:
            return time.process_time
        return time.perf_counter


@dataclass(frozen=True)
class Competitor:
    """A model, its micro-batches of one step from rows, and a step over them, which gives the
    loss."""

    model: nn.Module
    optimizers: Optimizers
    micro_batches: Callable[[Rows], list[Any]]
    step: Callable[[list[Any]], Tensor]


def list_competitors(case: Case) -> tuple[str, ...]:
    if isinstance(case.model, ModernBertConfig):
        return (OURS, MODERN_BERT_PEER)
    return (OURS, *(BERT_PEERS if case.is_bert else GPT_PEERS))


def build(name: str, case: Case, setting: Setting) -> Competitor:
    """A competitor with fresh weights on the device."""
    torch.manual_seed(0)
    device = torch.device(setting.device)
    if name == OURS:
        return build_ours(case, setting, Group(0, 1, device))
    shape = case.shape | {"vocab_size": setting.vocabulary(case)}
    if name == "nanoGPT-style":
        from benchmarks.baselines.nano_gpt import NanoGpt

        plain = NanoGpt(
            shape["num_layers"],
            shape["num_heads"],
            shape["hidden_size"],
            shape["max_position_embeddings"],
            shape["vocab_size"],
        ).to(device)
        return _peer(plain, case, setting, _next_tokens, lambda part: plain(**part), True)

    from benchmarks.baselines import hugging_face_models

    if not case.is_bert:
        gpt2 = hugging_face_models.gpt2(**shape, one_kernel="GELU" in name).to(device)
        return _peer(gpt2, case, setting, _labels_of_stream, _usual_loss(gpt2), False)
    if isinstance(case.model, ModernBertConfig):
        modern = hugging_face_models.modern_bert(**shape).to(device)
        return _peer(modern, case, setting, _labels_without_pairs, _usual_loss(modern), False)
    bert = hugging_face_models.bert(**shape).to(device)
    if name == "transformers":
        return _peer(bert, case, setting, _labels_everywhere, _usual_loss(bert), False)
    masked = hugging_face_models.MaskedHead(bert)
    return _peer(masked, case, setting, _labels_masked, lambda part: masked(**part), False)


def build_ours(
    case: Case, setting: Setting, group: Group, parallel: Parallel = "ddp"
) -> Competitor:
    """Our model on the group's device; each worker of a group trains on rows of its own."""
    objective, device = case.objective, group.device
    model = case.model.build(case.vocab_size, objective)
    config = OptimizerConfig()
    # A CPU's norm refuses weights that are sent in bfloat16.
    exchange = distribute(model, group, parallel, setting.bfloat16 and device.type == "cuda")
    optimizers = build_optimizers(model, config)
    step = Step(
        model, objective, exchange, optimizers, config, group, setting.bfloat16, setting.compile
    )

    def micro_batches(rows: Rows) -> list[Batch[Tensor]]:
        if case.packed:
            ends = rows.lengths.cumsum() / case.sequence_length
            bins = np.split(
                np.arange(len(rows)),
                1 + np.searchsorted(ends, np.arange(1, case.micro_batches) * case.rows),
            )
            return [_packed_batch(rows.take(texts), case, device) for texts in bins]
        by_length = np.argsort(rows.lengths, kind="stable")
        bins = np.array_split(by_length, case.micro_batches)
        return [_our_batch(rows.take(part), case, setting, device) for part in bins]

    def run(parts: list[Batch[Tensor]]) -> Tensor:
        counts = group.sum(torch.stack([objective.counts(part) for part in parts]).sum(0))
        (total, _, _), *_ = step(parts, counts, config.learning_rate)
        return (total / counts).sum()

    return Competitor(model, optimizers, micro_batches, run)


def _our_batch(rows: Rows, case: Case, setting: Setting, device: torch.device) -> Batch[Tensor]:
    """As training/feed.py, which needs more than a bare machine has: compiled models are told of
    every padding and boundary that there could be."""
    B, T = rows.ids.shape
    if not case.is_bert:
        ids, targets, weights = rows.ids[:, :-1], rows.ids[:, 1:], np.ones((B, T - 1), np.float32)
        stream = [tensor(array, device) for array in (ids, targets, weights)]
        if not setting.compile:
            return CausalBatch(*stream)
        place = np.tile(np.arange(T - 1), (B, 1))
        starts = (np.arange(B + 1) * (T - 1)).astype(np.int32)
        return CausalBatch(*stream, *(tensor(a, device) for a in (place * 0, place, starts)))
    full = not setting.compile and bool((rows.lengths == T).all())
    slots = int(rows.weights.sum(axis=1).max()) if case.ragged else case.masked_positions
    return MaskedBatch(
        ids=tensor(rows.ids, device),
        segments=tensor(rows.segments, device),
        lengths=None if full else tensor(rows.lengths, device),
        masked_positions=tensor(rows.positions[:, :slots], device),
        masked_ids=tensor(rows.targets[:, :slots], device),
        masked_weights=tensor(rows.weights[:, :slots], device),
        label=tensor(rows.label, device),
    )


def _packed_batch(texts: Rows, case: Case, device: torch.device) -> MaskedBatch[Tensor]:
    """Texts one behind the other, which fill rows to the last token."""
    lengths, T, M = texts.lengths, case.sequence_length, case.masked_positions
    real = np.arange(texts.ids.shape[1]) < lengths[:, None]
    ids = texts.ids[real].reshape(-1, T)
    begins = np.append(0, lengths.cumsum())
    text, slot = np.nonzero(texts.weights)
    row, place = np.divmod(begins[text] + texts.positions[text, slot], T)
    slots = np.arange(len(row)) - np.searchsorted(row, row)  # (row, place) are in order of rows
    positions, targets, weights = (np.zeros((len(ids), M), t) for t in (int, int, np.float32))
    positions[row, slots], targets[row, slots] = place, texts.targets[text, slot]
    weights[row, slots] = 1
    arrays = {
        "ids": ids,
        "segments": np.zeros_like(ids),
        "masked_positions": positions,
        "masked_ids": targets,
        "masked_weights": weights,
        "label": np.zeros(len(ids), int),
        "document": np.repeat(np.arange(len(lengths)), lengths).reshape(-1, T),
        "positions": np.nonzero(real)[1].reshape(-1, T),
        "starts": begins.astype(np.int32),
    }
    return MaskedBatch(
        lengths=None, **{name: tensor(array, device) for name, array in arrays.items()}
    )


def _peer(
    model: nn.Module,
    case: Case,
    setting: Setting,
    inputs: Callable[[Rows, torch.device], dict[str, Any]],
    loss: Callable[[dict[str, Any]], Tensor],
    fullgraph: bool,
) -> Competitor:
    config, device = OptimizerConfig(), torch.device(setting.device)
    optimizers = build_optimizers(model, config)
    loss = torch.compile(loss, fullgraph=fullgraph) if setting.compile else loss

    def micro_batches(rows: Rows) -> list[dict[str, Any]]:
        bins = np.array_split(np.arange(len(rows)), case.micro_batches)
        return [inputs(rows.take(part), device) for part in bins]

    def step(parts: list[dict[str, Any]]) -> Tensor:
        total = torch.zeros((), device=device)
        for part in parts:
            with torch.autocast(setting.device, torch.bfloat16, enabled=setting.bfloat16):
                share = loss(part) / len(parts)
            share.backward()
            total += share.detach()
        update(optimizers, clip_gradients(model, config).isfinite(), config.learning_rate)
        model.zero_grad(set_to_none=True)
        return total

    return Competitor(model, optimizers, micro_batches, step)


def _usual_loss(model: Any) -> Callable[[dict[str, Any]], Tensor]:
    return lambda part: model(**part).loss


def _next_tokens(rows: Rows, device: torch.device) -> dict[str, Any]:
    return {
        "ids_BT": tensor(rows.ids[:, :-1], device),
        "targets_BT": tensor(rows.ids[:, 1:], device),
    }


def _labels_of_stream(rows: Rows, device: torch.device) -> dict[str, Any]:
    ids = tensor(rows.ids[:, :-1], device)
    return {"input_ids": ids, "labels": ids}


def _labels_everywhere(rows: Rows, device: torch.device) -> dict[str, Any]:
    labels = np.full(rows.ids.shape, _IGNORED)
    row, place = np.nonzero(rows.weights)
    labels[row, rows.positions[row, place]] = rows.targets[row, place]
    return _encoder_inputs(rows, device) | {"labels": tensor(labels, device)}


def _labels_without_pairs(rows: Rows, device: torch.device) -> dict[str, Any]:
    inputs = _labels_everywhere(rows, device)
    return {key: inputs[key] for key in ("input_ids", "attention_mask", "labels")}


def _labels_masked(rows: Rows, device: torch.device) -> dict[str, Any]:
    slots = int(rows.weights.sum(axis=1).max())
    labels = np.where(rows.weights > 0, rows.targets, _IGNORED)[:, :slots]
    return _encoder_inputs(rows, device) | {
        "positions_BM": tensor(rows.positions[:, :slots], device),
        "labels_BM": tensor(labels, device),
    }


def _encoder_inputs(rows: Rows, device: torch.device) -> dict[str, Any]:
    real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
    return {
        "input_ids": tensor(rows.ids, device),
        "token_type_ids": tensor(rows.segments, device),
        "attention_mask": None if real.all() else tensor(real.astype(np.int64), device),
        # Theirs has the classes the other way, which costs the same.
        "next_sentence_label": tensor(1 - rows.label, device),
    }


class Running:
    """One competitor at work in this process."""

    def __init__(self, name: str, case: Case, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)
        self.case, self.setting = case, setting
        self._competitor = build(name, case, setting)
        batches = [draw(case, seed) for seed in range(4)]
        self._tokens = [rows.tokens for rows in batches]
        self._steps = [self._competitor.micro_batches(rows) for rows in batches]
        self._number = 0
        self.first_loss = float(self._step())
        for _ in range(_STEPS_TO_WARM_UP[setting.device] - 1):
            self._step()
        self._step_seconds = self.measure(steps=1)["seconds"]

    def facts(self) -> dict[str, Any]:
        return {
            "parameters": parameter_count(self._competitor.model),
            "first_loss": self.first_loss,
            "tokens_per_step": sum(self._tokens) / len(self._tokens),
        }

    def measure(self, for_seconds: float = 0.0, steps: int = 0) -> dict[str, float]:
        """Whole steps for about so long: seconds and real tokens."""
        steps = steps or max(1, round(for_seconds / self._step_seconds))
        if self.setting.device == "cuda":
            self._step()  # memory that was handed back to the others is taken again
        clock = self.setting.clock()
        self._wait()
        began, tokens = clock(), 0
        for _ in range(steps):
            tokens += self._tokens[self._number % len(self._tokens)]
            self._step()
        self._wait()
        seconds = clock() - began
        return {"seconds": seconds, "tokens": tokens, "steps": steps, "peak_bytes": self._peak()}

    def matmul(self) -> dict[str, float]:
        """The rate of a matrix product now."""
        device, dtype = torch.device(self.setting.device), self.setting.dtype
        return {"rate": matmul_rate(device, dtype, self.setting.clock())}

    def _step(self) -> Tensor:
        parts = self._steps[self._number % len(self._steps)]
        self._number += 1
        return self._competitor.step(parts)

    def _wait(self) -> None:
        if self.setting.device == "cuda":
            torch.cuda.synchronize()

    def _peak(self) -> float:
        if self.setting.device == "cuda":
            peak = float(torch.cuda.max_memory_allocated())
            torch.cuda.empty_cache()
            return peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def serve() -> None:
    """Be a competitor: one JSON line in, one out, until there is no more."""
    running: Running | None = None
    for line in sys.stdin:
        request = json.loads(line)
        match request.pop("do"):
            case "start":
                case = CASES[request["cases"]][request["case"]]
                running = Running(request["name"], case, Setting(**request["setting"]))
                answer = running.facts()
            case "matmul":
                assert running is not None
                answer = running.matmul()
            case "measure":
                assert running is not None
                answer = running.measure(**request)
            case unknown:
                raise ValueError(unknown)
        print(json.dumps(answer), flush=True)


class Worker:
    """A competitor in a process of its own, from the driver's side."""

    def __init__(self, name: str, cases: str, case: int, setting: Setting) -> None:
        threads = str(setting.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        paths = [str(REPOSITORY / "platform"), str(REPOSITORY), environment.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.training_step", "--serve"],
            cwd=REPOSITORY,
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self.ask(do="start", name=name, cases=cases, case=case, setting=vars(setting))

    def ask(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a competitor ended with {self._process.wait()}: {what}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def installed(name: str) -> bool:
    """Whether a competitor can be built here."""
    return not name.startswith("transformers") or _has_transformers()


def _has_transformers() -> bool:
    try:
        return importlib.util.find_spec("transformers") is not None
    except ValueError:  # an import that is blocked
        return False


def compare(
    cases: str, number: int, setting: Setting, rounds: int, for_seconds: float
) -> dict[str, Any]:
    """All competitors of one case in turns: facts, every round, and the table's rows."""
    case = CASES[cases][number]
    workers: dict[str, Worker] = {}
    missing = [name for name in list_competitors(case) if not installed(name)]
    try:
        for name in list_competitors(case):
            if name not in missing:
                print(f"  {case.name}, {setting.precision}: starting {name}", file=sys.stderr)
                workers[name] = Worker(name, cases, number, setting)
        names = list(workers)
        measured: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        products: list[float] = []
        for turn, name in take_turns(names, rounds):
            if len(products) == turn:
                products.append(workers[OURS].ask(do="matmul")["rate"])
            measured[name].append(workers[name].ask(do="measure", for_seconds=for_seconds))
    finally:
        for worker in workers.values():
            worker.close()
    rates = {
        name: [run["tokens"] / run["seconds"] for run in runs] for name, runs in measured.items()
    }
    length = draw(case, 0).seen if case.packed else case.sequence_length
    # A mean length has a fraction.
    sizes: Any = (case.vocab_size, length, case.objective, 0.15 * length)
    flops = case.model.flops_per_token(*sizes)
    return {
        "case": case.name,
        "setting": vars(setting),
        "rows_a_step": case.rows * case.micro_batches,
        "facts": {name: worker.facts for name, worker in workers.items()},
        "flops_per_token": flops,
        "matmul_flops_per_second": products,
        "measured": measured,
        "not_installed": missing,
        "tokens_per_second": {name: median(values) for name, values in rates.items()},
        "mfu": {name: median(values) * flops / median(products) for name, values in rates.items()},
        "ratios": {name: median_ratio(rates[OURS], rates[name]) for name in names if name != OURS},
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result of one case as text."""
    setting = result["setting"]
    head = f"{result['case']}, {setting['precision']}, {result['rows_a_step']} rows a step"
    text = [head]
    for name, rate in result["tokens_per_second"].items():
        ratio = result["ratios"].get(name)
        beside = "" if ratio is None else f"ours is {ratio:.2f} x"
        memory = max(turn["peak_bytes"] for turn in result["measured"][name]) / 2**20
        text.append(
            f"  {name:<32}{rate:>12,.0f} tokens/s  MFU {result['mfu'][name]:6.1%}  "
            f"{memory:>8,.0f} MiB  {beside}"
        )
    text += [f"  {name:<32}not installed" for name in result["not_installed"]]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="a competitor and round")
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--output", type=Path, help="a JSON file for every measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("there is no GPU here")
    setting = Setting(
        device=options.device,
        precision=options.precision or ("bfloat16" if on_gpu else "float32"),
        compile=on_gpu if options.compile is None else options.compile,
        threads=options.threads,
    )
    print(f"PyTorch {torch.__version__}; {setting}")
    print(f"operations: {COUNTING_RULE}")
    results = []
    for number, case in enumerate(CASES[options.device]):
        if options.only in case.name:
            results.append(
                compare(options.device, number, setting, options.rounds, options.seconds)
            )
            print("\n" + "\n".join(lines(results[-1])), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
