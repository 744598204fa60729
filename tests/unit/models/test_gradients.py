"""Every model with its objective: gradients, splits, graphs, and what may not change a number.

Shapes: B batch, T sequence, V vocabulary.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rungwise.models.losses import cross_entropy
from rungwise.models.losses.cross_entropy import token_sums
from rungwise.models.transformer.block import recompute_activations
from tests.small_models import (
    CAUSAL_KINDS,
    KINDS,
    LATER,
    VOCAB_SIZE,
    check_slopes,
    gradient,
    objective_of,
    random_batch,
    random_causal_batch,
    rows_of,
    shaken,
    small_model,
)


def loss_and_gradient(kind, model, batch):
    model.zero_grad()
    loss = objective_of(kind)(model, batch).loss()
    loss.backward()
    return loss.detach(), gradient(model)


VARIANTS = [
    *[(kind, {"norm": norm}) for kind in KINDS if kind not in LATER for norm in ("post", "pre")],
    *[(kind, {"num_layers": 2}) for kind in KINDS if kind in LATER],
    ("llama", {"tied": False, "head_size": 6}),
    ("mlm_nsp", {"positions": "sinusoid"}),
    ("left_to_right", {"positions": "sinusoid"}),
]


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_the_gradient_is_that_of_finite_differences(kind, changes):
    sizes = {"num_layers": 1, "hidden_size": 8, "intermediate_size": 12} | changes
    model = small_model(kind, 11, **sizes).double()
    shaken(model)
    batch = random_batch(kind, 3, 7, 3, vocab_size=11, dtype=torch.float64)
    objective = objective_of(kind)
    objective(model, batch).loss().backward()
    check_slopes(model, lambda: objective(model, batch).loss().item(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3)
@given(cuts=st.sets(st.integers(1, 7), max_size=7), seed=st.integers(0, 1000))
def test_any_split_gives_the_same_loss_and_gradient(kind, cuts, seed):
    """Cut into micro-batches anywhere, with another number of losses in each."""
    torch.manual_seed(seed)
    objective, model = objective_of(kind), small_model(kind).double()
    batch = random_batch(kind, 8, 12, 5, dtype=torch.float64)
    loss, expected = loss_and_gradient(kind, model, batch)
    whole = objective(model, batch)

    pieces = [rows_of(batch, a, b) for a, b in pairwise([0, *sorted(cuts), 8])]
    global_count = torch.stack([objective.counts(piece) for piece in pieces]).sum(0)
    model.zero_grad()
    summed, merged = 0.0, None
    for piece in pieces:
        sums = objective(model, piece)
        share = sums.loss(global_count)
        share.backward()
        summed += share.item()
        merged = sums if merged is None else merged + sums
    assert summed == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-10, atol=1e-12)
    assert merged is not None
    assert merged.metrics() == pytest.approx(whole.metrics(), rel=1e-12)


# Each body and each head is in one of these or in llama; the others pair them otherwise. The
# backward is a graph too for llama, as for all that tests/unit/training/test_gpu_step.py compiles.
COMPILED = ("mlm_nsp", "modern_bert", "bidirectional")


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("llama", "aot_eager"),
        *[(kind, "eager") for kind in COMPILED],
        *[
            pytest.param(kind, "aot_eager", marks=pytest.mark.slow)
            for kind in KINDS
            if kind != "llama"
        ],
    ],
)
def test_model_and_objective_compile_to_one_graph(kind, backend, monkeypatch):
    """No branch on data and no wait for the device, with chunks and recomputation as well."""
    model = shaken(small_model(kind, num_layers=1), 0.1)
    batch, objective = random_batch(kind, 3, 12), objective_of(kind)
    expected_loss, expected = loss_and_gradient(kind, model, batch)
    if kind in CAUSAL_KINDS:
        monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 20 * VOCAB_SIZE)
    recompute_activations(model)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda batch: objective(model, batch), fullgraph=True, dynamic=False, backend=backend
    )
    model.zero_grad()
    loss = compiled(batch).loss()
    loss.backward()
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(gradient(model), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputed_activations_give_the_same_gradient(kind, dropout):
    """Dropout too: what was dropped is dropped again."""
    model, batch = small_model(kind, dropout=dropout), random_batch(kind, 3, 12)
    results = []
    for on in (False, True):
        recompute_activations(model, on)
        torch.manual_seed(5)
        results.append(loss_and_gradient(kind, model, batch))
    torch.testing.assert_close(*results, atol=0, rtol=0)


def test_recomputing_keeps_the_input_of_a_block_and_nothing_else():
    """Bytes that autograd holds on to, with and without."""
    batch = random_causal_batch(2, 16, packed=False)
    held = []
    for on in (False, True):
        model = small_model("causal", num_layers=6)
        recompute_activations(model, on)
        kept = {}
        parameters = {p.data_ptr() for p in model.parameters()}

        def keep(tensor, kept=kept, parameters=parameters):
            if tensor.data_ptr() not in parameters:
                kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.gpt.encode(batch.ids)
        held.append(sum(kept.values()))
    assert held[1] < held[0] / 4


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
@pytest.mark.parametrize("most_logits", [1, 7 * VOCAB_SIZE, 35 * VOCAB_SIZE])
def test_chunks_of_logits_change_nothing(kind, most_logits, monkeypatch):
    model = shaken(small_model(kind)).double()
    batch = random_causal_batch(3, 12, dtype=torch.float64)
    expected = objective_of(kind)(model, batch)
    expected_loss, expected_gradient = loss_and_gradient(kind, model, batch)
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", most_logits)
    loss, chunked_gradient = loss_and_gradient(kind, model, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(chunked_gradient, expected_gradient, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        evaluated = objective_of(kind)(model, batch)
    torch.testing.assert_close(evaluated.total, expected.total, rtol=1e-12, atol=0)
    assert torch.equal(evaluated.correct, expected.correct)


@pytest.mark.parametrize("compiling", [False, True])
def test_no_more_logits_than_asked_for_are_held_at_a_time(monkeypatch, compiling):
    """Every tensor that PyTorch makes in forward and backward, seen below autograd."""
    shapes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if isinstance(output, torch.Tensor) and output.ndim == 2:
                shapes.append(tuple(output.shape))
            return output

    model, batch = small_model("causal"), random_causal_batch(4, 16, packed=False)
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 10 * VOCAB_SIZE)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    with Watch():
        loss_and_gradient("causal", model, batch)
    # (D, V) is the output matrix itself, turned.
    rows = {height for height, width in shapes if width == VOCAB_SIZE and height != 16}
    assert max(rows) == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_made_on_the_way_forward_are_those_of_autograd(monkeypatch, kind, dtype):
    """The fused loss of a CPU beside the plain one, padded as on a GPU: a short last chunk."""
    model = shaken(small_model(kind))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    model, batch = model.to(wide), random_batch(kind, 3, 12, dtype=wide)
    if kind in CAUSAL_KINDS:
        monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 11 * VOCAB_SIZE)
    else:
        # 12 rows in chunks of 5
        monkeypatch.setattr(cross_entropy, "_CACHED_LOGITS", 5 * VOCAB_SIZE)
    results = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda on=compiling: on)
        monkeypatch.setattr(cross_entropy, "is_gpu", lambda _, on=compiling: on)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            sums = objective_of(kind)(model, batch)
        sums.loss().backward()
        results.append((sums.total.detach(), sums.correct, gradient(model)))
    fused, plain = results
    if dtype == torch.bfloat16:
        in_float32 = objective_of(kind)(model, batch).total.detach()
        assert not torch.equal(fused[0], in_float32), "products were not taken in half width"
    assert torch.equal(fused[1], plain[1])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(fused[0], plain[0], rtol=tolerance, atol=0)
    difference = (fused[2] - plain[2]).norm() / plain[2].norm()
    assert difference < tolerance, difference


def test_a_tie_is_right_only_for_the_first_class():
    """As argmax has it; half-width logits tie often."""
    hidden_XD = torch.ones(3, 4)
    weight_VD = torch.tensor([[0.0], [1.0], [1.0], [0.5]]).expand(4, 4).contiguous()
    sums = token_sums(hidden_XD, weight_VD, None, torch.tensor([1, 2, 3]), torch.ones(3))
    assert sums.correct.item() == 1
