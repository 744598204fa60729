"""Same weights, same numbers as transformers' BertForPreTraining, float32, to 1e-5.

Every weight is random, biases and LayerNorm too, so that none can sit in the wrong place unseen.
Two conventions differ: ours has queries, keys and values in one matrix, and our NSP classes are
0 NotNext and 1 IsNext where transformers has 0 IsNext.

Shapes: B batch, T sequence, V vocabulary, M masked positions.
"""

from typing import Any

import pytest
import torch
import transformers

from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import BertConfig
from rungwise.models.losses.objectives import MLM_NSP
from rungwise.models.trained.language_models import MaskedModel
from rungwise.serving.importing import load_model

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
VOCAB_SIZE = 97
CONFIG = BertConfig(
    num_layers=3, num_heads=4, hidden_size=48, intermediate_size=96, max_position_embeddings=20
)


@pytest.fixture(scope="module")
def theirs():
    torch.set_num_threads(1)
    torch.manual_seed(23)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=CONFIG.hidden_size,
            num_hidden_layers=CONFIG.num_layers,
            num_attention_heads=CONFIG.num_heads,
            intermediate_size=CONFIG.intermediate_size,
            max_position_embeddings=CONFIG.max_position_embeddings,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    theirs.save_pretrained(folder)
    config, state = load_model(folder)
    assert config == CONFIG
    model: Any = CONFIG.masked(VOCAB_SIZE, pairs=True)
    model.load_state_dict(state)
    return model.eval()


@pytest.fixture(params=["full", "padded"])
def inputs(request):
    torch.manual_seed(24)
    B, T = 5, 18
    lengths_B = torch.tensor([18, 11, 5, 17, 1]) if request.param == "padded" else None
    real_BT = torch.ones(B, T, dtype=torch.int64)
    if lengths_B is not None:
        real_BT = (torch.arange(T) < lengths_B[:, None]).long()
    segments_BT = (torch.arange(T) > 8).long().expand(B, T)
    return torch.randint(1, VOCAB_SIZE, (B, T)), segments_BT, lengths_B, real_BT


def test_the_loss_and_its_gradient_are_the_same(ours, theirs, inputs):
    """Their loss is the mean over all that is labelled, which is our sum over our count."""
    ids_BT, segments_BT, lengths_B, real_BT = inputs
    torch.manual_seed(25)
    labels_BT = torch.full_like(ids_BT, -100)
    labels_BT[:, 0] = torch.randint(VOCAB_SIZE, (len(ids_BT),))
    labels_BT[0, 3], labels_BT[3, 16] = 7, 8
    is_next_B = torch.tensor([1, 0, 0, 1, 1])
    expected = theirs(
        input_ids=ids_BT,
        token_type_ids=segments_BT,
        attention_mask=real_BT,
        labels=labels_BT,
        next_sentence_label=1 - is_next_B,
    )
    positions_BM = torch.zeros(len(ids_BT), 3, dtype=torch.int64)
    positions_BM[0, 1], positions_BM[3, 1] = 3, 16
    weights_BM = torch.zeros(len(ids_BT), 3)
    weights_BM[:, 0] = 1.0
    weights_BM[0, 1] = weights_BM[3, 1] = 1.0
    batch = MaskedBatch(
        ids=ids_BT,
        segments=segments_BT,
        lengths=lengths_B,
        masked_positions=positions_BM,
        masked_ids=labels_BT.gather(1, positions_BM).clamp(min=0),
        masked_weights=weights_BM,
        label=is_next_B,
    )
    logits_BTV = expected.prediction_logits[real_BT == 1]
    assert logits_BTV.std() > 0.3, "logits that hardly vary prove little"
    loss = MLM_NSP(ours, batch).loss()
    torch.testing.assert_close(loss, expected.loss, **TOLERANCE)

    theirs.zero_grad()
    ours.zero_grad()
    expected.loss.backward()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    counterpart = CONFIG.counterparts()[0]
    for name, parameter in ours.named_parameters():
        gradient = counterpart.join(name, [gradients[n] for n in counterpart.list_names(name)])
        torch.testing.assert_close(
            parameter.grad, gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: n + m
        )


@torch.no_grad()
def test_words_are_scored_without_what_follows_in_them(theirs, ours):
    """PLL-word-l2r (Kauf & Ivanova 2023), one row at a time with transformers' model."""
    cls, sep, mask = 1, 2, 3
    words_of = [[1, 4, 2, 1, 3], [2, 1], [1, 2], [3, 3, 3, 3, 4, 2], [1]]
    torch.manual_seed(25)
    texts, starts = [], []
    for sizes in words_of:
        texts.append(torch.randint(4, VOCAB_SIZE, (sum(sizes),)).tolist())
        starts.append([place == 0 for size in sizes for place in range(size)])
    model = MaskedModel(ours, CONFIG.max_position_embeddings, cls, sep, mask)
    scores = model.log_probabilities_in_words(texts, starts)
    plain = model.log_probabilities(texts)
    for text, sizes, row, without in zip(texts, words_of, scores, plain, strict=True):
        expected, begin = [], 0
        for size in sizes:
            for place in range(begin, begin + size):
                hidden = [mask if place <= at < begin + size else t for at, t in enumerate(text)]
                logits = theirs(input_ids=torch.tensor([[cls, *hidden, sep]])).prediction_logits
                expected.append(logits[0, place + 1].log_softmax(dim=-1)[text[place]].item())
            begin += size
        assert row.tolist() == pytest.approx(expected, abs=1e-5)
        # The last piece of a word has nothing behind it in the word.
        last = [sum(sizes[: n + 1]) - 1 for n in range(len(sizes))]
        assert row[last].tolist() == pytest.approx(without[last].tolist(), abs=1e-5)
