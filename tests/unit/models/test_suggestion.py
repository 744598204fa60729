"""What families suggest: keys of a recipe, that follow text and time."""

import itertools
from typing import Any

import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.models.config import model_config
from rungwise.models.family import Size
from rungwise.training.fit_config import PretrainStageConfig, fitting_kind

SMALL = {"num_layers": 2, "hidden_size": 128}
STACK = SMALL | {"num_heads": 2, "intermediate_size": 256}
MODELS: list[dict[str, Any]] = [
    {"kind": "word2vec"},
    {"kind": "glove"},
    {"kind": "nnlm"},
    {"kind": "log_bilinear"},
    {"kind": "rnn"},
    {"kind": "lstm"} | SMALL,
    {"kind": "awd_lstm", "embedding_size": 64} | SMALL,
    {"kind": "elmo", "hidden_size": 64, "cell_size": 128, "filters": [[1, 16]], "num_highways": 1},
    *({"kind": kind} | STACK for kind in ("gpt", "llama", "bidirectional", "bert", "modern_bert")),
]
SIZE = Size(2_000_000, 6000, 60)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["kind"])
def test_suggestions_are_keys_of_a_recipe_and_follow_text_and_time(model: dict[str, Any]) -> None:
    family = model_config(model)
    passes = {}
    sizes = {"here": SIZE, "longer": SIZE._replace(seconds=600), "cores": SIZE._replace(workers=10)}
    for name, size in sizes.items():
        keys = family.suggest(size)
        blocks = {"model": model, "pretrain": {"kind": fitting_kind(family)}}
        config: Any = validate(PretrainStageConfig, with_overrides(blocks, keys))
        steps = keys.get("pretrain.epochs") or config.pretrain.steps
        passes[name] = steps
    assert passes["here"] < passes["longer"] == passes["cores"]
    little = family.suggest(SIZE._replace(tokens=20_000, seconds=1e6))
    if "pretrain.steps" in little:
        rows = little["pretrain.global_batch_size"]
        most = 20 if "bert" in model["kind"] else 4  # masks hide a part of a pass
        assert little["pretrain.steps"] == max(300, round(most * 20_000 / 64 / rows / 100) * 100)


def test_a_pair_of_words_counts_for_more_in_a_little_text() -> None:
    family = model_config({"kind": "glove"})
    weights = [
        family.suggest(SIZE._replace(tokens=n))["model.x_max"] for n in (10**5, 10**6, 10**9)
    ]
    assert weights == sorted(weights)
    assert weights[0] < 2
    assert weights[-1] == 100  # the paper's


def test_few_documents_give_few_vectors() -> None:
    """A table of so many documents has no higher rank."""
    sizes = {
        (contexts, documents): model_config({"kind": "lsa", "size": 128, "contexts": contexts})
        .suggest(SIZE._replace(documents=documents))
        .get("model.size", 128)
        for contexts, documents in itertools.product(("documents", "window"), (1, 44, 7000))
    }
    assert all(size <= documents for (kind, documents), size in sizes.items() if kind != "window")
    assert [sizes["documents", 7000], sizes["window", 1]] == [128, 128]


def test_what_has_nothing_to_choose_suggests_nothing() -> None:
    for kind in ("ngram", "lsa", "brown"):
        assert model_config({"kind": kind}).suggest(SIZE) == {}
