"""The model of a task: encoder, top and head as configured, and its description as plain data.

    ids ──> encoder ──> states (R, T, E) ──> top ──> head ──> logits

Sources: the BiLSTM is that of Devlin et al. 2019 (arXiv:1810.04805, section 5.3), the tagger that
of Peters et al. 2017 (arXiv:1705.00108), the mix that of Peters et al. 2018 (arXiv:1802.05365,
equation 1): gamma · sum over l of softmax(s)_l · layer_l. It starts as the plain mean, to which
weight decay pulls it back, as their L2 term does.

Shapes: B batch, T sequence, E width of a state, H hidden size of one direction, K layers."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError
from rungwise.finetune.config import BilstmTop, FeaturesAdaptation, FinetuneConfig
from rungwise.models.config import model_config
from rungwise.models.family import Family, LayeredFamily
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.encoders import LayeredEncoder, count_marks
from rungwise.models.transformer.block import run_cells
from rungwise.models.transformer.body import Body
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.tasks.kinds.heads import Rows, SequenceHead, TaskHead
from rungwise.tasks.kinds.kind import Stand


class BiLstm(nn.Module):
    """A BiLSTM. `dropout` applies between layers only: the head drops out its inputs itself."""

    def __init__(self, width: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(
            width, hidden_size, num_layers, batch_first=True, bidirectional=True, dropout=between
        )

    def forward(
        self, states_BTE: Tensor, lengths_B: Tensor | None, ids_BT: Tensor | None = None
    ) -> Tensor:
        """Return (B, T, 2H), zeros at padding. `lengths_B` is None if no row is padded; the ids are
        not read."""
        return run_cells(self.lstm, states_BTE, lengths_B)[0]


class Tagger(nn.Module):
    """Token vectors and a BiLSTM; the states (B, T, `width`) of an encoder join the output of layer
    `states_after`, 0 the vectors, or none. `out` is the width of what it returns."""

    def __init__(self, width: int, vocab_size: int, top: BilstmTop, dropout: float) -> None:
        super().__init__()
        after, size = top.states_after, top.embedding_size
        assert size is not None, "a tagger has vectors of its own"
        extra, below = (0, top.num_layers) if after is None else (width, after)
        self.embedding = nn.Embedding(vocab_size, size)
        self.dropout = nn.Dropout(dropout)
        self.below = BiLstm(size, top.hidden_size, below, dropout) if below else None
        self.out = (2 * top.hidden_size if below else size) + extra
        self.joins = after is not None
        self.above = None
        if below < top.num_layers:
            self.above = BiLstm(self.out, top.hidden_size, top.num_layers - below, dropout)
            self.out = 2 * top.hidden_size

    def forward(self, states_BTE: Tensor, lengths_B: Tensor | None, ids_BT: Tensor) -> Tensor:
        """Return (B, T, `out`)."""
        x_BTD = self.dropout(self.embedding(ids_BT))
        if self.below is not None:
            x_BTD = self.below(x_BTD, lengths_B)
        if self.joins:
            x_BTD = torch.cat((x_BTD, self.dropout(states_BTE)), dim=-1)
        return x_BTD if self.above is None else self.above(x_BTD, lengths_B)


class ScalarMix(nn.Module):
    """The mix of `num_layers` tensors of one shape; the embeddings count as a layer."""

    def __init__(self, num_layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return (B, T, E) from K tensors (B, T, E)."""
        shares_K = self.scores.softmax(dim=0)
        mixed = torch.zeros_like(layers[0])
        for share, layer in zip(shares_K, layers, strict=True):
            if self.layer_norm:
                layer = functional.layer_norm(layer, layer.shape[-1:])
            mixed = mixed + share * layer
        return self.gamma * mixed

    def shares(self) -> tuple[float, ...]:
        """Return the current weights of the layers; they sum to 1."""
        return tuple(self.scores.softmax(dim=0).tolist())


DESCRIPTION = "model.json"  # file name of `describe`, beside the weights


@dataclass(frozen=True)
class PretrainedBody:
    """Family, objective and vocabulary of a pretrained model; its weights are apart."""

    family: Family
    objective: Objective
    vocab_size: int


class HeadedEncoder(nn.Module):
    """An encoder, optionally a mix of its layers and a BiLSTM on top, and a head. With `fixed` the
    encoder gets no gradient and never uses dropout. `mixed` are the layers that are read, 0 the
    embeddings: weighed by `mix`, or else side by side. By default it is the last."""

    def __init__(
        self,
        encoder: LayeredEncoder,
        head: TaskHead,
        *,
        top: BiLstm | Tagger | None = None,
        mix: ScalarMix | None = None,
        mixed: Sequence[int] = (),
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.mix = mix
        self.mixed = tuple(mixed)
        self.top = top
        self.head = head
        self.fixed = fixed
        encoder.requires_grad_(not fixed)

    def forward(self, ids_RT: Tensor, segments_RT: Tensor | None, rows: Rows) -> Tensor:
        return self.read(ids_RT, self.states(ids_RT, segments_RT, rows.lengths), rows)

    def read(self, ids_RT: Tensor, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return the logits of the head from the ids and the states of the encoder."""
        if self.top is not None:
            states_RTE = self.top(states_RTE, rows.lengths, ids_RT)
        return self.head(states_RTE, rows)

    def states(
        self, ids_RT: Tensor, segments_RT: Tensor | None, lengths_R: Tensor | None
    ) -> Tensor:
        """Return the states (R, T, E) of the encoder, from its last layer or those to read."""
        with torch.no_grad() if self.fixed else contextlib.nullcontext():
            layers = self.encoder.layers(ids_RT, segments_RT, lengths_R)
        if not self.mixed:
            return layers[-1]
        mixed = [layers[index] for index in self.mixed]
        return torch.cat(mixed, dim=-1) if self.mix is None else self.mix(mixed)

    @property
    def body(self) -> Body:
        return self.encoder.body

    @property
    def purpose(self) -> str | None:
        """The purpose of its head."""
        return self.head.purpose

    @property
    def labels_add(self) -> bool:
        """Whether a text may have several labels."""
        return False

    @property
    def unusual_parts(self) -> str:
        """The parts that no class of transformers for tasks has, and what is expected; or empty."""
        if self.encoder.causal:
            return (
                "reads from left to right, with marks of its own, which no tokenizer knows; "
                "expected an encoder that sees both sides"
            )
        if self.top is not None or self.mixed or self.head.purpose is None:
            return (
                "has a BiLSTM or a mix of layers below its head, or a conditional random field; "
                "expected finetune.top.kind linear, finetune.adaptation.kind other than features, "
                "and no finetune.crf"
            )
        return ""

    def train(self, mode: bool = True) -> Self:
        """Set the mode as in PyTorch, but keep a fixed encoder in evaluation mode."""
        super().train(mode)
        if self.fixed:
            self.encoder.eval()
        return self


class TaskModel(HeadedEncoder):
    """A model for one task, with everything its predictions depend on. `calibration` is fitted on
    the validation split, such as the threshold of no answer."""

    def __init__(self, config: FinetuneConfig, info: TaskInfo, pretrained: PretrainedBody) -> None:
        family, objective = pretrained.family, pretrained.objective
        new_tokens = count_marks(objective)
        encoder = family.encoder(objective, pretrained.vocab_size, config.dropout, new_tokens)
        kind = task_kind(info, config.reading)
        if kind.writes:
            encoder.write()
        if config.word_dropout:
            encoder.drop_words(config.word_dropout)
        if config.gradient_length is not None:
            encoder.truncate(config.gradient_length)
        mixed: list[int] = []
        mix, width = None, encoder.width
        if isinstance(config.adaptation, FeaturesAdaptation):
            layers = config.adaptation.layers
            mixed = list(range(encoder.num_layers + 1)) if layers == "all" else layers
            widths = [encoder.widths[layer] for layer in mixed]
            width = sum(widths)
            if config.adaptation.combine == "mix":
                mix, width = ScalarMix(len(mixed), config.adaptation.layer_norm), widths[0]
        top, num_tokens = None, pretrained.vocab_size + new_tokens
        if isinstance(config.top, BilstmTop):
            own = config.top
            if own.embedding_size is None:
                top = BiLstm(width, own.hidden_size, own.num_layers, config.dropout)
                width = 2 * own.hidden_size
            else:
                top = Tagger(width, num_tokens, own, config.dropout)
                width = top.out
        # A pooler reads the last layer's state of the first token and nothing else.
        pooler = bool(encoder.pooler) and config.pooling == "cls" and top is None and not mixed
        stand = Stand(width, num_tokens, config.pooling, pooler, config.dropout, config.crf)
        head, fixed = kind.build_head(stand), config.fixes_encoder
        super().__init__(encoder, head, top=top, mix=mix, mixed=mixed, fixed=fixed)
        self.config = config
        self.info = info
        self.kind = kind
        self.pretrained = pretrained
        self.calibration: dict[str, float] = {}

    @property
    def labels_add(self) -> bool:
        return self.kind.labelled and not self.kind.one_label

    @property
    def unusual_parts(self) -> str:
        if self.kind.writes:
            return (
                "reads one text both ways and writes another with the same layers; expected a task "
                "of another kind, or the model before fine-tuning"
            )
        if not (problem := super().unusual_parts) and self.config.pairs != "joined":
            return (
                f"reads a pair in two rows (finetune.pairs is {self.config.pairs}); expected "
                "joined, or --format onnx"
            )
        return problem

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `project` returns."""
        return self.head.outputs

    @property
    def max_length(self) -> int:
        return self.config.sequence_length

    @property
    def rows_per_item(self) -> int:
        return 1 if self.config.pairs == "joined" else 2

    @property
    def stepwise_part(self) -> str:
        """The part besides the body that reads or writes step by step; empty if none does."""
        if self.top is not None:
            return "finetune.top is a bilstm"
        if self.config.crf:
            return "finetune.crf is true"
        return "the task writes a text token by token" if self.kind.writes else ""

    def project(
        self, ids_RT: Tensor, segments_RT: Tensor, lengths_R: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the logits of each token, or of what is read of a row, by output."""
        states_RTE = self.states(ids_RT, segments_RT, lengths_R)
        logits = self.head.project(states_RTE, lengths_R)
        return logits.unbind(dim=-1) if len(self.outputs) > 1 else logits

    @property
    def device(self) -> torch.device:
        return self.head.linear.weight.device

    @torch.no_grad()
    def load_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load pretrained weights, or only as many layers as the config says. The head also starts
        from what pretraining put on the states, if all layers are loaded and shapes fit: a pooler,
        and in generation the output layer. What pretraining did not train stays random. Raises
        DataError for weights that do not fit the encoder."""
        self.encoder.load(weights, self.config.loaded_layers)
        whole = self.config.loaded_layers in (None, self.encoder.num_layers)
        if isinstance(self.head, SequenceHead) and self.head.pool.dense and whole:
            for name, parameter in self.head.pool.dense.named_parameters():
                if (trained := weights.get(f"{self.encoder.pooler}{name}")) is not None:
                    parameter.copy_(trained)
        if self.kind.writes and whole:
            family, vocab_size = self.pretrained.family, self.pretrained.vocab_size
            assert isinstance(family, LayeredFamily)
            table_VD, bias_V = family.output_weights(self.pretrained.objective, vocab_size, weights)
            linear, words = self.head.linear, slice(vocab_size)
            if table_VD.shape[1] == linear.in_features:
                linear.weight[words] = table_VD
                linear.bias[words] = 0.0 if bias_V is None else bias_V


def describe(model: TaskModel) -> dict[str, Any]:
    """Return the model without its tensors as JSON data; `restore` reads it."""
    return {
        "model": model.pretrained.family.model_dump(mode="json"),
        "objective": model.pretrained.objective.name,
        "vocab_size": model.pretrained.vocab_size,
        "task": asdict(model.info),
        "finetune": model.config.model_dump(mode="json"),
        "calibration": model.calibration,
    }


def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TaskModel:
    """Build the described model, in evaluation mode. Raises DataError for tensors of another."""
    family = model_config(description["model"])
    objective, vocab_size = family.objective(description["objective"]), description["vocab_size"]
    config = validate(FinetuneConfig, description["finetune"], source="finetune")
    pretrained = PretrainedBody(family, objective, vocab_size)
    task = description["task"]
    info = TaskInfo(**{**task, "labels": tuple(task["labels"])})
    model = TaskModel(config, info, pretrained)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise DataError(
            f"the weights of the model: {problem:.300}; give its own description and weights"
        ) from error
    model.calibration = dict(description["calibration"])
    return model.eval()
