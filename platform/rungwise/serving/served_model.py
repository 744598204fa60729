"""A registered model as MLflow serves it: texts or records in, predictions out.

MLflow copies this file into the model and runs it there ("models from code"). It needs torch and
tokenizers, but neither Ray nor a checkout of this project.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from mlflow.pyfunc.scoring_server import _SERVER_MODEL_PATH

from rungwise.core.storage.folder import Folder
from rungwise.models.trained.language_models import Sampling
from rungwise.serving.limits import MOST_BYTES, RequestTooLarge, check_size, check_work
from rungwise.serving.predictor import load_predictor
from rungwise.tasks.data.cutting import parse_examples


class Served(PythonModel):
    """A fine-tuned or pretrained model with its tokenizer."""

    def load_context(self, context: PythonModelContext) -> None:
        # MLflow puts the files into one folder and keeps their names.
        folder = Path(context.artifacts["description"]).parent
        self._predictor = load_predictor(Folder.at(folder))

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        context: PythonModelContext,
        model_input,  # untyped, or MLflow would derive a schema
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """One row per example. Bare texts are enough if an example is one text. `params` of a model
        that writes are the fields of `Sampling`; with a `length` it continues each text. MLflow's
        server refuses more than limits.py allows."""
        inputs = _plain(model_input)
        if _SERVER_MODEL_PATH in os.environ:
            try:
                check_work(len(inputs), (params or {}).get("length", 0))
                check_size(len(str(inputs).encode("utf-8", "replace")), MOST_BYTES, "bytes")
            except RequestTooLarge as error:  # which MLflow would hide
                raise MlflowException.invalid_parameter_value(str(error)) from error
        examples = parse_examples(inputs, self._predictor.info)
        # The index of the caller's rows, so that a column of answers fits a sorted or filtered
        # frame.
        index = model_input.index if isinstance(model_input, pd.DataFrame | pd.Series) else None
        sampling = Sampling(**params) if params and params.get("length") else None
        return pd.DataFrame(self._predictor(examples, sampling), index=index)


def _plain(model_input: Any) -> Any:
    """Texts or records from MLflow's input: a list or a data frame, depending on the caller."""
    if isinstance(model_input, pd.DataFrame):
        rows = model_input.to_dict("records")
        if any(isinstance(name, int) for name in model_input.columns):
            return [_value(next(iter(row.values()))) for row in rows]
    elif isinstance(model_input, str | Mapping) or not isinstance(model_input, Iterable):
        rows = [model_input]
    else:
        rows = list(model_input)
    return [
        {str(key): _value(value) for key, value in row.items()}
        if isinstance(row, Mapping)
        else _value(row)
        for row in rows
    ]


def _value(value: Any) -> Any:
    """A value as JSON has it: a list for an array, None for what pandas calls missing."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


set_model(Served())
