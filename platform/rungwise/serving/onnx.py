"""Export of an encoder or a fine-tuned model to ONNX, which onnxruntime runs without PyTorch.

    input_ids, token_type_ids, attention_mask (R, T) int64, padding at the end of a
    row; outputs at padding are meaningless

    a pretrained model           last_hidden_state (R, T, E)
    labels, regression           logits (B, C), C = 1 for a number
    tagging                      logits (R, T, C) per token; a word's are those of its first token,
                                 or of its last in a left-to-right model
    span                         start_logits, end_logits (R, T)
    choice                       logits (R, 1), the score of a row, which is an option

B is R, or R / 2 with finetune.pairs both_orders or apart, which give an item two consecutive rows.
The tokenizer beside it frames texts and pairs as in training. Windows over a long text and the
mean of their logits (finetune.windows) are left to the caller.

Shapes: R rows, B items, T sequence, E width of a state, C classes.
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.export import Dim

from rungwise.core.errors import ConfigError, UserError
from rungwise.finetune import DESCRIPTION, describe
from rungwise.finetune.model import TaskModel
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.transformer.block import Transformer
from rungwise.serving.hugging_face.writing import add_frame
from rungwise.tasks.kinds.items import Frame
from rungwise.tokenizer import FILE as TOKENIZER

MODEL = "model.onnx"
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_TRACED = 16  # the longest row that is traced; the graph takes any length


def export_onnx(
    model: LayeredEncoder | TaskModel, tokenizer: Tokenizer, frame: Frame | None, folder: Path
) -> None:
    """Write the graph, the tokenizer and, for a fine-tuned model, its description. Raises
    ConfigError for a model that ONNX cannot express, UserError without the packages."""
    task = model if isinstance(model, TaskModel) else None
    if not any(isinstance(part, Transformer) for part in model.modules()):
        raise ConfigError(
            "expected a model.kind that is a Transformer, found one that reads its text step by "
            "step, which cannot be written as ONNX"
        )
    if task is not None and (task.top is not None or task.config.crf):
        key = "top is a bilstm" if task.top is not None else "crf is true"
        raise ConfigError(f"finetune.{key}, which cannot be written as ONNX; leave it out")
    if task is not None and task.kind.writes:
        raise ConfigError(
            "a text is written token by token, which a graph of ONNX does not say; expected a task "
            "of another kind, or the model before fine-tuning"
        )
    longest: Any = model.max_length if task is None else task.config.sequence_length
    # Three tensors, since one passed twice would become a single input.
    arguments = [
        torch.ones((4, min(longest or _TRACED, _TRACED)), dtype=torch.int64) for _ in INPUTS
    ]
    has_two_rows = task is not None and task.config.pairs != "joined"
    rows: Any = 2 * Dim("items") if has_two_rows else Dim("rows")
    sizes = {0: rows, 1: Dim("length", max=longest)}
    outputs = ("last_hidden_state",) if task is None else task.head.outputs
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        import onnxscript  # noqa: F401  # what torch.onnx writes with

        logger.setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            traced = torch.export.export(
                _Graph(model).eval(), tuple(arguments), dynamic_shapes=(sizes,) * len(INPUTS)
            )
            program = torch.onnx.export(
                traced, verbose=False, input_names=INPUTS, output_names=outputs
            )
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'rungwise[onnx]'") from error
    finally:
        logger.setLevel(level)
    assert program is not None, "dynamo returns the program"
    program.save(folder / MODEL)
    if frame is not None:
        # Marks that fine-tuning added are not in the vocabulary.
        marks = {"[START]": frame.start, "[BETWEEN]": frame.between, "[END]": frame.end}
        add_frame(
            tokenizer,
            *((tokenizer.id_to_token(mark) or name, mark) for name, mark in marks.items()),
        )
    tokenizer.save(str(folder / TOKENIZER))
    if task is not None:
        (folder / DESCRIPTION).write_text(json.dumps(describe(task), indent=1), encoding="utf-8")


class _Graph(nn.Module):
    """The model with the inputs that Hugging Face's tokenizers produce."""

    def __init__(self, model: LayeredEncoder | TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_RT: Tensor, segments_RT: Tensor, mask_RT: Tensor) -> Any:
        lengths_R, model = mask_RT.sum(dim=1), self.model
        if not isinstance(model, TaskModel):
            return model(ids_RT, segments_RT, lengths_R)
        logits = model.head.project(model.states(ids_RT, segments_RT, lengths_R), lengths_R)
        return logits.unbind(dim=-1) if len(model.head.outputs) > 1 else logits
