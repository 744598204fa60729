"""Same weights, same numbers as the heads of transformers, float32, to 1e-5, on padded rows.

Every weight is random. Their models are made at random and go the way of real ones: the body is
saved and read, the last layer is copied. Shapes: B batch, T sequence, V vocabulary, C classes.
"""

import itertools
from typing import Any

import pytest
import torch
import transformers

from rungwise.finetune.model import HeadedEncoder
from rungwise.serving.importing import load_model
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.heads import ChoiceHead, Rows, SequenceHead, SpanHead, TokenHead
from tests.small_models import shaken

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
V, PAD, D, T = 61, 60, 32, 14
LENGTHS = torch.tensor([14, 9, 3, 11])
BERT = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
    "pad_token_id": PAD,
}
GPT = {
    "vocab_size": V,
    "n_embd": D,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 20,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}


def theirs(name, **changes):
    model_class = getattr(transformers, name)
    sizes = BERT if name.startswith("Bert") else GPT
    return shaken(model_class(model_class.config_class(**sizes | changes)), 0.1).eval()


def ours(model, folder, objective, head, last):
    """Their body under a head of ours, the last layer copied."""
    model.base_model.save_pretrained(folder)
    config, state = load_model(folder)
    encoder = config.encoder(config.objective(objective), V, dropout=0.1)
    encoder.load(state)
    with torch.no_grad():
        if getattr(getattr(head, "pool", None), "dense", None) is not None:
            head.pool.dense.weight.copy_(state["bert.pooler.weight"])
            head.pool.dense.bias.copy_(state["bert.pooler.bias"])
        head.linear.weight.copy_(last.weight)
        # GPT2ForSequenceClassification calls its last layer `score` and gives it no bias.
        head.linear.bias.copy_(torch.zeros(()) if last.bias is None else last.bias)
    return HeadedEncoder(encoder, head).eval()


def batch(segments=True):
    """Random ids, for ours and for theirs; the padding is the token that theirs knows it by."""
    ids_BT = torch.randint(PAD, (len(LENGTHS), T))
    real_BT = torch.arange(T) < LENGTHS[:, None]
    ids_BT[~real_BT] = PAD
    inputs: dict[str, Any] = {"input_ids": ids_BT, "attention_mask": real_BT.long()}
    segments_BT = (torch.arange(T) > 5).long().expand_as(ids_BT) if segments else None
    if segments:
        inputs["token_type_ids"] = segments_BT
    return (ids_BT, segments_BT), inputs, real_BT


def rows(item=None):
    """A row an item unless told otherwise, and every real token a word."""
    real_BT = torch.arange(T) < LENGTHS[:, None]
    row_W, place_W = real_BT.nonzero().unbind(1)
    item = torch.arange(len(LENGTHS)) if item is None else item
    return Rows(LENGTHS, item, int(item.max()) + 1, row_W, place_W)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_bert_for_sequence_classification(tmp_path, kind):
    labels = 1 if kind == "regression" else 3
    theirs_of = {"multilabel": "multi_label", "classification": "single_label"}
    problem = f"{theirs_of[kind]}_classification" if kind in theirs_of else kind
    model = theirs("BertForSequenceClassification", num_labels=labels, problem_type=problem)
    head = SequenceHead(D, labels, "cls", 0.1, pooler=True)
    mine = ours(model, tmp_path, "mlm_nsp", head, model.classifier)
    read, inputs, _ = batch()
    labels_B = torch.rand(4) * 5 if labels == 1 else torch.randint(3, (4,))
    if kind == "multilabel":
        labels_B = torch.randint(2, (4, 3)).float()
    expected = model(**inputs, labels=labels_B)
    found_BC = mine(*read, rows())
    assert expected.logits.std() > 0.05  # the rows differ
    torch.testing.assert_close(expected.logits, found_BC, **TOLERANCE)
    total, count = KINDS[kind].loss_sums(found_BC, labels_B)
    torch.testing.assert_close(total / count, expected.loss, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["BertForTokenClassification", "GPT2ForTokenClassification"])
def test_token_classification(tmp_path, name):
    model = theirs(name, num_labels=5)
    bert = name.startswith("Bert")
    objective = "mlm" if bert else "causal"
    mine = ours(model, tmp_path, objective, TokenHead(D, 5, 0.1), model.classifier)
    read, inputs, real_BT = batch(segments=bert)
    tags_BT = torch.randint(5, (4, T)).masked_fill(~real_BT, -100)
    expected = model(**inputs, labels=tags_BT)
    found_WC = mine(*read, rows())
    torch.testing.assert_close(expected.logits[real_BT], found_WC, **TOLERANCE)
    total, count = KINDS["tagging"].loss_sums(found_WC, tags_BT[real_BT])
    torch.testing.assert_close(total / count, expected.loss, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["BertForQuestionAnswering", "GPT2ForQuestionAnswering"])
def test_question_answering(tmp_path, name):
    model = theirs(name)
    bert = name.startswith("Bert")
    objective = "sentence_order" if bert else "causal"
    mine = ours(model, tmp_path, objective, SpanHead(D), model.qa_outputs)
    read, inputs, real_BT = batch(segments=bert)
    expected = model(**inputs)
    both_BT2 = torch.stack((expected.start_logits, expected.end_logits), dim=-1)
    found_BT2 = mine(*read, rows())
    torch.testing.assert_close(both_BT2[real_BT], found_BT2[real_BT], **TOLERANCE)
    assert (found_BT2[~real_BT] == -torch.inf).all()

    # Their loss spends probability on padding, ours does not: compared where there is none.
    full = {key: value[:1] for key, value in inputs.items()}
    target = torch.tensor([[3, 8]])
    loss = model(**full, start_positions=target[:, 0], end_positions=target[:, 1]).loss
    total, count = KINDS["span"].loss_sums(found_BT2[:1], target)
    torch.testing.assert_close(total / count, loss, **TOLERANCE)


@torch.no_grad()
def test_bert_for_multiple_choice(tmp_path):
    model = theirs("BertForMultipleChoice")
    head = ChoiceHead(D, 1, "cls", 0.1, pooler=True)
    mine = ours(model, tmp_path, "mlm_nsp", head, model.classifier)
    read, inputs, _ = batch()
    options = {name: tensor.view(2, 2, T) for name, tensor in inputs.items()}
    right_B = torch.tensor([1, 0])
    expected = model(**options, labels=right_B)
    found_BO = mine(*read, rows(torch.tensor([0, 0, 1, 1])))
    torch.testing.assert_close(expected.logits, found_BO, **TOLERANCE)
    total, count = KINDS["choice"].loss_sums(found_BO, right_B)
    torch.testing.assert_close(total / count, expected.loss, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["GPT2ForSequenceClassification", "OpenAIGPTForSequenceClassification"]
)
def test_gpt_for_sequence_classification_reads_the_last_real_token(tmp_path, name):
    model = theirs(name, num_labels=3)
    mine = ours(model, tmp_path, "causal", SequenceHead(D, 3, "last", 0.1), model.score)
    assert model.score.bias is None
    read, inputs, _ = batch(segments=False)
    torch.testing.assert_close(model(**inputs).logits, mine(*read, rows()), **TOLERANCE)


@torch.no_grad()
def test_the_states_of_every_layer_are_theirs(tmp_path):
    """What a mix of layers reads: embeddings first, and after the last norm."""
    for name, objective in (("BertModel", "mlm"), ("GPT2Model", "causal")):
        model = theirs(name)
        model.save_pretrained(tmp_path / name)
        config, state = load_model(tmp_path / name)
        encoder = config.encoder(config.objective(objective), V, dropout=0.0).eval()
        encoder.load(state)
        (ids_BT, segments_BT), inputs, real_BT = batch(segments=name == "BertModel")
        expected = model(**inputs, output_hidden_states=True).hidden_states
        layers = encoder.layers(ids_BT, segments_BT, LENGTHS)
        assert len(layers) == len(expected) == 3
        for mine_BTD, theirs_BTD in itertools.zip_longest(layers, expected):
            torch.testing.assert_close(mine_BTD[real_BT], theirs_BTD[real_BT], **TOLERANCE)
