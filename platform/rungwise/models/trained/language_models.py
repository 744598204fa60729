"""Trained modules as language models: next tokens exactly, masked ones by pseudo-likelihood; and
text that a left-to-right model draws, one token after another.

    CausalModel         P(t | tokens before)        [END] text          one pass
    CarryingModel       P(t | all tokens before)    [END] text          one pass, carrying a state
    MaskedModel         P(t | all other tokens)     [CLS] text [SEP]    a pass per masked token
    TwoDirectionModel   P(t | all other tokens)     [END] text          one pass, without masks

MaskedModel is Salazar et al. 2020 (arXiv:1910.14659). It overrates words of several pieces, because
each piece gives away the others; `log_probabilities_in_words` hides the later ones (Kauf & Ivanova
2023, arXiv:2305.10588). END within a text begins another document, as in training.

Shapes: B batch, T sequence, V vocabulary, N tokens or rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rungwise.core.arrays import Floats, Singles
from rungwise.core.errors import DataError, UserError
from rungwise.core.randomness import uniform
from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.models.losses.cross_entropy import at_least_float32
from rungwise.models.trained.capabilities import LanguageModel, NextTokenLogits, Texts
from rungwise.models.transformer.body import boundaries

# Numbers (B, T, K) of each target, from the logits (B, T, V) and the targets (B, T).
Measure = Callable[[Tensor, Tensor], NDArray[np.floating[Any]]]

_MOST_LOGITS = 1 << 22  # held at a time; fits the cache of a CPU
_MOST_TOKENS = 1 << 12  # read at a time by MaskedModel, for the same reason
_TOKEN = 23  # stream of the counter-based generator


@dataclass(frozen=True)
class Window:
    """The tokens [start, stop) of a text, read together and scored from `first` on."""

    text: int
    start: int
    first: int
    stop: int


def windows(
    lengths: Sequence[int], max_length: int | None, overlap: int | None = None
) -> Iterator[Window]:
    """Yield windows that score each token of texts of these lengths once. A window holds at most
    `max_length` tokens and overlaps the previous one by `overlap` (less than `max_length`), by
    default half a window, so that many preceding tokens are read, or all."""
    for text, length in enumerate(lengths):
        size = max_length or max(1, length)
        stride = max(1, size // 2) if overlap is None else size - overlap
        scored = start = 0
        while scored < length:
            stop = min(start + size, length)
            yield Window(text, start, scored, stop)
            scored, start = stop, start + stride


@dataclass(frozen=True)
class TrainedModule:
    """A module on a body, in eval mode."""

    module: Any
    max_length: int | None  # tokens of the longest row, special tokens included

    @property
    def vocab_size(self) -> int:
        return self.module.body.vocab_size

    @torch.no_grad()
    def vectors(self, ids: Sequence[int]) -> Singles:
        ids_N = torch.tensor(list(ids), device=self._device)
        return self.module.body.token_embedding(ids_N).float().cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device


@dataclass(frozen=True)
class _BlockModel(TrainedModule, ABC):
    """A module that predicts every target of packed blocks; `end` opens a document."""

    end: int

    @abstractmethod
    def target_logits(self, batch: CausalBatch[Tensor]) -> Tensor:
        """Return the logits (B, T, V) of the targets; padding is at the end of a row."""

    def log_probabilities(self, texts: Texts) -> list[Floats]:
        def score(logits_BTV: Tensor, targets_BT: Tensor) -> NDArray[np.floating[Any]]:
            return _target_log_probabilities(logits_BTV, targets_BT)[..., None]

        return [rows_N1[:, 0] for rows_N1 in self.measure_targets(texts, score)]

    @torch.no_grad()
    def measure_targets(self, texts: Texts, measure: Measure, numbers: int = 1) -> list[Floats]:
        """Return what `measure` makes of the logits (B, T, V) and the targets (B, T): so many
        numbers for each token of each text, (N, numbers)."""
        scores = [np.zeros((len(text), numbers)) for text in texts]
        streams = [[self.end, *text] for text in texts]
        queue = sorted(
            self._windows([len(text) for text in texts]),
            key=lambda window: window.stop - window.start,
        )
        while queue:
            longest = queue[-1].stop - queue[-1].start
            count = max(1, _MOST_LOGITS // (longest * self.vocab_size))
            group = queue[-count:]
            del queue[-count:]
            pieces = [streams[w.text][w.start : w.stop + 1] for w in group]
            batch = self._batch(pieces).to(self._device)
            rows_BTK = self._measure(batch, measure)
            for window, row_TK in zip(group, rows_BTK, strict=True):
                span = slice(window.first - window.start, window.stop - window.start)
                scores[window.text][window.first : window.stop] = row_TK[span]
        return scores

    def _windows(self, lengths: Sequence[int]) -> Iterator[Window]:
        return windows(lengths, self.max_length)

    def _measure(self, batch: CausalBatch[Tensor], measure: Measure) -> NDArray[np.floating[Any]]:
        return measure(self.target_logits(batch), batch.targets)

    def _batch(self, streams: Texts) -> CausalBatch[Tensor]:
        """Build padded rows: ids are all tokens but the last, targets all but the first."""
        longest = max(len(stream) for stream in streams) - 1
        ids_BT = torch.zeros(len(streams), longest, dtype=torch.int64)
        targets_BT = torch.zeros_like(ids_BT)
        weights_BT = torch.zeros(len(streams), longest)
        for row, stream in enumerate(streams):
            length = len(stream) - 1
            tokens_T = torch.tensor(stream)
            ids_BT[row, :length], targets_BT[row, :length] = tokens_T[:-1], tokens_T[1:]
            weights_BT[row, :length] = 1.0
        return CausalBatch(ids_BT, targets_BT, weights_BT)


@dataclass(frozen=True)
class CausalModel(_BlockModel):
    """A left-to-right module; `module.logits(ids, where)` returns the logits of the
    next tokens (B, T, V). With `reach`, a position reads itself and only that many tokens before
    it, so windows change no numbers and a text may have any length. None: it reads its row."""

    reach: int | None = None

    is_exact: ClassVar[bool] = True

    def _windows(self, lengths: Sequence[int]) -> Iterator[Window]:
        if self.reach is None:
            return super()._windows(lengths)
        most = max(_MOST_LOGITS // self.vocab_size, 2 * self.reach + 1)
        return windows(lengths, most, self.reach)

    def _batch(self, streams: Texts) -> CausalBatch[Tensor]:
        batch = super()._batch(streams)
        if not (batch.ids[:, 1:] == self.end).any():
            return batch
        document_BT, positions_BT = _documents(batch.ids, self.end)
        return replace(batch, document=document_BT, positions=positions_BT)

    def target_logits(self, batch: CausalBatch[Tensor]) -> Tensor:
        return self.module.logits(batch.ids, boundaries(batch))

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        return self.module.logits(ids_BT)


@dataclass(frozen=True)
class CarryingModel(CausalModel):
    """A module with a state; `module.read_block(ids, state)` returns vectors (B, T, D), for
    `module.to_logits(vectors)`, and the next state."""

    def _windows(self, lengths: Sequence[int]) -> Iterator[Window]:
        return windows(lengths, None)

    def _measure(self, batch: CausalBatch[Tensor], measure: Measure) -> NDArray[np.floating[Any]]:
        """Measure each token, given all before it, in parts of few enough logits."""
        most = max(1, _MOST_LOGITS // self.vocab_size)  # tokens
        state, parts = None, []
        for start in range(0, batch.ids.shape[1], most):
            part = slice(start, start + most)
            states_BTD, state = self.module.read_block(batch.ids[:, part], state)
            parts.append(measure(self.module.to_logits(states_BTD), batch.targets[:, part]))
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class TwoDirectionModel(_BlockModel):
    """A module that predicts from both sides; `module.logits(ids, targets, lengths, where)`
    returns the logits of the targets (B, T, V)."""

    is_exact: ClassVar[bool] = False

    def target_logits(self, batch: CausalBatch[Tensor]) -> Tensor:
        lengths_B = (batch.weights > 0).sum(dim=1)
        return self.module.logits(batch.ids, batch.targets, lengths_B, boundaries(batch))

    def blank_logits(
        self, ids_BT: Tensor, segments_BT: Tensor, lengths_B: Tensor, position_B: Tensor
    ) -> Tensor:
        """Return the logits (B, V) of the token at one position of each packed row."""
        predicted = []
        for ids_T, length, position in zip(ids_BT, lengths_B.tolist(), position_B, strict=True):
            ids_1T, targets_1T = ids_T[None, : length - 1], ids_T[None, 1:length]
            weights_1T = torch.ones_like(ids_1T, dtype=torch.float32)
            batch = CausalBatch(ids_1T, targets_1T, weights_1T, *_documents(ids_1T, self.end))
            # A token is the target of the previous position.
            predicted.append(self.target_logits(batch)[:, position - 1])
        return torch.cat(predicted)


@dataclass(frozen=True)
class MaskedModel(TrainedModule):
    """A module that predicts masked tokens; `module.fill(rows).mlm` has their logits (B, M, V)."""

    cls: int
    sep: int
    mask: int

    is_exact: ClassVar[bool] = False

    def blank_logits(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None,
        lengths_B: Tensor | None,
        position_B: Tensor,
    ) -> Tensor:
        """Mask one position of each row and return its logits (B, V)."""
        position_B1 = position_B[:, None]
        masked_BT = ids_BT.scatter(1, position_B1, self.mask)
        rows = MaskedBatch.to_predict(masked_BT, segments_BT, lengths_B, position_B1)
        return self.module.fill(rows).mlm[:, 0]

    def log_probabilities(self, texts: Texts) -> list[Floats]:
        return self._scores(texts, [range(1, len(text) + 1) for text in texts])

    def log_probabilities_in_words(
        self, texts: Texts, word_starts: Sequence[Sequence[bool]]
    ) -> list[Floats]:
        return self._scores(texts, [_word_ends(starts) for starts in word_starts])

    @torch.no_grad()
    def _scores(self, texts: Texts, hidden_until: Sequence[Sequence[int]]) -> list[Floats]:
        """Score each token with itself and the following ones up to `hidden_until` masked."""
        scores = [np.zeros(len(text)) for text in texts]
        inside = None if self.max_length is None else self.max_length - 2  # [CLS] and [SEP]
        rows: dict[int, list[tuple[Window, int]]] = {}  # by length, so no padding is needed
        for window in windows([len(text) for text in texts], inside):
            same_length = rows.setdefault(window.stop - window.start, [])
            same_length += [(window, place) for place in range(window.first, window.stop)]
        for length, same_length in rows.items():
            size = max(1, _MOST_TOKENS // (length + 2))
            for begin in range(0, len(same_length), size):
                group = same_length[begin : begin + size]
                text_BT = [texts[w.text][w.start : w.stop] for w, _ in group]
                ids_BT = torch.tensor([[self.cls, *text, self.sep] for text in text_BT])
                place_B1 = torch.tensor([[place - w.start + 1] for w, place in group])
                until = [[hidden_until[w.text][place] - w.start + 1] for w, place in group]
                place_T = torch.arange(length + 2)
                hidden_BT = (place_T >= place_B1) & (place_T < torch.tensor(until))
                hidden_BT[:, -1] = False  # [SEP], if the word continues past the window
                logits_BV = self.blank_logits(
                    ids_BT.masked_fill(hidden_BT, self.mask).to(self._device),
                    None,
                    None,
                    place_B1[:, 0].to(self._device),
                )
                log_B = _target_log_probabilities(logits_BV, ids_BT.gather(1, place_B1)[:, 0])
                for (window, place), score in zip(group, log_B.tolist(), strict=True):
                    scores[window.text][place] = score
        return scores


def _word_ends(starts: Sequence[bool]) -> list[int]:
    ends, end = [], len(starts)
    for place in reversed(range(len(starts))):
        ends.append(end)
        end = place if starts[place] else end
    return ends[::-1]


def _target_log_probabilities(logits: Tensor, targets: Tensor) -> NDArray[np.floating[Any]]:
    """Return the natural log-probability of each target (...), given logits (..., V)."""
    logits = at_least_float32(logits)
    target_logits = logits.gather(-1, targets.to(logits.device)[..., None])[..., 0]
    return (target_logits - logits.logsumexp(dim=-1)).cpu().numpy()


def _documents(ids_BT: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return `document` and `positions` of a `CausalBatch`; `end` opens each document."""
    opens_BT = (ids_BT == end).long()
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    begin_BT = (opens_BT * place_T).cummax(dim=1).values
    return opens_BT.cumsum(dim=1), place_T - begin_BT


def measure_loss(model: LanguageModel, texts: Texts, text_bytes: int) -> tuple[float, float]:
    """Return nats per token and bits per byte of texts of `text_bytes` bytes in total, given as ids
    with the end symbol if it is predicted. Raises DataError if there is no token or no byte."""
    predicted = sum(len(text) for text in texts)
    if not predicted or text_bytes < 1:
        raise DataError(
            f"expected held-out text to measure a perplexity on, found {predicted} tokens of "
            f"{text_bytes} bytes; raise corpus.held_out_fraction, or add documents"
        )
    nats = -math.fsum(float(row.sum()) for row in model.log_probabilities(texts))
    return nats / predicted, nats / math.log(2) / text_bytes


@dataclass(frozen=True)
class Sampling:
    """The way new tokens are chosen: at most `length` of them; among the `top_k` likeliest (Fan et
    al. 2018, arXiv:1805.04833), 0 for all; with logits divided by `temperature`, where 0 takes the
    likeliest token. The same `seed` gives the same text."""

    length: int = 40
    temperature: float = 0.8
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 2**31:
                raise UserError(f"{name}: expected 0 or more, found {value}")


@torch.no_grad()
def generate(
    model: NextTokenLogits,
    prompts: Sequence[Sequence[int]],
    end: int,
    sampling: Sampling,
    streams: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, the end symbol included. A row that outgrows the window
    is read from its last tokens, anew for every token: rows are short. `streams` are the numbers by
    which rows draw (default: their places)."""
    rows = [list(prompt) for prompt in prompts]
    streams = range(len(rows)) if streams is None else streams
    window = getattr(model, "max_length", None)
    open_rows = [*range(len(rows))] if sampling.length else []
    while open_rows:
        tails = [rows[row] if window is None else rows[row][-window:] for row in open_rows]
        # Padding at the end of a row is invisible to the positions before it.
        longest = max(map(len, tails))
        ids_NT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in tails])
        last_N = torch.tensor([len(ids) - 1 for ids in tails])
        logits_NV = model.next_logits(ids_NT)[torch.arange(len(tails)), last_N].double()
        if sampling.top_k:
            least_N = logits_NV.topk(min(sampling.top_k, logits_NV.shape[1])).values[:, -1:]
            logits_NV = logits_NV.masked_fill(logits_NV < least_N, -torch.inf)
        if sampling.temperature:
            below_NV = torch.softmax(logits_NV / sampling.temperature, dim=-1).cumsum(dim=-1)
            draw_N = uniform(
                sampling.seed,
                _TOKEN,
                np.array([streams[row] for row in open_rows]),
                np.array([len(rows[row]) - 1 for row in open_rows]),
            )
            # Rounding leaves the sum beside 1; scaling by it keeps every draw within range.
            draw_N1 = torch.from_numpy(draw_N)[:, None] * below_NV[:, -1:]
            next_N = torch.searchsorted(below_NV, draw_N1, right=True)[:, 0]
        else:
            next_N = logits_NV.argmax(dim=-1)
        for row, token in zip(open_rows, next_N.tolist(), strict=True):
            rows[row].append(token)
        open_rows = [
            row
            for row in open_rows
            if rows[row][-1] != end and len(rows[row]) < len(prompts[row]) + sampling.length
        ]
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
