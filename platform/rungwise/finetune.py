"""Fine-tuning one encoder on one task with one seed: a plain function, no Ray and no MLflow.

Devlin et al. 2019, section 4.1: the encoder with a linear layer on top, all weights trained, AdamW
with linear warm-up and decay. The sweep and the evaluation call the same function.

B batch, T sequence
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.instances.randomness import bits
from rungwise.models.bert import Bert, BertConfig
from rungwise.models.heads import Pooling, SequenceClassifier, load_encoder
from rungwise.tasks.paragraphs import SPLITS, Example, read
from rungwise.tokenizer import load as load_tokenizer
from rungwise.tokenizer import special_ids
from rungwise.training.checkpoint import MODEL, load_tensors
from rungwise.training.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    clip_gradients,
    learning_rate_at,
    set_learning_rate,
)

Initialisation = Literal["pretrained", "random"]
_EVALUATION_BATCH = 64


class FinetuneConfig(Config):
    """The paper's recipe; its grid: learning rate 5e-5, 3e-5, 2e-5; batch 16, 32; epochs 2 to 4."""

    learning_rate: float = Field(default=5e-5, gt=0)
    batch_size: int = Field(default=32, ge=1)
    epochs: int = Field(default=3, ge=1)
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    pooling: Pooling = "cls"
    sequence_length: int = Field(default=128, ge=3)  # [CLS] and [SEP] included


@dataclass(frozen=True)
class Encoded:
    """A split as ids: rows of different lengths, with [CLS] and [SEP]."""

    ids: list[list[int]]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class TaskData:
    """All that fine-tuning reads, loaded once."""

    splits: dict[str, Encoded]
    num_labels: int
    vocab_size: int
    model: BertConfig
    encoder: dict[str, Tensor]  # pretrained weights


@dataclass(frozen=True)
class Scores:
    """Of one split. `predictions` are label indices in the order of the examples."""

    loss: float
    accuracy: float
    macro_f1: float
    predictions: NDArray[np.int64]

    def metrics(self) -> dict[str, float]:
        return {"loss": self.loss, "accuracy": self.accuracy, "macro_f1": self.macro_f1}


def load_data(
    task: Artifact, tokenizer: Artifact, pretrained: Artifact, sequence_length: int
) -> TaskData:
    """Examples as ids, and the encoder's weights."""
    splitter = load_tokenizer(tokenizer.folder)
    return TaskData(
        splits={split: encode(splitter, read(task, split), sequence_length) for split in SPLITS},
        num_labels=len(task.summary["labels"]),
        vocab_size=pretrained.summary["vocab_size"],
        model=BertConfig.model_validate(pretrained.summary["model"]),
        encoder=load_tensors(pretrained.folder, MODEL),
    )


def encode(tokenizer: Tokenizer, examples: list[Example], sequence_length: int) -> Encoded:
    """[CLS] text [SEP], cut to `sequence_length`."""
    texts = [example.text for example in examples]
    rows = encode_texts(tokenizer, texts, sequence_length)
    return Encoded(rows, np.array([example.label for example in examples], dtype=np.int64))


def encode_texts(tokenizer: Tokenizer, texts: list[str], sequence_length: int) -> list[list[int]]:
    """[CLS] text [SEP] as ids, cut to `sequence_length`."""
    cls_id, sep_id = special_ids(tokenizer).require("cls", "sep")
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [[cls_id, *encoding.ids[: sequence_length - 2], sep_id] for encoding in encodings]


def finetune(
    config: FinetuneConfig,
    data: TaskData,
    initialisation: Initialisation,
    seed: int,
    on_epoch: Callable[[int, dict[str, float]], None],
) -> SequenceClassifier:
    """Train a classifier; `on_epoch(epoch, validation metrics)` is called after each epoch."""
    torch.manual_seed(seed)
    model = build(config, data, initialisation)
    train = data.splits["train"]
    steps_per_epoch = -(-len(train.ids) // config.batch_size)
    total_steps = steps_per_epoch * config.epochs
    optimizer_config = OptimizerConfig(
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        schedule=ScheduleConfig(warmup_fraction=config.warmup_fraction),
    )
    optimizer = build_optimizer(model, optimizer_config)
    step = 0
    for epoch in range(config.epochs):
        model.train()
        order = np.argsort(bits(seed, epoch, np.arange(len(train.ids))))
        for begin in range(0, len(order), config.batch_size):
            rows = order[begin : begin + config.batch_size]
            ids, lengths = pad([train.ids[row] for row in rows])
            set_learning_rate(optimizer, learning_rate_at(step, total_steps, optimizer_config))
            logits = model(ids, None, lengths)
            functional.cross_entropy(logits, torch.from_numpy(train.labels[rows])).backward()
            clip_gradients(model, optimizer_config)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
        on_epoch(epoch + 1, evaluate(model, data.splits["validation"]).metrics())
    return model


def build(
    config: FinetuneConfig, data: TaskData, initialisation: Initialisation
) -> SequenceClassifier:
    """The classifier before training, with the pretrained encoder or a random one."""
    # Fine-tuning sees few examples many times: the paper's dropout, whatever pretraining had.
    shape = data.model.model_copy(update={"dropout": config.dropout})
    encoder = Bert(shape, data.vocab_size, pooler=config.pooling == "cls")
    if initialisation == "pretrained":
        # Pretraining without next-sentence prediction trains no pooler.
        trained_pooler = any(name.startswith("bert.pooler.") for name in data.encoder)
        load_encoder(encoder, data.encoder, fresh=() if trained_pooler else ("pooler",))
    return SequenceClassifier(encoder, data.num_labels, config.pooling, config.dropout)


@torch.no_grad()
def evaluate(model: SequenceClassifier, split: Encoded) -> Scores:
    """Loss, accuracy and macro-averaged F1 on a split."""
    from sklearn.metrics import f1_score

    logits = predict_logits(model, split.ids)
    labels = torch.from_numpy(split.labels)
    predictions = logits.argmax(dim=-1).numpy()
    return Scores(
        loss=float(functional.cross_entropy(logits, labels)),
        accuracy=float((predictions == split.labels).mean()),
        macro_f1=float(f1_score(split.labels, predictions, average="macro")),
        predictions=predictions,
    )


@torch.no_grad()
def predict_logits(model: SequenceClassifier, rows: list[list[int]]) -> Tensor:
    """Logits (rows, labels), in the order of the rows; neighbours in length share a batch."""
    model.eval()
    by_length = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    logits = torch.empty(len(rows), model.classifier.out_features)
    for begin in range(0, len(rows), _EVALUATION_BATCH):
        here = by_length[begin : begin + _EVALUATION_BATCH]
        ids, lengths = pad([rows[row] for row in here])
        logits[here] = model(ids, None, lengths)
    return logits


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor | None]:
    """(B, T) ids padded to the longest row, and the lengths (B,), None if all are equal."""
    lengths = [len(row) for row in rows]
    ids = torch.zeros((len(rows), max(lengths)), dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids, None if min(lengths) == max(lengths) else torch.tensor(lengths)
