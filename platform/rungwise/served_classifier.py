"""The registered classifier as MLflow serves it: texts in, labels and probabilities out.

MLflow copies this file into the model and runs it there ("models from code"). It needs torch and
tokenizers, neither Ray nor a checkout of this project.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
import torch
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from tokenizers import Tokenizer

from rungwise.finetune import FinetuneConfig, encode_texts, predict_logits
from rungwise.models.bert import Bert, BertConfig
from rungwise.models.heads import SequenceClassifier


class TextClassifier(PythonModel):
    """A fine-tuned encoder with its tokenizer and the names of its labels."""

    def load_context(self, context: PythonModelContext) -> None:
        description = json.loads(Path(context.artifacts["description"]).read_text("utf-8"))
        self._labels: list[str] = description["labels"]
        self._config = FinetuneConfig.model_validate(description["finetune"])
        self._tokenizer = Tokenizer.from_file(context.artifacts["tokenizer"])
        self._tokenizer.encode_special_tokens = True
        encoder = Bert(
            BertConfig.model_validate(description["model"]),
            description["vocab_size"],
            pooler=self._config.pooling == "cls",
        )
        self._model = SequenceClassifier(encoder, len(self._labels), self._config.pooling, 0.0)
        self._model.load_state_dict(safetensors.torch.load_file(context.artifacts["weights"]))
        self._model.eval()

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        context: PythonModelContext,
        model_input: list[str],
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """A row a text: the most probable label and its probability."""
        texts = [str(text) for text in _column(model_input)]
        rows = encode_texts(self._tokenizer, texts, self._config.sequence_length)
        probability, label = torch.softmax(predict_logits(self._model, rows), dim=-1).max(dim=-1)
        return pd.DataFrame(
            {
                "label": [self._labels[index] for index in label.tolist()],
                "probability": probability.tolist(),
            }
        )


def _column(model_input: Any) -> list[Any]:
    """MLflow hands over a list, or a frame with one column, depending on who calls."""
    if isinstance(model_input, pd.DataFrame):
        return model_input.iloc[:, 0].tolist()
    return list(model_input)


set_model(TextClassifier())
