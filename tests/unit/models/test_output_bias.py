"""The output bias: before the first step, a model that predicts words is an order 1 model."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.batch import CausalBatch
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.config import model_config
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.fit_config import FitConfig
from rungwise.training.initial import shares_of_words, start_model
from tests.training_runs import VOCAB, config, make_instances

SMALL = {"num_layers": 1, "hidden_size": 16, "initializer_range": 1e-4}
STACK = SMALL | {"num_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
WORDS = {"embedding_size": 16, "initializer_range": 1e-4}
CLASSES = {"output": {"kind": "classes"}}
TREE = {"output": {"kind": "tree"}}
TWO_TREES = {"output": {"kind": "tree", "shape": "adaptive", "overlap": 0.3}}
RUNS = {"sentences": 4, "sentence_length": 8}
SENTENCES = SMALL | WORDS | {"classifier_size": 8}
FILTERS = {"filters": [[1, 4], [2, 4]], "character_size": 4, "max_characters": 6, "num_highways": 1}
# Kind of model, kind of instances, objective, keys of the model.
CASES: list[tuple[str, str, str | None, dict[str, Any]]] = [
    ("bigram", "causal", None, {}),
    ("nnlm", "causal", None, WORDS | {"hidden_size": 8}),
    ("nnlm", "causal", None, WORDS | {"hidden_size": 8} | TREE),
    ("log_bilinear", "causal", None, WORDS),
    ("log_bilinear", "causal", None, WORDS | CLASSES),
    ("log_bilinear", "causal", None, WORDS | TWO_TREES),
    ("rnn", "causal", None, SMALL),
    ("rnn", "causal", None, SMALL | CLASSES),
    ("lstm", "causal", None, SMALL),
    ("lstm", "causal", None, SMALL | TREE),
    ("lstm", "document_rows", "autoencoder", SMALL),
    ("awd_lstm", "causal", None, SMALL | WORDS),
    ("elmo", "causal", None, {"num_layers": 1, "hidden_size": 8, "cell_size": 8} | FILTERS),
    ("bidirectional", "causal", None, STACK),
    ("bert", "masked_pairs", "mlm_nsp", STACK),
    ("bert", "masked_blocks", "mlm", STACK),
    ("bert", "sentence_order", "sentence_order", STACK),
    ("bert", "masked_blocks", "permuted", STACK),
    ("bert", "causal", "left_to_right", STACK),
    ("modern_bert", "masked_blocks", "mlm", STACK),
    ("modern_bert", "masked_blocks", "replaced_tokens", STACK),
    ("modern_bert", "causal_and_masked", "causal_and_masked", STACK),
    ("modern_bert", "denoised_spans", "span_denoising", STACK),
    ("sentence_encoder", "sentence_runs", "skip_thoughts", SENTENCES),
]


def frequent_text(seed: int, documents: int) -> TokenisedText:
    """Words as frequent as Zipf's law has it, eight to a sentence, four sentences to a document."""
    weights = 1 / np.arange(1, VOCAB - 4)
    words = np.random.default_rng(seed).choice(VOCAB - 5, documents * 32, p=weights / weights.sum())
    return TokenisedText(
        ids=(5 + words).astype(np.uint16),
        starts=np.arange(0, documents * 32 + 1, 8),
        first_sentence=np.arange(0, documents * 4 + 1, 4),
        documents=np.arange(documents, dtype=np.uint64),
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Instances of a kind, built once."""
    built: dict[str, Artifact] = {}

    def of(kind: str) -> Artifact:
        if kind not in built:
            keys: dict[str, Any] = RUNS if kind == "sentence_runs" else {"sequence_length": 32}
            if kind == "denoised_spans":
                keys |= {"masking": {"unit": "token", "max_predictions": 6}}
            folder = tmp_path_factory.mktemp(kind)
            built[kind] = make_instances(folder, kind, text=frequent_text, **keys)
        return built[kind]

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:3])))
def test_the_first_loss_is_that_of_order_1(case: Any, rows: Any) -> None:
    """Over held-out rows, whose predicted words are counted by hand in the training rows."""
    kind, reads, name, keys = case
    instances, family = rows(reads), model_config({"kind": kind} | keys)
    batches = [
        reader.batch(every, np.zeros_like(every), 0)
        for reader in (InstanceReader(instances, split) for split in ("train", "validation"))
        for every in [np.arange(len(reader))]
    ]
    asked = Counter(batches[0].predicted_ids().tolist())
    share = {word: (asked[word] + 1) / (asked.total() + VOCAB) for word in range(VOCAB)}
    torch.manual_seed(0)
    objective = family.objective(name)
    model: Any = family.build(VOCAB, objective).eval()
    if kind == "elmo":
        model.body.spell([b"%d" % n for n in range(VOCAB)], 3)
        torch.nn.init.zeros_(model.output)
    if hasattr(model, "read_text"):
        model.read_text(lambda: [frequent_text(0, 60).ids])
    assert model.set_word_shares(shares_of_words(instances))
    batch: Any = next(batches[1].micro_batches(1, False))
    if family.carries_state(objective):  # rows alone, each from a state of zeros
        batch = CausalBatch(batch.ids, batch.targets, batch.weights)
    with torch.no_grad():
        loss = objective(model, batch.tensors()).metrics()[objective.tokens.loss_key]
    words = batches[1].predicted_ids().tolist()
    order_1 = -np.mean([np.log(share[word]) for word in words])
    assert loss == pytest.approx(order_1, abs=5e-3)
    assert order_1 < np.log(VOCAB) - 0.4


@pytest.mark.parametrize(("bias", "expected"), [("frequencies", None), ("zeros", np.log(VOCAB))])
def test_a_run_begins_there(bias: str, expected: float | None, rows: Any) -> None:
    instances = rows("causal")
    pretrain = config("causal", **{"pretrain.output_bias": bias}).pretrain
    family: Any = model_config({"kind": "log_bilinear"} | WORDS)
    start = start_model(FitConfig(family, pretrain), instances, None)
    model: Any = start.model
    log_V = shares_of_words(instances).log()
    torch.testing.assert_close(model.bias.detach(), log_V if expected is None else 0 * log_V)
    assert start.first_loss == (expected or InstancesSummary.of(instances).unigram_loss)
