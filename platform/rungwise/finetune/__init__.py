"""Fine-tuning any pretrained model on any task with one seed: plain functions, no Ray, no MLflow.

    data = load_data(task, tokenizer, pretrain, config)
    model = finetune(config, data, seed, on_epoch)
    scores = evaluate(model, data, "test")

The sweep and the evaluation call the same functions."""

# ruff: noqa: F401  (names for the packages above)
from rungwise.finetune.config import FinetuneConfig
from rungwise.finetune.data import SplitData, TaskData, build_frame, check, check_task, load_data
from rungwise.finetune.loop import OnEpoch, Scores, evaluate, finetune, outputs
from rungwise.finetune.model import DESCRIPTION, PretrainedBody, TaskModel, describe, restore
