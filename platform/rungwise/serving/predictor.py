"""A fine-tuned model for inference: examples in, predictions out.

    model.json         what the model is and how it was fine-tuned
    model.safetensors  its weights
    tokenizer.json     its tokenizer

It needs only these three files, neither Ray nor the artifacts it was made from.
"""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.finetune import DESCRIPTION, build_frame, outputs, restore
from rungwise.models.device import list_devices
from rungwise.tasks.kinds.examples import Example
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs
from rungwise.tokenizer import FILE as TOKENIZER
from rungwise.tokenizer import load_tokenizer
from rungwise.training.tensor_files import MODEL as WEIGHTS
from rungwise.training.tensor_files import load_tensors

FILES = (DESCRIPTION, WEIGHTS, TOKENIZER)


class Predictor:
    """Predictions for examples of the task that the model was fine-tuned on."""

    def __init__(
        self,
        description: dict[str, Any],
        weights: dict[str, Any],
        tokenizer: Tokenizer,
        quiet: bool = False,
    ) -> None:
        self.model = restore(description, weights).to(list_devices()[0])
        self.info = self.model.info
        self._has_warned = quiet
        self.tokenizer = tokenizer
        self.frame = build_frame(self.model.config, self.model.pretrained, tokenizer)

    @classmethod
    def load(cls, folder: Folder, quiet: bool = False) -> "Predictor":
        """Load from a folder with the three files; `quiet` models do not warn about cut texts.

        Raises DataError naming a missing file.
        """
        for name in FILES:
            if not folder.exists(name):
                raise DataError(
                    f"{folder.uri} holds no {name}; expected a fine-tuned model, which is the "
                    f"folder of an evaluate artifact, with {', '.join(FILES)}"
                )
        return cls(
            json.loads(folder.read_bytes(DESCRIPTION)),
            load_tensors(folder, WEIGHTS),
            load_tokenizer(folder),
            quiet,
        )

    @property
    def example(self) -> dict[str, Any]:
        """An example input by column."""
        return self.model.kind.sample

    def __call__(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """One prediction per example, in order; see tasks/kinds/ for the keys."""
        if not examples:
            return []
        kind = self.model.kind
        items = kind.encode(examples, self.tokenizer, self.frame)
        self._warn_of_cut(examples, items)
        answered = Outputs(outputs(self.model, items), items, examples, self.tokenizer)
        return kind.decode(answered, self.model.calibration)

    def _warn_of_cut(self, examples: Sequence[Example], items: Sequence[Item]) -> None:
        """Warn once, on standard error, that a text is longer than the model reads."""
        cut = next((item for item in items if item.cut), None)
        if cut is None or self._has_warned:
            return
        self._has_warned = True
        why = (
            "a question is read up to 64 tokens, and up to half of the "
            f"{self.frame.sequence_length} of a row (finetune.sequence_length)"
            if math.isinf(cut.needs)
            else f"the model reads {self.frame.sequence_length} tokens (finetune.sequence_length) "
            f"and this needs {cut.needs}"
        )
        sys.stderr.write(
            f"{examples[cut.example].where}: the text is cut, for {why}; others that are cut are "
            "not named\n"
        )
