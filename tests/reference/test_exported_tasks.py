"""A fine-tuned model as a folder of transformers: by the command, the same answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rungwise.__main__ import main
from rungwise.finetune.loop import outputs
from rungwise.serving import export
from rungwise.tasks.data.cutting import parse_example
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import Kind
from rungwise.tasks.kinds.kind import Reading
from rungwise.tasks.kinds.labels import SentenceKind
from tests.reference.test_onnx import TOLERANCE, logits_by
from tests.small_models import shaken
from tests.unit.serving.test_predictor import INFO, RECORDS, make_model, write_weights

CLASSES = {"tagging": "TokenClassification", "span": "QuestionAnswering"}


class Theirs:
    """Their model, asked as onnxruntime is."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        name = "MultipleChoice" if kind == "choice" else CLASSES.get(kind, "SequenceClassification")
        auto = getattr(transformers, f"AutoModelFor{name}")
        self.model, told = auto.from_pretrained(folder, output_loading_info=True)
        assert not told["missing_keys"]
        assert not told["unexpected_keys"]
        self.kind = kind

    @torch.no_grad()
    def run(self, _: None, given: dict[str, Any]) -> list[Any]:
        rows = {name: torch.as_tensor(given[name]) for name in export.INPUTS}
        if self.kind == "choice":
            rows = {name: each[:, None] for name, each in rows.items()}
        said = self.model.eval()(**rows)
        if self.kind == "span":
            return [said.start_logits.numpy(), said.end_logits.numpy()]
        return [said.logits.numpy()]


def test_a_model_that_writes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path, "generation", "mlm_nsp")
    to = ["--to", str(tmp_path / "out")]
    for form, message in (([], "writes another"), (["--format", "onnx"], "token by token")):
        assert main(["export", str(tmp_path), *form, *to]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("kind", [kind for kind in INFO if kind != "generation"])
def test_a_fine_tuned_model_answers_the_same_in_transformers(
    kind: Kind, norm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"pooling": "cls", "pairs": "joined"}
    predictor = make_model(tmp_path, kind, "mlm_nsp", norm, **keys)
    write_weights(tmp_path, shaken(predictor.model))
    out = tmp_path / "out"
    assert main(["export", str(tmp_path), "--to", str(out)]) == 0
    assert "AutoModelFor" in capsys.readouterr().out
    theirs, info, settings = Theirs(out, kind), predictor.info, predictor.model.config
    examples = [parse_example(each, info, str(n)) for n, each in enumerate(RECORDS[kind])]
    items = task_kind(info, Reading(stride=settings.stride)).encode(
        examples, predictor.tokenizer, predictor.frame
    )
    ours = outputs(predictor.model, items)
    for one, other in zip(logits_by(predictor, theirs, items), ours, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    if issubclass(KINDS[kind], SentenceKind):
        # Also through their tokenizer, from the text on, cut where ours is.
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        texts = [list(each.values()) for each in RECORDS[kind]]
        rows = tokenizer(
            *map(list, zip(*texts, strict=True)), padding=True, truncation=True, return_tensors="np"
        )
        (found,) = theirs.run(None, rows)
        np.testing.assert_allclose(found.squeeze(), np.stack(ours).squeeze(), **TOLERANCE)
    if kind in ("classification", "tagging"):
        assert list(theirs.model.config.id2label.values()) == list(info.labels)
