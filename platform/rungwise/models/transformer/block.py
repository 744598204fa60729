"""The Transformer block that all Transformer families share (Vaswani et al. 2017,
arXiv:1706.03762), its attention with its masks, and what else layers over rows have in common.

    post-norm (the paper):  x = LN(x + attention(x));   x = LN(x + mlp(x))
    pre-norm:               x = x + attention(LN(x));   x = x + mlp(LN(x));   one LN at the end

Pre-norm lets deep stacks train with less warm-up (Xiong et al. 2020, arXiv:2002.04745). GELU
(Hendrycks & Gimpel 2016, arXiv:1606.08415) is exact in BERT, and the tanh approximation in GPT.

                                  on a GPU in 16 bits        elsewhere
    no padding, no boundary       the flash kernel, with its own causal rule
    padded rows, both directions  variable lengths           a mask of the keys (B, 1, 1, T)
    boundaries inside rows        variable lengths           a mask (B, 1, T, T)
    local attention               the kernel's window        a mask, shared by like layers

A dense mask rules out the flash kernel, so it is built only where needed, which the host knows
without reading a tensor: `None` means no mask. Padding is always at the end of a row.

Rotary positions (Su et al. 2021, "RoFormer", arXiv:2104.09864) pair unit i of the first half of a
head with unit i of the second, as in Hugging Face transformers. Gated MLP: Shazeer 2020,
arXiv:2002.05202. RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467. Grouped queries: Ainslie et al.
2023, arXiv:2305.13245. Query and key norms: Henry et al. 2020, arXiv:2010.04245.

Shapes: B batch, T sequence, D hidden, N heads or rows, H head size, S documents of a micro-batch,
M chosen positions, L tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from rungwise.models.device import is_gpu
from rungwise.models.losses.cross_entropy import at_least_float32

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
Rotation = tuple[Tensor, Tensor]  # cosines and sines (T, H)
_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8  # limits of the flash kernel
# root: the sum over the square root of the length (Cer et al. 2018, arXiv:1803.11175)
Pooling = Literal["last", "mean", "max", "sum", "root"]


@dataclass(frozen=True)
class Layer:
    """The options of one block; the defaults are those of BERT and GPT. Each of the
    `num_key_value_heads` serves an equal number of query heads. `window` is the largest distance to
    a key on either side, None for no limit. `first_norm` False drops the attention norm of a
    pre-norm block whose input is already normalised."""

    hidden_size: int
    num_heads: int
    intermediate_size: int
    norm: Norm
    activation: Activation
    epsilon: float
    dropout: float
    num_key_value_heads: int
    head_size: int
    biases: bool = True
    gated: bool = False
    rms: bool = False
    query_key_norm: bool = False
    rotary_base: float | None = None
    window: int | None = None
    first_norm: bool = True

    def new_norm(self, size: int | None = None) -> nn.Module:
        """Create a norm over `size` units, by default the hidden size."""
        size = size or self.hidden_size
        if self.rms:
            return nn.RMSNorm(size, eps=self.epsilon)
        return nn.LayerNorm(size, eps=self.epsilon, bias=self.biases)

    @property
    def attention_sizes(self) -> tuple[int, int, int]:
        """Units of a token's queries, keys and values."""
        shared = self.num_key_value_heads * self.head_size
        return self.num_heads * self.head_size, shared, shared

    def flops(self, T: int, causal: bool) -> int:
        """Return its share of `flops_per_token` (family.py): 6 per weight of a matrix, and the two
        attention products with the keys in the window, at most T."""
        D, queries = self.hidden_size, self.attention_sizes[0]
        matrices = D * (sum(self.attention_sizes) + queries)
        matrices += (3 if self.gated else 2) * D * self.intermediate_size
        keys = T if self.window is None else min(T, 2 * self.window + 1)
        return 6 * matrices + (6 if causal else 12) * queries * keys


class StackedLinear(nn.Linear):
    """Several matrices with one input as one product. Muon treats each separately."""

    def __init__(self, in_features: int, sizes: tuple[int, ...], bias: bool) -> None:
        super().__init__(in_features, sum(sizes), bias=bias)
        self.sizes = sizes


class Documents(NamedTuple):
    """The documents of a micro-batch read as one sequence of B·T tokens."""

    starts: Tensor  # (S + 1,) int32, start offsets, then B·T
    longest: int  # upper bound on the length of a document


class Boundaries(NamedTuple):
    """Where documents lie in packed rows; None if no row holds a boundary. For a body that reads
    both ways, padding is a document. `causal`: how rows are read; None: as the stack was built."""

    document: Tensor | None = None  # (B, T) tokens of one document share a number in their row
    positions: Tensor | None = None  # (B, T) from the beginning of the document
    starts: Tensor | None = None  # (S + 1,) the `starts` of `Documents`
    causal: bool | None = None


WHOLE = Boundaries()  # a row is one document


def real_places(length: int, lengths_N: Tensor) -> Tensor:
    """Mark the places (N, length) before each row's padding."""
    return torch.arange(length, device=lengths_N.device) < lengths_N[:, None]


# A mask (True: the key is visible), documents, or None if `causal` alone decides.
Visible = Tensor | Documents | None


def visible_keys(
    sequence_length: int, lengths_B: Tensor | None, where: Boundaries, *, causal: bool, varlen: bool
) -> Visible:
    """Return which keys each query sees, for all layers; None if the kernel's own rule is enough.
    `lengths_B` counts the real tokens of each row; with boundaries and without `causal` it must be
    None. Tokens see only their own document. `varlen` (see `has_varlen`) needs `where.starts`."""
    T, document_BT = sequence_length, where.document
    if document_BT is not None:
        assert causal or lengths_B is None, "padding is a document of its own"
        if varlen and where.starts is not None:
            return Documents(where.starts, T)
        same_B1TT = document_BT[:, None, :, None] == document_BT[:, None, None, :]
        return same_B1TT.tril() if causal else same_B1TT
    if lengths_B is None or causal:
        return None
    if varlen:
        # Two documents per row: its tokens, and its padding, which may be empty.
        begin_B = torch.arange(len(lengths_B), device=lengths_B.device) * T
        both_B2 = torch.stack((begin_B, begin_B + lengths_B), dim=1)
        end_1 = both_B2.new_full((1,), len(lengths_B) * T)
        return Documents(torch.cat((both_B2.flatten(), end_1)).int(), T)
    return real_places(T, lengths_B)[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def keys_to_write(segments_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Return the mask (B, 1, T, T) of a prefix language model (UniLM, Dong et al. 2019,
    arXiv:1905.03197): all see the first segment, and attention in the second is causal."""
    place_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    first_BT = segments_BT == 0
    if lengths_B is not None:
        first_BT = first_BT & real_places(segments_BT.shape[1], lengths_B)
    return first_BT[:, None, None] | (place_T <= place_T[:, None])


def has_varlen(x: Tensor, head_size: int, dropout: float) -> bool:
    """Whether the variable-length kernel supports a layer's input `x` in this pass."""
    if dropout > 0 or head_size > _LARGEST_HEAD or head_size % _HEAD_MULTIPLE or not is_gpu(x):
        return False
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return dtype in (torch.bfloat16, torch.float16)


def near_keys(visible: Visible, window: int | None, x_BTD: Tensor, causal: bool) -> Visible:
    """Hide the keys more than `window` places away in `visible`, but of `Documents`, where the
    kernel does. Every query sees itself, so that no row of the mask is empty at padding."""
    T = x_BTD.shape[1]
    if window is None or isinstance(visible, Documents):
        return visible
    if not torch.compiler.is_exporting() and window + 1 >= T:  # an exported graph serves any T
        return visible
    place_T = torch.arange(T, device=x_BTD.device)
    away_TT = place_T[:, None] - place_T
    near_TT = away_TT.abs() <= window
    if visible is None:
        return near_TT & (away_TT >= 0) if causal else near_TT
    return visible & near_TT | (away_TT == 0)


def rotation(T: int, head_size: int, base: float, device: torch.device) -> Rotation:
    """Return the cosines and sines of the angles position · base^(-2i / H), in float32. Angles are
    computed in float64: in float32 one at position 8,192 is off by 0.0005."""
    place_T1 = torch.arange(T, device=device, dtype=torch.float64)[:, None]
    even_I = torch.arange(0, head_size, 2, device=device, dtype=torch.float64)
    angle_TI = place_T1 * base ** (-even_I / head_size)
    angle_TH = torch.cat((angle_TI, angle_TI), dim=-1)  # (T, H/2) -> (T, H)
    return angle_TH.cos().float(), angle_TH.sin().float()


def rotate(x_BNTH: Tensor, by: Rotation) -> Tensor:
    """Rotate each position of `x_BNTH` by its angle; the type stays."""
    cos_TH, sin_TH = by
    first, second = x_BNTH.chunk(2, dim=-1)
    turned_BNTH = torch.cat((-second, first), dim=-1)
    return (x_BNTH * cos_TH + turned_BNTH * sin_TH).to(x_BNTH.dtype)


class Attention(nn.Module):
    """Multi-head self-attention with one matrix product for queries, keys and values. Dropout here
    applies to the attention weights; the block applies it to the output."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        D, H, sizes = layer.hidden_size, layer.head_size, layer.attention_sizes
        self.head_size = H
        self.dropout = layer.dropout
        self.shares_keys = layer.num_key_value_heads < layer.num_heads
        self.query_key_value = StackedLinear(D, sizes, layer.biases)
        self.query_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.key_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.output = nn.Linear(sizes[0], D, bias=layer.biases)
        self.far = -1 if layer.window is None else layer.window  # places on either side of a query

    def forward(
        self, x_BTD: Tensor, visible: Visible, turn: Rotation | None = None, causal: bool = False
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BNTH, k_BNTH, v_BNTH = (
            part.view(B, T, -1, self.head_size).transpose(1, 2)  # (B, T, N·H) -> (B, N, T, H)
            for part in self.query_key_value(x_BTD).split(self.query_key_value.sizes, dim=-1)
        )
        if self.query_norm is not None and self.key_norm is not None:
            q_BNTH = self.query_norm(at_least_float32(q_BNTH)).to(v_BNTH.dtype)
            k_BNTH = self.key_norm(at_least_float32(k_BNTH)).to(v_BNTH.dtype)
        if turn is not None:
            q_BNTH, k_BNTH = rotate(q_BNTH, turn), rotate(k_BNTH, turn)
        if isinstance(visible, Documents):
            # Takes a second to import because it pulls in the compiler; only GPUs need it.
            from torch.nn.attention import varlen

            q_XNH, k_XNH, v_XNH = (  # (B, N, T, H) -> (B·T, N, H)
                part.transpose(1, 2).flatten(0, 1) for part in (q_BNTH, k_BNTH, v_BNTH)
            )
            window = (self.far, 0 if causal else self.far)
            starts, longest = visible
            mixed_XNH: Any = varlen.varlen_attn(
                *(q_XNH, k_XNH, v_XNH, starts, starts, longest, longest),
                window_size=window,
                enable_gqa=self.shares_keys,
            )
            return self.output(mixed_XNH.view(B, T, -1))
        kind = x_BTD.device.type
        # On a CPU with short rows the kernel is twice as slow in bfloat16 as in float32.
        in_float32 = kind == "cpu" and v_BNTH.dtype == torch.bfloat16
        if in_float32:
            q_BNTH, k_BNTH, v_BNTH = q_BNTH.float(), k_BNTH.float(), v_BNTH.float()
        with torch.autocast(kind, enabled=False) if in_float32 else nullcontext():
            mixed_BNTH = functional.scaled_dot_product_attention(
                q_BNTH,
                k_BNTH,
                v_BNTH,
                attn_mask=visible,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=causal and visible is None,
                enable_gqa=self.shares_keys,
            )
        return self.output(mixed_BNTH.transpose(1, 2).flatten(2))  # (B, N, T, H) -> (B, T, N·H)


BlockInputs = tuple[Visible, Rotation | None, bool]  # of a block, beside the states


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
    ) -> list[BlockInputs]:
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
