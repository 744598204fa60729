"""ONNX: onnxruntime gives what PyTorch gives, whatever the rows, and the same answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from rungwise.__main__ import main
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig, PretrainedBody, TaskModel
from rungwise.finetune.loop import collate, outputs
from rungwise.models.families.recurrent import LstmConfig
from rungwise.serving import export
from rungwise.serving.predictor import Predictor
from rungwise.tasks.data.cutting import parse_example
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import Kind, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs, Reading
from tests.report_pages import built
from tests.small_models import LENGTH, VOCAB_SIZE, objective_of, shaken, small_config
from tests.unit.serving.test_predictor import INFO, RECORDS, make_model, numeric, write_weights

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
TOLERANCE: Any = {"atol": 1e-4, "rtol": 1e-4}
pytestmark = pytest.mark.slow  # an export takes five seconds
WORDS = Tokenizer(models.WordLevel({"w": 0}, "w"))


def session(folder: Path) -> Any:
    return onnxruntime.InferenceSession(folder / export.GRAPH)


def asked(graph: Any, ids: Any, segments: Any, lengths: Any) -> list[Any]:
    """What the graph gives for rows of these lengths; None: no row is padded."""
    place = np.arange(ids.shape[1])
    mask = np.ones(ids.shape, np.int64) if lengths is None else place < np.asarray(lengths)[:, None]
    given = (ids.numpy(), segments.numpy(), mask.astype(np.int64))
    return graph.run(None, dict(zip(export.INPUTS, given, strict=True)))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mlm_nsp", "modern_bert", "causal", "bidirectional", "llama"])
def test_states_of_an_encoder_are_those_of_pytorch(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    encoder = small_config(kind).encoder(objective_of(kind), VOCAB_SIZE, 0.1, 0)
    shaken(encoder).eval()
    export.export_onnx(encoder, WORDS, None, tmp_path)
    graph = session(tmp_path)
    for lengths in ([1], [LENGTH], [9, 4, 1, 6], [3, 3], None):
        B, T = (5, 7) if lengths is None else (len(lengths), max(lengths))
        ids, segments = torch.randint(VOCAB_SIZE, (B, T)), torch.randint(2, (B, T))
        ours = encoder(ids, segments, None if lengths is None else torch.tensor(lengths)).numpy()
        (theirs,) = asked(graph, ids, segments, lengths)
        real = np.arange(T) < np.asarray(lengths or [T] * B)[:, None]
        assert ours.std() > 0.3
        np.testing.assert_allclose(theirs[real], ours[real], **TOLERANCE)


def logits_by(predictor: Predictor, graph: Any, items: list[Item]) -> list[Any]:
    """The outputs of `finetune.outputs`, of who is asked as onnxruntime is."""
    kind, found = predictor.info.kind, []
    batch = collate(items, KINDS[kind])
    lengths = batch.rows.lengths
    results = asked(graph, batch.ids, batch.segments, lengths)
    rows = iter(range(len(batch.ids)))
    for number, item in enumerate(items):
        own = [next(rows) for _ in item.rows]
        if kind == "span":
            length = len(item.rows[0].ids)
            found.append(np.stack([each[own[0], :length] for each in results], axis=-1))
        elif kind == "tagging":
            found.append(results[0][own[0], list(item.places)])
        elif kind == "choice":
            found.append(results[0][own, 0])
        else:
            found.append(results[0][number, 0] if kind == "regression" else results[0][number])
    return found


@pytest.mark.parametrize("objective", ["mlm_nsp", "causal"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [*((kind, {}) for kind in INFO if kind != "generation"), ("regression", {"pairs": "apart"})],
)
def test_a_model_for_a_task_gives_the_same_answers(
    kind: Kind, keys: dict[str, Any], objective: str, tmp_path: Path
) -> None:
    predictor = make_model(tmp_path, kind, objective, **keys)
    write_weights(tmp_path, shaken(predictor.model))
    out = tmp_path / "out"
    assert main(["export", str(tmp_path), "--format", "onnx", "--to", str(out)]) == 0
    graph, info, settings = session(out), predictor.info, predictor.model.config
    examples = [parse_example(each, info, str(n)) for n, each in enumerate(RECORDS[kind])]
    items = task_kind(info, Reading(pairs=settings.pairs, stride=settings.stride)).encode(
        examples, predictor.tokenizer, predictor.frame
    )
    for some in (items, items[:1]):  # of several lengths, then without padding
        theirs, ours = logits_by(predictor, graph, some), outputs(predictor.model, some)
        for one, other in zip(theirs, ours, strict=True):
            np.testing.assert_allclose(one, other, **TOLERANCE)
    said = task_kind(info).decode(Outputs(logits_by(predictor, graph, items), items, examples), {})
    for one, other in zip(said, predictor(examples), strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, abs=1e-4) if numeric(value) else value)
    if isinstance(first := examples[0], Text):
        second = None if settings.pairs == "apart" else first.second
        framed = Tokenizer.from_file(str(out / "tokenizer.json")).encode(first.text, second)
        row = items[0].rows[0]
        assert (tuple(framed.ids), tuple(framed.type_ids)) == (row.ids, row.segments)


def test_an_artifact_has_its_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built("mlm", tmp_path / "root")
    there = str(tmp_path / "root" / "pretrain")
    assert main(["export", there, "--format", "onnx", "--to", str(tmp_path / "out")]) == 0
    framed = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("a row")
    assert (framed.tokens[0], framed.tokens[-1]) == ("[CLS]", "[SEP]")
    given = [np.array([each]) for each in (framed.ids, framed.type_ids, framed.attention_mask)]
    (states,) = session(tmp_path / "out").run(None, dict(zip(export.INPUTS, given, strict=True)))
    assert states.shape[:2] == (1, len(framed.ids))
    assert main(["export", there, "--format", "onnx", "--to", str(tmp_path / "out")]) == 2
    assert "already holds tokenizer.json, model.onnx" in capsys.readouterr().err
    settings = FinetuneConfig.model_validate({"top": {"kind": "bilstm"}})
    config = small_config("mlm")
    model = TaskModel(
        settings, INFO["tagging"], PretrainedBody(config, objective_of("mlm"), VOCAB_SIZE)
    )
    with pytest.raises(ConfigError, match=r"finetune\.top is a bilstm"):
        export.export_onnx(model, WORDS, None, tmp_path)
    lstm = LstmConfig(hidden_size=8, num_layers=1)
    encoder = lstm.encoder(lstm.objective(None), VOCAB_SIZE, 0.0, 0)
    with pytest.raises(ConfigError, match="cannot be written as ONNX"):
        export.export_onnx(encoder.eval(), WORDS, None, tmp_path)
