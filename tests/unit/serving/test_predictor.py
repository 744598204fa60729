"""A fine-tuned model of every kind answers from its three files, here and as MLflow serves it."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import gmean
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from rungwise.commands.models import predict_lines
from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, PretrainedBody, TaskModel, describe
from rungwise.serving.export import write_task_model
from rungwise.serving.predictor import DESCRIPTION, FILES, Predictor
from rungwise.tasks.data.cutting import parse_example
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Kind, TaskInfo
from tests.small_models import VOCAB_SIZE, small_config

INFO: dict[Kind, TaskInfo] = {
    "classification": TaskInfo("classification", ("left", "right"), False, "accuracy"),
    "multilabel": TaskInfo("multilabel", ("right", "left", "up"), False, "micro_f1"),
    "regression": TaskInfo("regression", (), True, "pearson"),
    "tagging": TaskInfo("tagging", ("O", "B-X", "I-X"), False, "f1"),
    "span": TaskInfo("span", (), False, "f1"),
    "choice": TaskInfo("choice", (), False, "accuracy"),
    "generation": TaskInfo("generation", (), False, "chrf"),
}
RECORDS: dict[Kind, list[dict[str, Any]]] = {
    "classification": [{"text": "w5 w6 w7"}, {"text": ""}, {"text": "w9 " * 40}],
    "multilabel": [{"text": "w5 w6 w7"}, {"text": ""}, {"text": "w9 " * 40}],
    "regression": [{"text": "w5 w6", "second": "w7"}, {"text": "w5", "second": "w5"}],
    "tagging": [{"words": ["w5", "w6", "w7"]}, {"words": ["w8"] * 40}],
    "span": [{"question": "w5", "context": "w6  w7, w8 w9 " * 9}],
    "choice": [
        {"context": "w5 w6", "question": "", "options": ["w7", "w8"]},
        {"context": "w5", "question": "w9", "options": ["w7", "w8", "w9"]},
    ],
    "generation": [{"text": "w5 w6 w7"}, {"text": ""}, {"text": "w9 " * 40}],
}
COLUMNS: dict[Kind, set[str]] = {
    "classification": {"label", "probability"},
    "multilabel": {"labels", "probabilities"},
    "regression": {"score"},
    "tagging": {"tags"},
    "span": {"text", "start", "end", "no_answer_score"},
    "choice": {"option", "probabilities"},
    "generation": {"text"},
}


def make_model(
    folder: Path, kind: Kind, objective: str, norm: str | None = None, **keys: Any
) -> Predictor:
    torch.manual_seed(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(VOCAB_SIZE - 4))]
    splitter = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    splitter.add_special_tokens(names[:4])
    splitter.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    splitter.save(str(folder / "tokenizer.json"))
    usual = {"pooling": "mean", "sequence_length": 16, "stride": 4}
    settings = validate(
        FinetuneConfig, usual | ({"pairs": "both_orders"} if kind == "regression" else {}) | keys
    )
    config = small_config(objective, **({"norm": norm} if norm else {}))
    model = TaskModel(
        settings, INFO[kind], PretrainedBody(config, config.objective(objective), VOCAB_SIZE)
    ).eval()
    (folder / DESCRIPTION).write_text(json.dumps(describe(model)))
    write_weights(folder, model)
    return Predictor(Folder.at(folder))


def write_weights(folder: Path, model: nn.Module) -> None:
    """The weights, and the record of the folder that knows them."""
    save_file(model.state_dict(), folder / "model.safetensors")
    artifacts.finish(Folder.at(folder), {"stage": "evaluate", "fingerprint": "f" * 12}, {})


def load_served(folder: Path) -> Any:
    """The model in a folder as MLflow serves a registered copy of it."""
    from rungwise.serving.served_model import Served

    copy = folder.with_name(f"{folder.name}-served")
    copy.mkdir()
    for name in FILES:
        shutil.copy(folder / name, copy)
    served = Served()
    context: Any = SimpleNamespace(artifacts={"description": str(copy / DESCRIPTION)})
    with pytest.raises(DataError, match=r"has no artifact\.json"):
        served.load_context(context)
    artifacts.finish(Folder.at(copy), {"stage": "served", "fingerprint": "f" * 12}, {})
    served.load_context(context)
    return served


@pytest.mark.parametrize("objective", ["mlm_nsp", "causal"])
@pytest.mark.parametrize("kind", list(INFO))
def test_every_kind_is_answered_alone_in_batches_and_as_served(
    tmp_path: Path, kind: Kind, objective: str
) -> None:
    of_text = task_kind(INFO[kind]).takes("windows")
    predictor = make_model(tmp_path, kind, objective, windows=of_text)
    records = RECORDS[kind]
    examples = [parse_example(record, INFO[kind], str(n)) for n, record in enumerate(records)]
    together = predictor(examples)
    for record, prediction in zip(records, together, strict=True):
        assert prediction.keys() == COLUMNS[kind]
        if kind == "tagging":
            tags = prediction["tags"]
            assert len(tags) == len(record["words"]), "no word without a tag"
        if kind == "span":
            span = record["context"][prediction["start"] : prediction["end"]]
            assert span == prediction["text"]
        if kind == "choice":
            assert sum(prediction["probabilities"]) == pytest.approx(1)
        if kind == "multilabel":
            named = zip(INFO[kind].labels, prediction["probabilities"], strict=True)
            assert prediction["labels"] == sorted(name for name, share in named if share > 0.5)
    for size in (1, 2):
        lines = "".join(predict_lines(predictor, iter(examples), size)).splitlines()
        for number, (line, whole) in enumerate(zip(lines, together, strict=True)):
            alone = json.loads(line)
            assert alone.pop("where") == str(number)
            assert list(alone) == list(whole)
            for name, value in alone.items():
                expected = whole[name]
                assert value == (pytest.approx(expected, abs=1e-5) if numeric(value) else expected)

    served = load_served(tmp_path)
    frames = []
    for given in (records, pd.DataFrame(records)):
        frame = served.predict(SimpleNamespace(), given)
        assert set(frame.columns) == COLUMNS[kind]
        assert len(frame) == len(records)
        frames.append(frame)
    order = pd.DataFrame(records)[::-1]  # as a sorted or filtered frame: the index says which row
    backwards = served.predict(SimpleNamespace(), order)
    assert list(backwards.index) == list(order.index)
    name = min(COLUMNS[kind])
    for number in order.index:
        expected = frames[0][name][number]
        close = pytest.approx(expected, abs=1e-5) if numeric(expected) else expected
        assert backwards[name][number] == close
    refused = dict.fromkeys(records[0])
    missing = pd.DataFrame([dict.fromkeys(records[0], pd.NA)])
    for nothing in ([refused], pd.DataFrame([refused]), missing, [None], [pd.NA], [1.5], None, 5):
        with pytest.raises(DataError):
            served.predict(SimpleNamespace(), nothing)
    if kind == "tagging":
        texts = [" ".join(record["words"]) for record in records]
        for given in (texts, pd.DataFrame({"text": texts})):
            frame = served.predict(SimpleNamespace(), given)
            assert list(frame["tags"]) == [prediction["tags"] for prediction in together]
    if kind == "choice":
        rows = [
            {"context": r["context"], "question": r.get("question")}
            | {f"option{n}": option for n, option in enumerate(r["options"])}
            for r in records
        ]
        frame = served.predict(SimpleNamespace(), pd.DataFrame(rows))
        assert list(frame["option"]) == [prediction["option"] for prediction in together]
    if kind in ("classification", "multilabel", "generation"):
        texts, name = [record["text"] for record in records], min(COLUMNS[kind])
        frame = served.predict(SimpleNamespace(), texts)
        assert list(frame[name]) == [prediction[name] for prediction in together]


def test_the_label_of_a_long_text_is_that_of_all_its_windows_together(tmp_path: Path) -> None:
    predictor = make_model(tmp_path, "classification", "mlm_nsp", windows=True)
    names = [f"w{n}" for n in range(5, 45)]

    def said(words: list[str]) -> dict[str, Any]:
        return predictor([parse_example({"text": " ".join(words)}, predictor.info, "1")])[0]

    # Of 16 tokens 14 are words, and each window begins 4 after the last.
    shares = []
    for begin in range(0, 29, 4):
        alone = said(names[begin : begin + 14])
        right = alone["probability"] if alone["label"] == "right" else 1 - alone["probability"]
        shares.append((1 - right, right))
    left, right = gmean(shares, axis=0)
    whole = said(names)
    assert whole["label"] == ("right" if right > left else "left")
    assert whole["probability"] == pytest.approx(max(left, right) / (left + right), abs=1e-5)


def test_a_cut_text_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = make_model(tmp_path, "classification", "mlm_nsp")
    for text in ("w5", "w9 " * 40, "w9 " * 50):
        predictor([parse_example({"text": text}, predictor.info, f"stdin:{len(text)}")])
    assert capsys.readouterr().err == (
        "stdin:120: the text is cut, for the model reads 16 tokens (finetune.sequence_length), of "
        "a question 64 at most; others that are cut are not named\n"
    )


def test_what_reads_a_pair_in_two_rows_is_not_exported_for_transformers(tmp_path: Path) -> None:
    predictor = make_model(tmp_path, "regression", "mlm_nsp", pooling="cls")
    with pytest.raises(ConfigError, match=r"finetune\.pairs is both_orders"):
        write_task_model(predictor, Folder.at(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def numeric(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], float)
    )
