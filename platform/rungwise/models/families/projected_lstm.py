"""An LSTM with projected output (Sak et al. 2014, "Long Short-Term Memory Based Recurrent Neural
Network Architectures", arXiv:1402.1128) and clipped cell and projection: the layer of ELMo,
TensorFlow's LSTMCell with num_proj, cell_clip and proj_clip.

    [x_t, h_t-1] ──> gates i, f, o, g
    c_t = clip(f · c_t-1 + i · g)           (B, H)      cell
    h_t = clip(W_p (o · tanh c_t))          (B, P)      output, H > P

PyTorch's LSTM projects but does not clip, and a loop under autograd is slow because it computes
weight gradients at each token. Here backward computes them in one product over all tokens, as well
as everything that depends on the forward pass only; its loop holds only the recurrent part.

No gradient flows where a clip was active, as in TensorFlow and `torch.clamp` (nor, unlike there,
where a value was exactly at its bound), nor into the initial state: backpropagation ends at the
beginning of a block (training/state.py).

Shapes: B batch, T sequence, D input, P output, H cell, G = 4·H gates.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rungwise.models.losses.cross_entropy import at_least_float32


class ProjectedLstm(nn.Module):
    """One left-to-right layer; a clip of None disables clipping. Initialised as in TensorFlow:
    weights uniform in ±sqrt(6 / (rows + columns)) (Glorot & Bengio 2010), biases 0, that of the
    forget gate 1."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        cell_size: int,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> None:
        super().__init__()
        D, P, H = input_size, hidden_size, cell_size
        self.hidden_size, self.cell_size = P, H
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        # Order of the gates: input, forget, output, cell.
        self.input_weight = nn.Parameter(torch.empty(4 * H, D))
        self.state_weight = nn.Parameter(torch.empty(4 * H, P))
        self.bias = nn.Parameter(torch.zeros(4 * H))
        self.projection = nn.Parameter(torch.empty(P, H))
        bound = math.sqrt(6 / (D + P + 4 * H))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.state_weight, -bound, bound)
        nn.init.xavier_uniform_(self.projection)
        with torch.no_grad():
            self.bias[H : 2 * H] = 1.0

    def forward(self, x_BTD: Tensor, state_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs (B, T, P) and the state (B, P + H) after the last token: output and
        cell. A state of None stands for zeros."""
        gates_BTG = functional.linear(x_BTD, self.input_weight, self.bias)
        gates_TBG = at_least_float32(gates_BTG).transpose(0, 1)  # (B, T, G) -> (T, B, G)
        if state_BS is None:
            state_BS = gates_TBG.new_zeros(len(x_BTD), self.hidden_size + self.cell_size)
        # In 16 bits rounding errors would accumulate from token to token.
        with torch.autocast(x_BTD.device.type, enabled=False):
            outputs = _Steps.apply(
                gates_TBG,
                state_BS.to(gates_TBG.dtype),
                self.state_weight,
                self.projection,
                self.cell_clip,
                self.projection_clip,
            )
        assert isinstance(outputs, tuple)
        output_TBP, cell_BH = outputs
        return output_TBP.transpose(0, 1), torch.cat((output_TBP[-1], cell_BH), dim=-1)


class _Steps(torch.autograd.Function):
    """Returns outputs (T, B, P) and the last cell (B, H), given the inputs' share of the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        gates_TBG: Tensor,
        state_BS: Tensor,
        state_GP: Tensor,
        projection_PH: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> tuple[Tensor, Tensor]:
        T, B, G = gates_TBG.shape
        P, H = projection_PH.shape
        # Index t holds the state before token t, index T the final state.
        hidden_TBP = gates_TBG.new_empty(T + 1, B, P)
        cell_TBH = gates_TBG.new_empty(T + 1, B, H)
        hidden_TBP[0], cell_TBH[0] = state_BS.split((P, H), dim=1)
        active_TBG = torch.empty((T, B, G), dtype=gates_TBG.dtype, device=gates_TBG.device)
        for t in range(T):
            active_BG = torch.addmm(gates_TBG[t], hidden_TBP[t], state_GP.T, out=active_TBG[t])
            active_BG[:, : 3 * H].sigmoid_()
            active_BG[:, 3 * H :].tanh_()
            into, keep, out, new = active_BG.chunk(4, dim=1)
            cell_BH = torch.mul(keep, cell_TBH[t], out=cell_TBH[t + 1]).addcmul_(into, new)
            if cell_clip is not None:
                cell_BH.clamp_(-cell_clip, cell_clip)
            output_BP = torch.mm(cell_BH.tanh().mul_(out), projection_PH.T, out=hidden_TBP[t + 1])
            if projection_clip is not None:
                output_BP.clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(active_TBG, cell_TBH, hidden_TBP, state_GP, projection_PH)
        ctx.clips = cell_clip, projection_clip
        last_BH = cell_TBH[-1].clone()
        ctx.mark_non_differentiable(last_BH)
        return hidden_TBP[1:].clone(), last_BH

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, output_TBP: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        active_TBG, cell_TBH, hidden_TBP, state_GP, projection_PH = ctx.saved_tensors
        cell_clip, projection_clip = ctx.clips
        into, keep, out, new = active_TBG.chunk(4, dim=2)
        tanh_TBH = cell_TBH[1:].tanh()
        # Derivatives of the memory (o · tanh c) by the cell, and of the cell by the gates.
        to_cell_TBH = out * (1 - tanh_TBH.square())
        to_gates_TBG = torch.cat(
            (
                new * into * (1 - into),
                cell_TBH[:-1] * keep * (1 - keep),
                tanh_TBH * out * (1 - out),  # of the memory, not of the cell
                into * (1 - new.square()),
            ),
            dim=2,
        )
        kept_TBH = None if cell_clip is None else cell_TBH[1:].abs() < cell_clip
        kept_TBP = None if projection_clip is None else hidden_TBP[1:].abs() < projection_clip

        gates_TBG = torch.empty_like(active_TBG)
        projected_TBP = torch.empty_like(hidden_TBP[1:])
        hidden_BP, cell_BH = torch.zeros_like(hidden_TBP[0]), torch.zeros_like(cell_TBH[0])
        for t in reversed(range(len(gates_TBG))):
            projected_BP = torch.add(output_TBP[t], hidden_BP, out=projected_TBP[t])
            if kept_TBP is not None:
                projected_BP.mul_(kept_TBP[t])
            memory_BH = projected_BP @ projection_PH
            cell_BH = torch.addcmul(cell_BH, memory_BH, to_cell_TBH[t])
            if kept_TBH is not None:
                cell_BH.mul_(kept_TBH[t])
            cells_BG = torch.cat((cell_BH, cell_BH, memory_BH, cell_BH), dim=1)
            gates_BG = torch.mul(cells_BG, to_gates_TBG[t], out=gates_TBG[t])
            cell_BH = cell_BH * keep[t]
            hidden_BP = gates_BG @ state_GP
        memory_TBH = out * tanh_TBH
        return (
            gates_TBG,
            None,
            gates_TBG.flatten(0, 1).T @ hidden_TBP[:-1].flatten(0, 1),
            projected_TBP.flatten(0, 1).T @ memory_TBH.flatten(0, 1),
            None,
            None,
        )
