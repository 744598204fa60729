"""Fine-tuning any pretrained model on any task with one seed: plain functions, no Ray, no MLflow.

    data = load_data(task, tokenizer, pretrain, config)
    model = finetune(config, data, seed, on_epoch)
    scores = evaluate(model, data, "test")

config.py says what can be asked, model.py puts encoder, top and head together, batches.py makes
tensors of items, learning.py says what moves how fast, scoring.py reads the answers. The sweep and
the evaluation call the same functions.
"""

from rungwise.finetune.config import FinetuneConfig
from rungwise.finetune.data import Split, TaskData, check, check_task, frame_of, load_data
from rungwise.finetune.loop import OnEpoch, finetune
from rungwise.finetune.model import DESCRIPTION, TaskModel, describe, restore
from rungwise.finetune.scoring import Scores, evaluate, outputs

__all__ = [
    "DESCRIPTION",
    "FinetuneConfig",
    "OnEpoch",
    "Scores",
    "Split",
    "TaskData",
    "TaskModel",
    "check",
    "check_task",
    "describe",
    "evaluate",
    "finetune",
    "frame_of",
    "load_data",
    "outputs",
    "restore",
]
