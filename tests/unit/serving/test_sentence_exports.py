"""Vectors of sentences outside of the project: in sentence-transformers, and as an array."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.commands.predict import write_vectors
from rungwise.core.errors import ConfigError, UserError
from rungwise.models.families.sentence_encoder import SentenceEncoderConfig, SentenceVectorModel
from rungwise.models.losses.sentences import QUICK_THOUGHTS, SKIP_THOUGHTS
from rungwise.serving.hugging_face import export_model
from rungwise.tasks.kinds.examples import Text
from rungwise.tasks.kinds.items import token_ids
from rungwise.tokenizer import WordPieceConfig, train
from tests.conftest import made_up_sentences
from tests.small_models import shaken

SIZES: dict[str, Any] = {"embedding_size": 12, "hidden_size": 12, "num_heads": 2}


def exported(folder: Path, objective: Any = SKIP_THOUGHTS, **keys: Any) -> tuple[Any, Any]:
    """A random encoder and its tokenizer, written to `folder / out`."""
    tokenizer = train(WordPieceConfig(vocab_size=120), made_up_sentences(3, 40))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = SentenceEncoderConfig(**(SIZES | keys))
    torch.manual_seed(5)  # with some, the weight of a norm is near 0, and its dimension constant
    model = shaken(config.build(tokenizer.get_vocab_size(), objective, 64), 0.3).eval()
    export_model(model, config, folder / "tokenizer.json", folder / "out")
    return model, tokenizer


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
    from sentence_transformers import SentenceTransformer  # seconds, which collecting need not pay

    model, tokenizer = exported(tmp_path, **keys)
    sentences = made_up_sentences(3, 40)
    texts = [sentences[0], sentences[1][:9], "a", " ".join(sentences[2:5])]
    ours = SentenceVectorModel(model).sentence_vectors(token_ids(tokenizer, texts))
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    assert np.ptp(ours, axis=0).min() > 1e-3
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


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
    with pytest.raises(ConfigError, match=f"{misfit}.*; `rungwise predict` with --to FILE.npy"):
        exported(tmp_path, objective, **keys)


def test_vectors_of_texts_become_an_array_in_their_order(tmp_path: Path) -> None:
    texts = [Text(str(n), "x" * n) for n in range(7)]
    answers: Any = lambda batch: [{"vector": [len(each.text), 0.5]} for each in batch]  # noqa: E731
    with (tmp_path / "vectors.npy").open("wb") as output:
        write_vectors(answers, texts, 3, output)
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[n, 0.5] for n in range(7)]
    labels: Any = lambda batch: [{"label": "good"} for _ in batch]  # noqa: E731
    message = re.escape(
        "takes a file in .npy for models that answer with vectors, found answers of label"
    )
    with (tmp_path / "none.npy").open("wb") as output, pytest.raises(UserError, match=message):
        write_vectors(labels, texts, 3, output)
