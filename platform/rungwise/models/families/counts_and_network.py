"""Counts and a network, mixed: P(t) = g·P_counts(t) + (1 - g)·P_network(t).

Counts know what they have seen, networks what is like it, so that both together predict text better
than the better of them. One weight g is that of the first recurrent language models (Mikolov et al.
2010, "Recurrent neural network based language model"; Jelinek & Mercer 1980 for the weight fitted
on text set aside). A learnt gate has a weight for each context, from how long a context the counts
know, and how sure counts and network are. With the residual (Li et al. 2022, "Residual Learning of
Neural Text Generation with n-gram Language Model") the network's part is softmax(logits +
log P_counts), and it learns what counts lack.

N tokens, F features, H hidden units, O order, V vocabulary, B rows, T positions
"""

import dataclasses
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.core.arrays import Floats
from rungwise.core.errors import BlockError, DataError
from rungwise.core.tokens import SpecialIds
from rungwise.models.families.gpt import GptConfig, LlamaConfig
from rungwise.models.families.ngram import COUNTED, NgramConfig
from rungwise.models.families.nnlm import LogBilinearConfig, NnlmConfig
from rungwise.models.families.recurrent import AwdLstmConfig, LstmConfig, RnnConfig
from rungwise.models.family import Family, Size, StatefulFamily
from rungwise.models.fitting import Weights
from rungwise.models.losses.cross_entropy import at_least_float32
from rungwise.models.losses.objectives import CAUSAL, Objective, Origin
from rungwise.models.ngram_model import NextTokenCounts, NgramLanguageModel, find_ngrams
from rungwise.models.trained.capabilities import Texts
from rungwise.models.trained.language_models import CausalModel
from rungwise.models.transformer.body import NextTokenModel

_HIDDEN, _ITERATIONS = 16, 100  # units of the gate, and steps of L-BFGS that fit it
# Documents that the gate is fitted on at the least, and of how many they are the default share.
_FEWEST_ASIDE, _MOST_ASIDE, _MANY_DOCUMENTS = 8, 0.25, 160
_LEAST = 1e-12  # probability that is left to unseen tokens
_DECAY = 1e-4  # of the gate's weights
_COUNTS, _NETWORK, _GATE = "counts.", "network.", "gate."
_LONGEST = "network_length"  # of a row that the network was trained on; 0: any

Network = Annotated[
    GptConfig
    | LlamaConfig
    | LstmConfig
    | RnnConfig
    | AwdLstmConfig
    | NnlmConfig
    | LogBilinearConfig,
    Field(discriminator="kind"),
]


class CountsAndNetworkConfig(Family):
    """An n-gram model and a network that reads from left to right."""

    year: ClassVar[int] = 2010
    paper: ClassVar[str] = "Mikolov et al."
    idea: ClassVar[str] = "counts words and trains a network, and lets both vote on the next word"
    objectives: ClassVar = (COUNTED,)

    kind: Literal["counts_and_network"] = "counts_and_network"
    counts: NgramConfig = NgramConfig()
    network: Network = GptConfig()
    # one weight of the counts for all text, or one for each context; residual: such a gate, and the
    # network learns what to add to the log-probabilities of the counts
    gate: Literal["constant", "learnt", "residual"] = "learnt"

    @model_validator(mode="after")
    def _adds_in_each_row(self) -> Self:
        if self.residual and isinstance(self.network, StatefulFamily):
            raise BlockError(
                f"gate is residual, and network.kind {self.network.kind} goes on where the row "
                "before has ended, where counts do not; take a network without a state",
                {"gate": "learnt"},
            )
        return self

    @property
    def residual(self) -> bool:
        return self.gate == "residual"

    def describe(self) -> str:
        gate = "one weight" if self.gate == "constant" else "a weight for each context"
        learns = " on the residual of the counts" if self.residual else ""
        return f"{self.counts.describe()}, and {self.network.describe()}{learns}; {gate}"

    def origin(self, objective: Objective) -> Origin:
        """Return that of the idea, or of the network if it is younger."""
        network = self.network.origin(self.network.objective(objective.name))
        papers = f"{self.paper}; {network.paper}"
        return Origin(max(self.year, network.year), papers, self.idea)

    def page_name(self, objective: Objective) -> str:
        network = self.network.page_name(self.network.objective(objective.name))
        return f"{self.counts.order}-gram + {network}"

    def suggest(self, size: Size) -> dict[str, Any]:
        """Set aside more of few documents, so that the gate surely has some."""
        parts = {_COUNTS: self.counts.suggest(size), _NETWORK: self.network.suggest(size)}
        keys = {
            key.replace(".", f".{part}", 1): value
            for part, own in parts.items()
            for key, value in own.items()
        }
        if size.documents and size.documents < _MANY_DOCUMENTS:
            share = min(_MOST_ASIDE, _FEWEST_ASIDE / size.documents)
            keys["pretrain.set_aside"] = round(share, 2)
        return keys

    def mix(
        self, counts: NgramLanguageModel, network: CausalModel, texts: Texts, seed: int
    ) -> "CountsAndNetwork":
        """Return the model of both; see `MixingFamily`. Raises DataError without documents."""
        if not sum(map(len, texts)):
            raise DataError(
                "expected documents that are set aside, found none; raise pretrain.set_aside, or "
                "add documents to the corpus"
            )
        if self.residual:
            network.module.beside = NextTokenCounts(counts)
        model = CountsAndNetwork(counts, network, self._make_gate(counts))
        model.fit_gate(texts, seed)
        return model

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "CountsAndNetwork":
        def select(prefix: str) -> dict[str, NDArray[Any]]:
            names = (name for name in tensors if name.startswith(prefix))
            return {name.removeprefix(prefix): np.array(tensors[name]) for name in names}

        counts = self.counts.from_tensors(select(_COUNTS), special)
        objective = self.network.objective(CAUSAL.name)
        module = self.network.build(counts.vocab_size, objective)
        _load(module, select(_NETWORK))
        if self.residual:
            assert isinstance(module, NextTokenModel)
            module.beside = NextTokenCounts(counts)
        network = self.network.trained(module.eval(), objective, special)
        assert isinstance(network, CausalModel)
        if longest := int(tensors[_LONGEST]):
            network = dataclasses.replace(network, max_length=longest)
        gate = self._make_gate(counts)
        _load(gate, select(_GATE))
        return CountsAndNetwork(counts, network, gate.eval())

    def _make_gate(self, counts: NgramLanguageModel) -> "_Gate":
        return _Gate(self.gate != "constant", counts.order)


def _load(module: nn.Module, arrays: Weights) -> None:
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


class _Gate(nn.Module):
    """The log-odds (N,) of the counts: a constant, or a small network on features (N, F)."""

    mean: Tensor  # (F,) of the features, and their standard deviations
    scale: Tensor

    def __init__(self, learns: bool, order: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(order + 3))
        self.register_buffer("scale", torch.ones(order + 3))
        self.bias = nn.Parameter(torch.zeros(()))
        self.hidden = nn.Linear(order + 3, _HIDDEN) if learns else None
        self.output = nn.Linear(_HIDDEN, 1, bias=False) if learns else None
        self.double()

    def weights(self) -> list[Tensor]:
        return [each for name, each in self.named_parameters() if name != "bias"]

    def forward(self, features_NF: Tensor) -> Tensor:
        if self.hidden is None or self.output is None:
            return self.bias.expand(len(features_NF))
        hidden_NH = self.hidden((features_NF - self.mean) / self.scale).tanh()
        return self.output(hidden_NH)[:, 0] + self.bias


class CountsAndNetwork:
    """An exact language model: the gate depends on the text before a token alone."""

    is_exact: ClassVar[bool] = True

    def __init__(self, counts: NgramLanguageModel, network: CausalModel, gate: _Gate) -> None:
        self.counts, self.network, self.gate = counts, network, gate

    @cached_property
    def _branching(self) -> list[tuple[Floats, Floats]]:
        """Tables by the length of a context, of each context: -Σ p log p over the tokens that the
        counts have seen after it, and the probability that is left to all others."""
        counts, tables = self.counts, []
        for length, keys in enumerate(counts.keys, start=1):
            contexts, many = keys // counts.vocab_size, len(counts.log_backoffs[length - 1])
            probabilities_N = np.exp(counts.ngram_log_probabilities[length])
            seen_N = np.bincount(contexts, scipy.special.entr(probabilities_N), many)
            others_N = 1 - np.bincount(contexts, probabilities_N, many)
            tables.append((seen_N, others_N.clip(_LEAST, 1)))
        return tables

    @property
    def vocab_size(self) -> int:
        return self.counts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.network.max_length

    def log_probabilities(self, texts: Texts) -> list[Floats]:
        if not sum(map(len, texts)):
            return [np.zeros(0) for _ in texts]
        counts_N, network_N, features_NF = self._read_texts(texts)
        with torch.no_grad():
            logs_N = _mix(self.gate(features_NF), counts_N, network_N)
        return np.split(logs_N.numpy(), np.cumsum([len(text) for text in texts])[:-1])

    @torch.no_grad()
    def next_logits(self, ids_BT: Tensor) -> Tensor:
        """Return the log-probabilities (B, T, V) of each next token; a row holds one document,
        opened by the end symbol."""
        network_XV = at_least_float32(self.network.next_logits(ids_BT)).log_softmax(-1).double()
        network_XV = network_XV.flatten(0, 1)
        texts = [[*ids_T[1:], 0] for ids_T in ids_BT.tolist()]
        features_XF = self._make_features(texts, _measure_confidence(network_XV).numpy())
        mixed_XV = _mix(self.gate(features_XF)[:, None], self._next_counts(ids_BT), network_XV)
        return mixed_XV.unflatten(0, ids_BT.shape)

    @cached_property
    def _next_counts(self) -> NextTokenCounts:
        return NextTokenCounts(self.counts)

    def fit_gate(self, texts: Texts, seed: int) -> None:
        """Fit the gate to these documents by its likelihood."""
        counts_N, network_N, features_NF = self._read_texts(texts)
        gate = self.gate
        gate.mean.copy_(features_NF.mean(dim=0))
        gate.scale.copy_(features_NF.std(dim=0).clamp(min=1e-3))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in gate.named_parameters():
                deviation = 0.3 if name == "hidden.weight" else 0.0
                parameter.normal_(0, deviation, generator=generator)
        optimizer = torch.optim.LBFGS(
            gate.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
        )

        def measure() -> Tensor:
            optimizer.zero_grad()
            loss = -_mix(gate(features_NF), counts_N, network_N).mean()
            # A steep gate would turn on the last digits of a probability.
            loss = loss + _DECAY * sum(weight.square().sum() for weight in gate.weights())
            loss.backward()
            return loss

        optimizer.step(measure)
        gate.eval()

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        parts = {
            _COUNTS: self.counts.to_tensors(),
            _NETWORK: {k: v.numpy() for k, v in self.network.module.state_dict().items()},
            _GATE: {k: v.numpy() for k, v in self.gate.state_dict().items()},
        }
        arrays = {
            f"{key}{name}": each for key, part in parts.items() for name, each in part.items()
        }
        return arrays | {_LONGEST: np.array(self.network.max_length or 0)}

    def _read_texts(self, texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-probabilities (N,) by counts and by network, and the features (N, F)."""
        counts_N = np.concatenate(self.counts.log_probabilities(texts))
        network_N3 = np.concatenate(self.network.measure_targets(texts, _read_network, 3))
        features_NF = self._make_features(texts, network_N3[:, 1:])
        return torch.from_numpy(counts_N), torch.from_numpy(network_N3[:, 0]), features_NF

    def _make_features(self, texts: Texts, network_N2: Floats) -> Tensor:
        """Return the features (N, F): the known length one-hot, then how sure both are."""
        counts_N2 = self._measure_counts(texts)
        lengths_NO = np.eye(self.counts.order)[counts_N2[:, 0].astype(np.int64)]
        return torch.from_numpy(np.concatenate([lengths_NO, counts_N2[:, 1:], network_N2], axis=1))

    def _measure_counts(self, texts: Texts) -> NDArray[Any]:
        """Return of each token's context how many tokens of it the counts have seen followed by
        something, and about how unsure they are, in nats, (N, 2): the entropy as if what is left to
        other tokens were shared out as after the shorter context, to seen tokens too."""
        model = self.counts
        unigram_entropy = scipy.special.entr(np.exp(model.ngram_log_probabilities[0])).sum()
        rows = []
        for text in texts:
            tokens = np.array([model.start_id, *text], np.int64)
            lengths_N, entropies_N = np.zeros(len(text)), np.full(len(text), unigram_entropy)
            for length in range(1, min(model.order, len(tokens))):
                contexts = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)
                index, exists = find_ngrams(contexts, model.keys[: length - 1], model.vocab_size)
                seen, others = (table[index] for table in self._branching[length - 1])
                exists &= others < 1
                places, seen, others = (
                    np.flatnonzero(exists) + length - 1,
                    seen[exists],
                    others[exists],
                )
                lengths_N[places] = length
                entropies_N[places] = seen + others * (entropies_N[places] - np.log(others))
            rows.append(np.stack([lengths_N, entropies_N], axis=1))
        return np.concatenate(rows)


def _mix(gate: Tensor, counts: Tensor, network: Tensor) -> Tensor:
    of_counts = nn.functional.logsigmoid(gate) + counts
    return torch.logaddexp(of_counts, nn.functional.logsigmoid(-gate) + network)


def _read_network(logits_BTV: Tensor, targets_BT: Tensor) -> Floats:
    """Return of each target its log-probability, and how sure the network is, (B, T, 3)."""
    log_BTV = at_least_float32(logits_BTV).log_softmax(dim=-1)
    target_BT1 = log_BTV.gather(-1, targets_BT[..., None])
    return torch.cat([target_BT1, _measure_confidence(log_BTV)], dim=-1).double().numpy()


def _measure_confidence(log_probabilities: Tensor) -> Tensor:
    """Return the largest log-probability and the entropy, (..., 2)."""
    entropy = -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(dim=-1)
    return torch.stack([log_probabilities.amax(dim=-1), entropy], dim=-1)
