"""What one training step asks of a GPU, counted without one: work, operations and memory.

    python -m benchmarks.simulated_step                   all cases of `training_step --device cuda`
    python -m benchmarks.simulated_step --only packed --output FILE

Tensors are fake: they have shapes and no numbers, so BERT base with 131,072 tokens fits anywhere.
The step is the one that the trainer and `training_step` take, compiled, beside the same peers; its
graphs come from the compiler as they are before fusion. Counted for one micro-batch:

    products     matrix products, forward and backward, and their operations (2 for a multiply-add)
                 a real token: padding and unused logits raise it
    attention    calls of an attention kernel, whichever it is
    others       everything else that computes; the compiler fuses most of it into fewer kernels
    kept         what forward leaves for backward, in bytes
    largest      the largest tensor that a graph makes, in bytes; fused, it may never be written out
    graphs       2 are forward and backward in one piece
    state        weights, gradients and moments, in bytes

Times, fused kernels and the memory in use at the peak need a GPU. The fake tensors lie on a CPU;
norms and losses are computed in float32 as a GPU's autocast does, and `is_gpu` says yes.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import flop_registry

from benchmarks import training_step
from benchmarks.training_cases import CASES, Case, draw
from benchmarks.training_step import Setting, build, installed, list_competitors
from rungwise.models.transformer.block import parameter_count

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_GIBIBYTE = 2**30
_MOMENTS = 2  # of AdamW, in float32 as weights and gradients are


@dataclass
class Counts:
    """What the graphs of one micro-batch ask for."""

    products: int = 0
    product_flops: int = 0
    attention: int = 0
    others: int = 0
    kept_bytes: int = 0
    largest_bytes: int = 0
    graphs: int = 0

    def backend(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        """Compile nothing, and count what Inductor would be given."""
        compiler = aot_autograd(
            fw_compiler=functools.partial(self._enter, backward=False),
            bw_compiler=functools.partial(self._enter, backward=True),
            decompositions=select_decomp_table(),
            partition_fn=functools.partial(
                min_cut_rematerialization_partition, compiler="inductor"
            ),
        )
        return compiler(graph, inputs)

    def _enter(self, graph: torch.fx.GraphModule, _: Any, backward: bool) -> Any:
        self.graphs += 1
        for node in graph.graph.nodes:
            size = sum(map(_bytes, _tensors(node.meta.get("val"))))
            if node.op == "call_function" and _computes(node.target):
                self._count(node)
                self.largest_bytes = max(self.largest_bytes, size)
            # What is handed over, other than arguments of forward and gradients of its results.
            if backward and node.op == "placeholder":
                self.kept_bytes += 0 if node.name.startswith(("primals", "tangents")) else size
        return make_boxed_func(graph.forward)

    def _count(self, node: torch.fx.Node) -> None:
        assert isinstance(node.target, torch._ops.OpOverload)
        packet = node.target.overloadpacket
        name = packet.__name__
        if name in _PRODUCTS:
            self.products += 1
            values = [
                each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args
            ]
            count = flop_registry[packet]
            self.product_flops += count(*values, out_val=node.meta["val"])
        elif "attn" in name or "attention" in name:
            self.attention += 1
        else:
            self.others += 1


def count(name: str, case: Case) -> dict[str, Any]:
    """The counts of one competitor's step over one micro-batch."""
    alone = replace(case, micro_batches=1)
    rows = draw(alone, 0)
    torch._dynamo.reset()
    counts = Counts()
    with _simulated(counts):
        setting = Setting("cpu", "bfloat16", compile=True, threads=1)
        competitor = build(name, alone, setting)
        competitor.step(competitor.micro_batches(rows))
    return vars(counts) | {
        "real_tokens": rows.tokens,
        "state_bytes": parameter_count(competitor.model) * 4 * (2 + _MOMENTS),
    }


@contextmanager
def _simulated(counts: Counts) -> Iterator[None]:
    """Fake tensors, a compiler that counts, and a device that says it is a GPU."""
    changed = {
        "rungwise.models.transformer.block.is_gpu": lambda _: True,
        "rungwise.models.losses.cross_entropy.is_gpu": lambda _: True,
        "torch.compile": functools.partial(torch.compile, backend=counts.backend),
        # Fake weights are where they should be, and drawing them reads numbers.
        "torch.nn.Module.to": lambda module, *_: module,
        "torch.nn.init.trunc_normal_": lambda tensor, **_: tensor,
        "torch.nn.functional.layer_norm": _in_float32(functional.layer_norm),
        "torch.nn.functional.cross_entropy": _in_float32(functional.cross_entropy),
    }
    with ExitStack() as stack:
        for target, value in changed.items():
            stack.enter_context(mock.patch(target, value))
        stack.enter_context(mock.patch.dict(training_step._VOCABULARY_MULTIPLE, cpu=64))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda tensor, *rest, **options: function(tensor.float(), *rest, **options)


def _computes(target: Any) -> bool:
    """Whether an operation is more than a view or a number of the host."""
    overload = isinstance(target, torch._ops.OpOverload)
    return overload and not target.is_view and target.namespace != "prim"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _bytes(tensor: Tensor) -> int:
    size = tensor.element_size()
    for length in tensor.shape:
        size *= int(length) if not isinstance(length, torch.SymInt) else length.node.hint or 1
    return size


def lines(case: Case, results: dict[str, dict[str, Any]]) -> list[str]:
    """The counts of one case as text."""
    tokens = next(iter(results.values()))["real_tokens"]
    text = [f"{case.name}, {tokens:,} real tokens a micro-batch"]
    for name, counts in results.items():
        memory = {key: counts[f"{key}_bytes"] / _GIBIBYTE for key in ("kept", "largest", "state")}
        text.append(
            f"  {name:<30}{counts['product_flops'] / tokens / 1e6:>7.1f} MFLOP a token in "
            f"{counts['products']:>3} products  {counts['attention']:>2} attention  "
            f"{counts['others']:>5} others  {counts['graphs']} graphs  GiB:"
            + "".join(f"  {key} {size:.2f}" for key, size in memory.items())
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--output", type=Path, help="a JSON file for every count")
    options = parser.parse_args()
    results = []
    for case in CASES["cuda"]:
        if options.only not in case.name:
            continue
        ours, *peers = list_competitors(case)
        names = (ours, *filter(installed, peers))
        counts = {name: count(name, case) for name in names}
        results.append({"case": case.name, "counts": counts})
        print("\n".join(lines(case, counts)), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
