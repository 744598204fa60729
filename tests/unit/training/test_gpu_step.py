"""The step that a GPU takes, looked at without one.

Tensors are fake: they have shapes and no numbers, so every place that reads one on the host raises.
`is_gpu` says yes. Graphs come from the compiler as they are, and what runs outside of them is
watched. This shows what is asked of a GPU; whether its kernels do it, only a GPU can.
"""

import functools
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rungwise.instances.batch import Batch
from rungwise.models.config import ModelConfig
from rungwise.models.family import Family, StatefulFamily
from rungwise.models.losses.objectives import BatchShapes
from rungwise.training.fit_config import fitting_kind
from rungwise.training.optimizer import MuonConfig, OptimizerConfig, build_optimizers
from rungwise.training.parallel import Exchange, Group
from rungwise.training.step import Step
from tests.gpu_step_cases import DENSE, FAMILIES, NO_ATTENTION, T, V, micro_batch

CPU = torch.device("cpu")
# Products and what else is of the size of a micro-batch's states or logits.
HEAVY = ("mm", "bmm", "addmm", "_softmax", "_log_softmax", "native_layer_norm", "gelu")


class Watch(TorchDispatchMode):
    """Names of the operations that run outside of compiled graphs, and graphs by their place."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.graphs: list[torch.fx.GraphModule] = []
        self.frames = 0
        self._inside = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._inside:
            self.outside.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def backend(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.frames += 1
        return aot_autograd(fw_compiler=self._kept, bw_compiler=self._kept)(graph, inputs)

    def _kept(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.graphs.append(graph)

        def run(*inputs: Any) -> Any:
            self._inside += 1
            try:
                return graph(*inputs)
            finally:
                self._inside -= 1

        return make_boxed_func(run)

    def made(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of everything that a graph makes."""
        for graph in self.graphs:
            for node in graph.graph.nodes:
                if node.op == "call_function":
                    value = node.meta.get("val")
                    yield str(node.target), tuple(value.shape) if isinstance(value, Tensor) else ()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A faked GPU, with what is asked of it."""
    for module in ("transformer.block", "losses.cross_entropy"):
        monkeypatch.setattr(f"rungwise.models.{module}.is_gpu", lambda _: True)
    seen, real = Watch(), torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(real, backend=seen.backend))
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def made(family: Family, kind: str, world_size: int, optimizer: str = "adamw") -> Any:
    """A step of fake weights, and the function that makes fake micro-batches."""
    objective = family.objective(kind)
    with torch.device("meta"):
        model = family.build(V, objective)
    for module in model.modules():
        for leaf, value in module._parameters.items():
            if value is not None:  # a fake one, as whatever is made here
                module._parameters[leaf] = nn.Parameter(torch.empty(value.shape))
    group = Group(0, world_size, CPU)
    config = MuonConfig() if optimizer == "muon" else OptimizerConfig()
    optimizers = build_optimizers(model, config)
    alone = Exchange(model)
    return Step(model, objective, alone, optimizers, config, group, bfloat16=True, compile=True)


def taken(step: Any, batches: list[Batch[Tensor]], watch: Watch) -> list[int]:
    """Steps of two micro-batches each; the number of graphs after each."""
    frames = []
    parts = [
        batch._map(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        for batch in batches
    ]
    for pair in zip(parts[::2], parts[1::2], strict=True):
        with watch:
            counts = torch.ones(len(step.objective.parts))
            sums, norm = step(pair, counts, 1e-3)
        assert (sums.shape, norm.shape) == ((3, len(step.objective.parts)), ())
        frames.append(watch.frames)
    return frames


def test_every_family_and_objective_of_a_compiled_run_is_among_these() -> None:
    """`compute.compile` leaves out those with a state or vectors of sentences."""
    found = {(family.kind, objective) for family, objective in FAMILIES.values()}
    for family in typing.get_args(typing.get_args(ModelConfig)[0]):
        if fitting_kind(family()) == "gradient" and not issubclass(family, StatefulFamily):
            kind = family.model_fields["kind"].default
            taken = {
                (kind, each.name)
                for each in family.objectives
                if family().compiles and each.shapes is not BatchShapes.UNKNOWN
            }
            assert taken <= found


CASES = [(name, ways) for name in (*FAMILIES, "packed") for ways in ("whole", "by parts")]
QUICK = [("packed", "whole"), ("bert_causal_and_masked", "whole"), ("mlm_nsp", "by parts")]


@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_no_dense_mask_no_head_outside_no_new_graph(watch: Watch, name: str, way: str) -> None:
    """Of ragged rows, step after step. With several workers there are more graphs and no breaks."""
    family, kind = FAMILIES["mlm" if name == "packed" else name]
    # A whole graph is for every size from the first, so it needs no second step.
    seeds = range(2 if way == "whole" else 4)
    batches = [micro_batch(family, kind, seed, name == "packed") for seed in seeds]
    with FakeTensorMode():
        step = made(family, kind, 1 if way == "whole" else 2)
        frames = taken(step, batches, watch)
    # Between graphs of parts, the compiler learns from the second batch which sizes vary.
    assert set(frames) == {1 if way == "whole" else frames[0]}
    # A fake tensor has nothing to read on the host, and says so.
    assert not set(watch.outside) & {*HEAVY, "_local_scalar_dense"}, watch.outside
    found = list(watch.made())
    if name not in NO_ATTENTION + DENSE:
        assert any("_varlen_attn_backward" in operation for operation, _ in found)
        assert not any("scaled_dot" in op or "aten.bmm" in op for op, _ in found)
        assert not any(shape[-2:] == (T, T) for _, shape in found), "a dense mask"
    # The vocabulary is padded on the way into the product of logits.
    widths = {shape[-1] for op, shape in found if "aten.mm" in op or "aten.addmm" in op}
    assert 64 in widths
    assert V not in widths


def test_the_host_reads_nothing_of_a_step_of_muon(watch: Watch) -> None:
    """The cases above take steps of AdamW."""
    family, kind = FAMILIES["nnlm"]
    batch = micro_batch(family, kind, 0)
    with FakeTensorMode():
        taken(made(family, kind, 1, "muon"), [batch, batch], watch)
    assert "_local_scalar_dense" not in watch.outside
