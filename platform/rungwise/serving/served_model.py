"""A registered model as MLflow serves it: texts or records in, predictions out.

MLflow copies this file into the model and runs it there ("models from code"). It needs torch and
tokenizers, neither Ray nor a checkout of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from rungwise.core.storage import Folder
from rungwise.serving.predictor import Predictor
from rungwise.tasks.unlabelled import example_of, text_column


class FineTuned(PythonModel):
    """A fine-tuned model with its tokenizer and the names of its labels."""

    def load_context(self, context: PythonModelContext) -> None:
        # MLflow puts the files into one folder and keeps their names.
        folder = Path(context.artifacts["description"]).parent
        self._predictor = Predictor.load(Folder.at(folder))

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        context: PythonModelContext,
        model_input,  # without a type, of which MLflow would make a schema
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """A row an example. Bare texts are enough where an example is one text."""
        info = self._predictor.info
        examples = [
            example_of(record, info, f"input {number}")
            for number, record in enumerate(self._records(model_input), start=1)
        ]
        return pd.DataFrame(self._predictor(examples))

    def _records(self, model_input: Any) -> list[Mapping[str, Any]]:
        """MLflow hands over a list or a frame, depending on who calls and how."""
        if isinstance(model_input, pd.DataFrame):
            rows = model_input.to_dict("records")
            if any(isinstance(name, int) for name in model_input.columns):
                rows = [next(iter(row.values())) for row in rows]
        elif isinstance(model_input, str | Mapping):
            rows = [model_input]
        else:
            rows = list(model_input)
        return [
            {
                str(key): value.tolist() if isinstance(value, np.ndarray) else value
                for key, value in record.items()
            }
            if isinstance(record, Mapping)
            else {text_column(self._predictor.info): record}
            for record in rows
        ]


set_model(FineTuned())
