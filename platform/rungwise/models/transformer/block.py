"""The Transformer block that all Transformer families share (Vaswani et al. 2017,
arXiv:1706.03762), and what else layers over rows have in common.

    post-norm (the paper):  x = LN(x + attention(x));   x = LN(x + mlp(x))
    pre-norm:               x = x + attention(LN(x));   x = x + mlp(LN(x));   one LN at the end

Pre-norm lets deep stacks train with less warm-up (Xiong et al. 2020, arXiv:2002.04745). GELU
(Hendrycks & Gimpel 2016, arXiv:1606.08415) is exact in BERT, and the tanh approximation in GPT.

Shapes: B batch, T sequence, D hidden, M chosen positions, N rows, L tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from rungwise.models.transformer.attention import (
    ACTIVATIONS,
    WHOLE,
    Attention,
    Boundaries,
    Layer,
    Rotation,
    StackedLinear,
    Visible,
    has_varlen,
    near_keys,
    real_places,
    rotation,
    visible_keys,
)

Inputs = tuple[Visible, Rotation | None, bool]  # of a block, beside the states


def sinusoid_positions(
    positions: int | Tensor,
    hidden_size: int,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(the same), as (..., D)
    of these positions, or (T, D) of the first T. Computed, not stored, so it extends to any length.
    Angles are in float64: in bfloat16 position 511 is already off by a radian."""
    if not isinstance(positions, Tensor):
        positions = torch.arange(positions, device=device)
    even_I = torch.arange(0, hidden_size, 2, device=device, dtype=torch.float64)
    rates_I = torch.exp(even_I * (-math.log(10_000.0) / hidden_size))
    angles = positions.double()[..., None] * rates_I
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)
    return pairs.flatten(-2).to(dtype)  # (..., D/2, 2) -> (..., D): sine and cosine alternate


def look_up_positions(
    embedding: nn.Embedding, sequence_length: int, positions_BT: Tensor | None
) -> Tensor:
    """Return the vectors (B, T, D), or (T, D). Raises ValueError beyond the table's end."""
    if sequence_length > embedding.num_embeddings:
        raise ValueError(
            f"the model has {embedding.num_embeddings} learned positions, found a sequence of "
            f"{sequence_length}; change max_position_embeddings, the sequence length, or, in a "
            f"BERT, positions to 'sinusoid'"
        )
    if positions_BT is None:
        return embedding.weight[:sequence_length]
    return embedding(positions_BT)


def gather_positions(hidden_BTD: Tensor, positions_BM: Tensor) -> Tensor:
    """Return the vectors (B, M, D) at the given positions of each row."""
    B, T, D = hidden_BTD.shape
    row_start_B1 = torch.arange(B, device=hidden_BTD.device)[:, None] * T
    flat_BM = (row_start_B1 + positions_BM).flatten()  # (B, M) -> (B·M)
    return hidden_BTD.reshape(B * T, D).index_select(0, flat_BM).view(B, -1, D)  # -> (B, M, D)


def initialise(module: nn.Module, initializer_range: float, *, truncated: bool = True) -> None:
    """Draw weights from a normal with PyTorch's generator; biases are 0, norms 1 and 0. BERT
    truncates the normal at two standard deviations (`create_initializer` of google-research/bert),
    so that its real one is 0.88 of `initializer_range`; GPT does not."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            if truncated:
                bound = 2 * initializer_range
                nn.init.trunc_normal_(layer.weight, std=initializer_range, a=-bound, b=bound)
            else:
                nn.init.normal_(layer.weight, std=initializer_range)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            layer.reset_parameters()


def draw_uniform(module: nn.Module, bound: float) -> None:
    """Draw all parameters uniformly from -`bound` to `bound`, with PyTorch's generator."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound)


def parameter_count(module: nn.Module) -> int:
    """Count the parameters; tied weights count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def recompute_activations(model: nn.Module, on: bool = True) -> None:
    """Turn activation checkpointing of the blocks on or off (Chen et al. 2016, arXiv:1604.06174):
    one more forward pass of the blocks for a twelfth of their activations, and the same numbers."""
    for module in model.modules():
        if isinstance(module, Transformer):
            module.recompute = on


class Mlp(nn.Module):
    """Two layers at each position; if gated, a second product multiplies the activation."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        D, inner = layer.hidden_size, layer.intermediate_size
        self.activation = ACTIVATIONS[layer.activation]
        self.gated = layer.gated
        sizes = (inner, inner) if layer.gated else (inner,)
        self.expand = StackedLinear(D, sizes, layer.biases)
        self.contract = nn.Linear(inner, D, bias=layer.biases)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner = self.expand(x_BTD)
        if not self.gated:
            return self.contract(self.activation(inner))
        gate, value = inner.chunk(2, dim=-1)
        return self.contract(self.activation(gate) * value)


class Block(nn.Module):
    """Attention, then the Mlp; each with a residual connection, a norm and dropout. The residual
    stream keeps its type. Given `chosen_BM`, only those positions are returned."""

    graphs: ClassVar = ("forward",)  # see parallel.py

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.norm = layer.norm
        self.attention = Attention(layer)
        self.attention_norm = layer.new_norm() if layer.first_norm else nn.Identity()
        self.mlp = Mlp(layer)
        self.mlp_norm = layer.new_norm()
        self.dropout = nn.Dropout(layer.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        visible: Visible,
        turn: Rotation | None = None,
        causal: bool = False,
        chosen_BM: Tensor | None = None,
    ) -> Tensor:
        read_BTD = self.attention_norm(x_BTD) if self.norm == "pre" else x_BTD
        attended_BTD = self.attention(read_BTD, visible, turn, causal)
        if chosen_BM is not None:
            x_BTD = gather_positions(x_BTD, chosen_BM)
            attended_BTD = gather_positions(attended_BTD, chosen_BM)
        if self.norm == "pre":
            x_BTD = x_BTD + self.dropout(attended_BTD)
            return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        stream = x_BTD.dtype
        x_BTD = self.attention_norm(x_BTD + self.dropout(attended_BTD)).to(stream)
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD))).to(stream)


class Transformer(nn.Module):
    """A stack of blocks over embedded tokens."""

    graphs: ClassVar = ("_leave",)  # see parallel.py

    def __init__(self, options: Sequence[Layer], causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.options = options
        self.recompute = False
        self.blocks = nn.ModuleList(Block(layer) for layer in options)
        last = options[-1]
        self.final_norm = last.new_norm() if last.norm == "pre" else nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        lengths_B: Tensor | None = None,
        where: Boundaries = WHOLE,
        chosen_BM: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's states, (B, T, D), or (B, M, D) of the chosen positions. See
        `visible_keys`; lengths of None mean no padding."""
        inputs = self._inputs(x_BTD, lengths_B, where)
        for block, options in zip(self.blocks[:-1], inputs[:-1], strict=True):
            x_BTD = self._through(block, x_BTD, *options)
        return self._leave(self._through(self.blocks[-1], x_BTD, *inputs[-1], chosen_BM))

    def layers(
        self, x_BTD: Tensor, lengths_B: Tensor | None = None, visible: Visible = None
    ) -> list[Tensor]:
        """Return the input and each block's output, num_layers + 1 in all; the last is normalised
        as in `forward`. `visible` replaces the default mask."""
        inputs = self._inputs(x_BTD, lengths_B, WHOLE, visible)
        outputs = [x_BTD]
        for block, options in zip(self.blocks, inputs, strict=True):
            outputs.append(self._through(block, outputs[-1], *options))
        outputs[-1] = self._leave(outputs[-1])
        return outputs

    @torch.no_grad()
    def scale_residuals(self) -> None:
        """Divide the output weights of residual branches by sqrt(2 · num_layers), so that the sum
        does not grow with depth (Radford et al. 2019, section 2.3)."""
        factor = 1 / math.sqrt(2 * len(self.blocks))
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention.output.weight.mul_(factor)
            block.mlp.contract.weight.mul_(factor)

    def _inputs(
        self, x_BTD: Tensor, lengths_B: Tensor | None, where: Boundaries, visible: Visible = None
    ) -> list[Inputs]:
        T, H = x_BTD.shape[1], self.options[0].head_size
        causal = self.causal if where.causal is None else where.causal
        dropout = self.options[0].dropout if self.training else 0.0
        if visible is None:
            varlen = has_varlen(x_BTD, H, dropout)
            visible = visible_keys(T, lengths_B, where, causal=causal, varlen=varlen)
        near = {
            window: near_keys(visible, window, x_BTD, causal)
            for window in {each.window for each in self.options}
        }
        turns = {
            base: None if base is None else rotation(T, H, base, x_BTD.device)
            for base in {each.rotary_base for each in self.options}
        }
        return [(near[each.window], turns[each.rotary_base], causal) for each in self.options]

    def _leave(self, x_BTD: Tensor) -> Tensor:
        return self.final_norm(x_BTD)

    def _through(self, block: nn.Module, x_BTD: Tensor, *options: Any) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            # Without dropout there is no random state to preserve.
            has_dropout = self.options[0].dropout > 0
            output: Any = checkpoint(
                block, x_BTD, *options, use_reentrant=False, preserve_rng_state=has_dropout
            )
            return output
        return block(x_BTD, *options)


# root: the sum over the square root of the length (Cer et al. 2018, arXiv:1803.11175)
Pooling = Literal["last", "mean", "max", "sum", "root"]


def run_cells(
    cells: nn.Module,
    x_NLD: Tensor,
    lengths_N: Tensor | None,
    state: Any = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Any]:
    """Return the outputs of PyTorch's recurrent layers, zeros at padding, and their last state.
    `lengths_N` is None if no row is padded; `weights` stand for those of the same names."""
    if lengths_N is None:
        return functional_call(cells, dict(weights or {}), (x_NLD, state))
    # Pack, as a right-to-left direction would otherwise begin with the padding.
    packed = pack_padded_sequence(x_NLD, lengths_N.cpu(), True, enforce_sorted=False)
    output, state = functional_call(cells, dict(weights or {}), (packed, state))
    return pad_packed_sequence(output, True, total_length=x_NLD.shape[1])[0], state


def pool(states_NLD: Tensor, lengths_N: Tensor, pooling: Pooling) -> Tensor:
    """Return the vectors (N, D), whatever stands at padding, NaN included; those of empty rows are
    zeros, except of `last`, where they mean nothing."""
    if pooling == "last":
        rows_N = torch.arange(len(states_NLD), device=states_NLD.device)
        return states_NLD[rows_N, (lengths_N - 1).clamp(min=0)]
    real_NL1 = real_places(states_NLD.shape[1], lengths_N)[:, :, None]
    length_N1 = lengths_N.clamp(min=1)[:, None]
    if pooling == "max":
        lowest = torch.finfo(states_NLD.dtype).min
        highest_ND = states_NLD.masked_fill(~real_NL1, lowest).amax(1)
        return highest_ND * (lengths_N > 0)[:, None]
    sum_ND = torch.where(real_NL1, states_NLD, states_NLD.new_zeros(())).sum(1)
    divisors = {"mean": length_N1, "sum": 1, "root": length_N1.sqrt()}
    return sum_ND / divisors[pooling]
