"""Vectors of texts: the losses that they are learnt by, and exports for sentence-transformers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.core.errors import ConfigError
from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.sentence_encoder import (
    QUICK_THOUGHTS,
    SKIP_THOUGHTS,
    SentenceEncoderConfig,
    SentenceVectorModel,
)
from rungwise.models.losses.masked_variants import (
    SENTENCE_PAIRS,
    SIMCSE,
    TSDAE,
    SentenceEncoder,
    without_masked,
)
from rungwise.models.trained.encoders import MeanOfStates
from rungwise.serving.export import export_model
from rungwise.tasks.kinds.items import token_ids
from rungwise.tokenizer import special_ids
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import WordPieceConfig
from rungwise.training import parallel
from rungwise.training.optimizer import OptimizerConfig, build_optimizers
from rungwise.training.parallel import Group
from rungwise.training.step import Step
from tests.conftest import made_up_sentences
from tests.small_models import gradient, random_masked_batch, shaken, small_config
from tests.training_runs import (
    CPU,
    assert_same_rows_and_losses,
    config,
    make_instances,
    run,
    together,
)


def pairs(B: int, T: int = 16) -> MaskedBatch[Tensor]:
    """Rows [1] A [2] B [2] with some tokens masked, of any lengths."""
    batch = random_masked_batch(B, T, 3)
    first, second = torch.randint(1, 6, (B,)), torch.randint(1, 6, (B,))
    place = torch.arange(T)
    a_length, length = first + 2, first + second + 3
    ids = torch.randint(5, 50, (B, T))
    ids[:, 0] = 1
    ids[place == (a_length - 1)[:, None]] = 2
    ids[place == (length - 1)[:, None]] = 2
    segments = ((place >= a_length[:, None]) & (place < length[:, None])).long()
    where = torch.ones(B, 1, dtype=torch.int64)
    original = ids.gather(1, where)
    return dataclasses.replace(
        batch,
        ids=ids.scatter(1, where, 4),
        segments=segments,
        lengths=length,
        masked_positions=torch.cat((where, torch.zeros_like(where)), 1),
        masked_ids=torch.cat((original, torch.zeros_like(where)), 1),
        masked_weights=torch.tensor([[1.0, 0.0]]).expand(B, 2),
    )


def made(kind: str, objective: Any, **changes: Any) -> SentenceEncoder:
    return shaken(small_config(kind, **changes).build(50, objective), 0.2)


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
def test_the_loss_of_pairs_is_that_of_each_sentence_by_itself(kind: str) -> None:
    model, batch = made(kind, SENTENCE_PAIRS), pairs(5)
    losses = SENTENCE_PAIRS(model, batch)
    assert batch.lengths is not None
    vectors = []
    for row in range(5):
        ids = batch.ids[row].clone()
        ids[1] = batch.masked_ids[row, 0]
        text = ids[: batch.lengths[row]].tolist()
        middle = text.index(2)
        for each in (text[: middle + 1], [1, *text[middle + 1 :]]):
            states = model.body.encode_layers(torch.tensor([each]))[-1]
            vectors.append(states[0].mean(0))
    queries, keys = torch.stack(vectors[0::2]), torch.stack(vectors[1::2])
    cosine = functional.cosine_similarity(queries[:, None], keys[None], dim=-1)
    expected = functional.cross_entropy(cosine / 0.05, torch.arange(5), reduction="sum")
    torch.testing.assert_close(losses.total[0], expected, rtol=1e-4, atol=1e-4)
    assert losses.correct == (cosine.argmax(1) == torch.arange(5)).sum()
    assert losses.count == 5
    assert losses.parts == ("contrastive",)


@pytest.mark.parametrize("objective", [SIMCSE, SENTENCE_PAIRS], ids=lambda each: each.name)
def test_a_step_of_micro_batches_has_the_gradient_of_the_whole(objective: Any) -> None:
    """The other way is one sum of losses over the vectors of all parts, with their dropout."""
    model = made("mlm", objective, dropout=0.1).double()
    parts = [pairs(rows) for rows in (3, 4, 2)]
    group, settings = Group(0, 1, CPU), OptimizerConfig(clip_norm=None)
    step = Step(
        model,
        objective,
        parallel.distribute(model, group, "ddp"),
        build_optimizers(model, settings),
        settings,
        group,
        bfloat16=False,
    )
    counts = torch.tensor([9.0])
    torch.manual_seed(7)
    vectors = torch.cat([objective.outputs(model, part) for part in parts], dim=1)
    cosine = vectors[0] @ vectors[1].T
    whole = functional.cross_entropy(cosine / 0.05, torch.arange(9), reduction="mean")
    whole.backward()
    expected, found = gradient(model), []
    model.zero_grad()
    step.optimizers[0].register_step_pre_hook(lambda *_: found.append(gradient(model)))
    torch.manual_seed(7)
    sums, _ = step(parts, counts, 0.0)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sums[0, 0] / 9, whole.detach())
    assert sums[1].item() == 9


def test_what_masked_rows_have_chosen_is_deleted() -> None:
    batch = random_masked_batch(6, 12, 4)
    ids, lengths = without_masked(batch)
    for row in range(6):
        chosen = batch.masked_positions[row][batch.masked_weights[row] > 0].tolist()
        stop = 12 if batch.lengths is None else int(batch.lengths[row])
        kept = [int(batch.ids[row, place]) for place in range(stop) if place not in chosen]
        assert ids[row, : lengths[row]].tolist() == kept


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
def test_a_text_is_written_again_from_the_vector_of_what_is_left(kind: str) -> None:
    """Row by row: the vector of the kept tokens is added to what the decoder reads."""
    model: Any = made(kind, TSDAE)
    batch = random_masked_batch(5, 12, 4)
    losses = TSDAE(model, batch)
    ids, lengths = without_masked(batch)
    total, count = torch.zeros(()), 0
    for row in range(5):
        states = model.body.encode_layers(ids[row : row + 1, : lengths[row]])[-1]
        vector = model.from_vector(states[0].mean(0))
        stop = 12 if batch.lengths is None else int(batch.lengths[row])
        whole = batch.ids[row].scatter(
            0,
            batch.masked_positions[row][batch.masked_weights[row] > 0],
            batch.masked_ids[row][batch.masked_weights[row] > 0],
        )[:stop]
        read = model.decoder(model.body.embed(whole[None]) + vector)
        logits = read[0, :-1] @ model.body.token_embedding.weight.T
        total = total + functional.cross_entropy(logits, whole[1:], reduction="sum")
        count += stop - 1
    assert losses.count.item() == count
    torch.testing.assert_close(losses.total[0], total, rtol=1e-5, atol=1e-4)
    losses.loss().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("objective", [SIMCSE, TSDAE], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("kind", "norm", "name"),
    [
        ("mlm", "post", "BertModel"),
        ("mlm", "pre", "RobertaPreLayerNormModel"),
        ("modern_bert", "pre", "ModernBertModel"),
    ],
)
def test_the_exported_folder_gives_sentence_transformers_the_same_vectors(
    kind: str, norm: str, name: str, objective: Any, tmp_path: Path
) -> None:
    family = small_config(kind, norm=norm)
    model, tokenizer = exported(tmp_path, family, objective)
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["architectures"] == [name]
    ends = special_ids(tokenizer).require("cls", "sep")
    check_vectors(MeanOfStates(model.body, family.max_length, *ends), tokenizer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"parallel": "fsdp"}], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("objective", ["sentence_pairs", "tsdae"])
def test_two_workers_learn_what_one_does(
    tmp_path: Path, way: dict[str, Any], objective: str
) -> None:
    kind = "masked_blocks" if objective == "tsdae" else "sentence_order"
    rows = make_instances(tmp_path / "rows", kind)
    settings = config(kind, **{"pretrain.objective": objective})
    alone = run(settings, rows, tmp_path / "alone", micro_batch_size=12)
    assert alone.validation[-1]["loss"] < alone.validation[0]["loss"]
    both = together(2, settings, rows, tmp_path / "both", **way)
    assert both is not None
    assert_same_rows_and_losses(alone, both)


SIZES: dict[str, Any] = {"embedding_size": 12, "hidden_size": 12, "num_heads": 2}


def exported(folder: Path, config: Any, objective: Any = SKIP_THOUGHTS) -> tuple[Any, Any]:
    """A random encoder and its tokenizer, written to `folder / out`."""
    tokenizer = train(WordPieceConfig(vocab_size=120), made_up_sentences(3, 40))
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)  # with some, the weight of a norm is near 0, and its dimension constant
    model = shaken(config.build(tokenizer.get_vocab_size(), objective), 0.3).eval()
    export_model(model, config, folder / "tokenizer.json", folder / "out")
    return model, tokenizer


def check_vectors(model: Any, tokenizer: Any, folder: Path) -> None:
    """The vectors of the model are those of sentence-transformers after the export."""
    from sentence_transformers import SentenceTransformer  # seconds, which collecting need not pay

    sentences = made_up_sentences(3, 40)
    texts = [sentences[0], sentences[1][:9], "a", " ".join(sentences[2:5])]
    ours = model.sentence_vectors(token_ids(tokenizer, texts))
    theirs = SentenceTransformer(str(folder / "out"), device="cpu").encode(texts)
    assert np.ptp(ours, axis=0).min() > 1e-3
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "keys",
    [
        {"network": "words", "pooling": "mean", "num_layers": 0},
        {"network": "words", "pooling": "mean", "num_layers": 2, "embedding_size": 7},
        {"network": "transformer", "num_layers": 2},
        {"network": "transformer", "pooling": "root"},
        {"network": "transformer", "pooling": "max"},
        {"network": "transformer", "pooling": "last"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_sentence_transformers_gives_the_same_vectors(keys: dict[str, Any], tmp_path: Path) -> None:
    model, tokenizer = exported(tmp_path, SentenceEncoderConfig(**(SIZES | keys)))
    check_vectors(SentenceVectorModel(model), tokenizer, tmp_path)


@pytest.mark.parametrize(
    ("objective", "keys", "misfit"),
    [
        (QUICK_THOUGHTS, {"network": "transformer"}, "two encoders side by side"),
        (SKIP_THOUGHTS, {"network": "two_grus"}, "network two_grus on these tokens"),
        (SKIP_THOUGHTS, {"network": "words"}, "network words with pooling sum"),
    ],
)
def test_what_it_cannot_hold_is_refused_with_another_way(
    objective: Any, keys: dict[str, Any], misfit: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{misfit}.*; `rungwise predict` writes the vectors"):
        exported(tmp_path, SentenceEncoderConfig(**(SIZES | keys)), objective)
