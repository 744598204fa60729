"""Fine-tuning one model on one task with one seed (Devlin et al. 2019, arXiv:1810.04805, section
4.1): AdamW, linear warm-up and decay, one process. The same seed gives the same bits.

    item                  loss
    classification        cross entropy of the label
    regression            squared error
    tagging               cross entropy of the tag, the mean over the words of a batch
    span                  cross entropy of start and of end, their mean
    choice                cross entropy of the option
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from rungwise.errors import UserError
from rungwise.finetune.batches import collate
from rungwise.finetune.config import FinetuneConfig
from rungwise.finetune.data import TaskData, check
from rungwise.finetune.learning import (
    effective,
    learning_rate_shares,
    put_state,
    take_state,
    thaw,
)
from rungwise.finetune.model import TaskModel
from rungwise.finetune.scoring import calibrate_and_score, loss_sums
from rungwise.instances.randomness import bits
from rungwise.training.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    clip_gradients,
    learning_rate_at,
    set_learning_rate,
)

_DROPOUT = 0xD209  # what keeps these numbers apart from those of the order


class OnEpoch(Protocol):
    """Called after each epoch, counted from 1, with what `finetune` says; `state()` makes the bytes
    from which to go on, and costs nothing if it is not called."""

    def __call__(
        self, epoch: int, metrics: dict[str, float], state: Callable[[], bytes], /
    ) -> None: ...


def finetune(
    config: FinetuneConfig,
    data: TaskData,
    seed: int,
    on_epoch: OnEpoch,
    start: bytes | None = None,
) -> TaskModel:
    """The model trained on the training split, calibrated on the validation split.

    After each epoch `on_epoch` gets `loss` and the metrics of the validation split, and under
    `effective/KEY` settings as they were found in force: the learning rates at the end of the
    warm-up, and the items of the first batch. `start` is a state to go on from, with the same
    result as without the break. Raises ConfigError for what cannot be asked, UserError for a loss
    that is not finite.
    """
    check(config, data.info, data.model, data.objective)
    torch.manual_seed(seed)
    model = build(config, data)
    optimizer_config = OptimizerConfig(
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        schedule=ScheduleConfig(warmup_fraction=config.warmup_fraction),
    )
    optimizer = build_optimizer(model, optimizer_config, learning_rate_shares(model, config))
    items = data.splits["train"].items
    steps_per_epoch = -(-len(items) // config.batch_size)
    total_steps = steps_per_epoch * config.epochs
    done = 0 if start is None else put_state(model, optimizer, start)
    measured: dict[str, float] = {}
    for epoch in range(done, config.epochs):
        model.train()
        thaw(model, config, epoch)
        order = np.argsort(bits(seed, epoch, np.arange(len(items))))
        for number in range(steps_per_epoch):
            step = epoch * steps_per_epoch + number
            chosen = order[number * config.batch_size : (number + 1) * config.batch_size]
            batch = collate([items[index] for index in chosen], data.info.kind)
            # Dropout depends on the step and not on what was drawn before.
            torch.manual_seed(int(bits(seed, step, _DROPOUT)) >> 1)
            rate = learning_rate_at(step, total_steps, optimizer_config)
            set_learning_rate(optimizer, rate)
            if rate == config.learning_rate:
                measured |= effective(model, optimizer)
            measured.setdefault("batch_size", batch.rows.count)
            assert batch.targets is not None, "a training split has targets"
            logits = model(batch.ids, batch.segments, batch.rows)
            total, count = loss_sums(data.info.kind, logits, batch.targets)
            loss = total / count
            if not math.isfinite(loss.item()):
                raise UserError(
                    f"the loss of step {step + 1} of {total_steps} is {loss.item()}; lower "
                    f"finetune.learning_rate, now {config.learning_rate:g}"
                )
            loss.backward()
            clip_gradients(model, optimizer_config)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        scores = calibrate_and_score(model, data)
        metrics = {"loss": scores.loss, **scores.metrics}
        metrics |= {f"effective/{key}": value for key, value in measured.items()}
        on_epoch(epoch + 1, metrics, functools.partial(take_state, model, optimizer, epoch + 1))
    if done >= config.epochs:
        calibrate_and_score(model, data)
    return model.eval()


def build(config: FinetuneConfig, data: TaskData) -> TaskModel:
    """The model before training, its random parts drawn from PyTorch's generator."""
    model = TaskModel(config, data.info, data.model, data.objective, data.vocab_size)
    if config.initialisation == "pretrained":
        model.load_pretrained(data.pretrained)
    return model
