"""ELMo's language models; its layers against equations are in tests/reference."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact, finish
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, PretrainedBody, TaskData, TaskModel, describe, restore
from rungwise.finetune.loop import build as build_task_model
from rungwise.instances.batch import CausalBatch
from rungwise.models.families.elmo import Elmo, ElmoConfig, ElmoForPretraining, ProjectedLstm
from rungwise.models.losses.objectives import BILM
from rungwise.models.trained.capabilities import Encoder, ReadsSpelling
from rungwise.tasks.kinds.heads import Rows
from rungwise.tokenizer import token_bytes
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, WordPieceConfig
from rungwise.training.fit_config import FitConfig
from tests.conftest import SPECIAL_IDS, made_up_sentences
from tests.small_models import shaken
from tests.summaries import made_of
from tests.toy_tasks import INFO
from tests.training_runs import VOCAB, config, kill_and_resume, make_instances, weights

V, B, T = 31, 3, 7
END = SPECIAL_IDS.end
assert END is not None
TINY = ElmoConfig(
    hidden_size=6,
    cell_size=9,
    filters=[(1, 4), (2, 5)],
    character_size=3,
    max_characters=6,
    num_highways=1,
)


def tokens_of(count: int) -> list[bytes]:
    """So many tokens, all written differently; the one between documents has no say."""
    return [bytes([97 + index % 26, 65 + index // 26]) for index in range(count)]


def built(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = TINY.model_copy(update=changes).build(V, BILM)
    assert isinstance(model, ElmoForPretraining)
    assert END is not None
    model.elmo.spell(tokens_of(V), END)
    return shaken(model, 0.3)


def batch_of(lengths: list[int]) -> CausalBatch:
    torch.manual_seed(1)
    stream_BU = torch.randint(V, (len(lengths), max(lengths) + 1))
    weights_BT = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).float()
    return CausalBatch(stream_BU[:, :-1], stream_BU[:, 1:], weights_BT)


def test_tokens_are_written_in_the_symbols_of_the_release() -> None:
    encoder = TINY.encoder(BILM, 3, 0.0, new_tokens=3)
    assert isinstance(encoder.body, ReadsSpelling)
    encoder.body.spell([b"ab", b"</s>", b"a long one"], end=1)
    begin, end, word, close, fill = 256, 257, 258, 259, 260
    assert encoder.word_table().tolist() == [
        [word, 97, 98, close, fill, fill],
        [word, end, begin, close, fill, fill],  # one text ends, another begins
        [word, 97, 32, 108, 111, close],  # cut to four bytes
        [word, begin, close, fill, fill, fill],
        [word, end, begin, close, fill, fill],
        [word, end, close, fill, fill, fill],
    ]


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    sentences = [s for seed in range(30) for s in made_up_sentences(seed, 4)]
    text = "The café\n\treads naïve 日本語 🙂 — twice."
    pieces = train(ByteBpeConfig(vocab_size=300, min_frequency=1), sentences)
    written = token_bytes(pieces)
    assert b"".join(written[index] for index in pieces.encode(text).ids) == text.encode()
    assert b"[SEP]" in written
    words = train(WordPieceConfig(vocab_size=100, min_frequency=1), sentences)
    assert token_bytes(words) == [
        (words.id_to_token(index) or "").encode() for index in range(words.get_vocab_size())
    ]


def layer(clip: float) -> ProjectedLstm:
    torch.manual_seed(3)
    sizes = {"hidden_size": 4, "cell_size": 8, "cell_clip": clip, "projection_clip": clip}
    return shaken(ProjectedLstm(TINY.model_copy(update=sizes)), 0.4)


def plain(of: ProjectedLstm, x_BTD: Tensor, state_BS: Tensor) -> Tensor:
    """The same, token by token and gate by gate."""
    h_BP, c_BH = state_BS.split((4, 8), dim=1)
    outputs = []
    for x_BD in x_BTD.unbind(1):
        gates_BG = functional.linear(x_BD, of.input_weight, of.bias) + h_BP @ of.state_weight.T
        into, keep, out, new = gates_BG.chunk(4, dim=1)
        c_BH = keep.sigmoid() * c_BH + into.sigmoid() * new.tanh()
        c_BH = c_BH.clamp(-of.cell_clip, of.cell_clip)
        h_BP = (out.sigmoid() * c_BH.tanh()) @ of.projection.T
        h_BP = h_BP.clamp(-of.projection_clip, of.projection_clip)
        outputs.append(h_BP)
    return torch.stack(outputs, dim=1)


def gradients(of: nn.Module, output: Tensor, x_BTD: Tensor) -> list[Tensor]:
    torch.manual_seed(4)
    wanted = [x_BTD, *of.parameters()]
    return list(torch.autograd.grad((output * torch.randn(output.shape)).sum(), wanted))


@pytest.mark.parametrize("clip", [1e6, 0.3])
def test_the_layer_is_a_plain_loop_and_so_are_its_gradients(clip: float) -> None:
    of, x_BTD, state_BS = layer(clip), torch.randn(B, T, 4, requires_grad=True), torch.randn(B, 12)
    ours, after_BS = of(x_BTD, state_BS)
    expected = plain(of, x_BTD, state_BS)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(after_BS[:, :4], expected[:, -1])
    if clip < 1:  # some are cut, and some are not
        assert 0 < (ours.abs() == torch.tensor(clip)).float().mean() < 1
        assert 0 < (after_BS[:, 4:].abs() == torch.tensor(clip)).float().mean() < 1
    for one, other in zip(gradients(of, ours, x_BTD), gradients(of, expected, x_BTD), strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_a_text_read_backwards_by_the_model_turned_around_has_the_same_loss() -> None:
    model, batch = built(), batch_of([7, 4, 1])
    sums = BILM(model, dataclasses.replace(batch, state=torch.zeros(B, *model.state_shape)))
    turned = built()
    turned.elmo.left_to_right, turned.elmo.right_to_left = (
        turned.elmo.right_to_left,
        turned.elmo.left_to_right,
    )
    total, one_way = 0.0, 0.0
    for row, length in enumerate((7, 4, 1)):
        text = torch.cat((batch.ids[row, :1], batch.targets[row, :length]))
        for of, tokens in ((model, text), (turned, text.flip(0))):
            logits = of.logits(tokens[None, :-1])[0]
            one_way = functional.cross_entropy(logits, tokens[1:], reduction="sum").item()
            total += one_way
    assert sums.total.item() == pytest.approx(total, rel=1e-5)
    assert sums.count.tolist() == [2 * (7 + 4 + 1)]


@torch.no_grad()
def test_from_the_left_a_block_goes_on_and_from_the_right_it_begins_anew() -> None:
    model, batch = built(), batch_of([T] * B)
    zero = torch.zeros(B, *model.state_shape)
    total, state = 0.0, zero
    for part in (slice(0, 3), slice(3, T)):
        ids, targets = batch.ids[:, part], batch.targets[:, part]
        rows = CausalBatch(ids, targets, batch.weights[:, part], state=state)
        one, _, state = model(rows)
        anew = functional.cross_entropy(
            model.logits(ids).flatten(0, 1), targets.flatten(), reduction="sum"
        )
        right, _, _ = model(replace(rows, state=zero))
        total += one.item() - (right.item() - anew.item())  # what is left is from the left
    whole = functional.cross_entropy(
        model.logits(batch.ids).flatten(0, 1), batch.targets.flatten(), reduction="sum"
    )
    assert total == pytest.approx(whole.item(), rel=1e-5)
    _, _, end = model(replace(batch, state=zero))
    torch.testing.assert_close(state, end)


def test_operations_are_those_that_pytorch_counts() -> None:
    """Every token stands once, so none is spared the CNN; the loss is tested elsewhere."""
    vocab_size = B * (T + 1)
    elmo = Elmo(TINY, vocab_size)
    stream_BU = torch.randperm(vocab_size).view(B, T + 1)
    with FlopCounterMode(display=False) as counter:
        tokens_BUD = elmo.token_embedding(stream_BU)
        left, _ = elmo.read_left(tokens_BUD[:, :-1], None)
        right = elmo.read_right(tokens_BUD[:, 1:], None)
        (left[-1] + right[-1]).sum().backward()
    F, C, K, D, H = 9, 6, 3, 6, 9
    cnn = K * (1 * 4 * C + 2 * 5 * (C - 1)) + 2 * F * F + F * D
    lstms, output = 2 * 2 * 9 * H * D, 2 * D * vocab_size
    first = 2 * 2 * 2 * B * 4 * H * D  # the state before a block has no gradient
    assert counter.get_total_flops() == 6 * (B * T * lstms + B * (T + 1) * cnn) - first
    assert TINY.flops_per_token(vocab_size, T, BILM) == 6 * (cnn + lstms + output)


def test_its_encoder_reads_both_sides_and_filters_fit_into_a_token() -> None:
    encoder = TINY.encoder(BILM, V, 0.0, new_tokens=3)
    assert isinstance(encoder, Encoder)
    assert not encoder.causal
    assert len(encoder.depth()) == encoder.num_layers + 1 == 3
    with pytest.raises(ConfigError, match=r"width of 9, but max_characters is 6"):
        validate(ElmoConfig, {"max_characters": 6, "filters": [[9, 1]]})


@pytest.mark.parametrize("initialisation", ["pretrained", "random"])
def test_a_task_knows_how_tokens_are_written(initialisation: str) -> None:
    pretrained = built().state_dict()
    words = Tokenizer(WordLevel())
    data = TaskData(INFO["classification"], {}, PretrainedBody(TINY, BILM, V), pretrained, words)
    adaptation = {"kind": "features", "layer_norm": True}
    settings = FinetuneConfig.model_validate(
        {"adaptation": adaptation, "pooling": "mean", "initialisation": initialisation}
    )
    model = build_task_model(settings, data).eval()
    name = "elmo.token_embedding.characters"
    assert torch.equal(model.encoder.word_table()[:V], pretrained[name])
    learnt = torch.equal(
        model.encoder.body.token_embedding.projection.weight,
        pretrained["elmo.token_embedding.projection.weight"],
    )
    assert learnt == (initialisation == "pretrained")

    ids_BT = torch.randint(V + 3, (2, 6))
    again: TaskModel = restore(json.loads(json.dumps(describe(model))), model.state_dict())
    rows = Rows(None, torch.arange(2), 2)
    torch.testing.assert_close(again(ids_BT, None, rows), model(ids_BT, None, rows))


SMALL = TINY.model_copy(update={"hidden_size": 12, "cell_size": 24})


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Of the made-up language; a number is how a token is written."""
    root = Folder.at(tmp_path_factory.mktemp("root"))
    record = {"summary": {"headline": ""}, "label": "made", "finished": ""}
    before: dict[str, Any] = {}
    for stage in ("tokenizer", "tokens"):
        folder = root / stage / f"made-{stage}"
        if stage == "tokenizer":
            words = {f"{index}": index for index in range(VOCAB)}
            text = Tokenizer(WordLevel(words, unk_token="1")).to_str()
            folder.write_bytes("tokenizer.json", text.encode())
        made = finish(folder, record | {"stage": stage, "fingerprint": stage, "inputs": before}, {})
        before = made_of(**{stage: made})
    folder = root / "instances" / "made-instances"
    made = make_instances(Path(folder.uri), "causal", documents=(20, 13, 26))
    return dataclasses.replace(made, record=made.record | {"inputs": before})


def test_a_killed_run_ends_with_the_same_bits(instances: Artifact, tmp_path: Path) -> None:
    pretrain = config("causal", **{"pretrain.global_batch_size": 10}).pretrain
    settings = FitConfig(SMALL, pretrain.model_copy(update={"objective": "bilm"}))
    progress = kill_and_resume(settings, instances, tmp_path, (14,), micro_batch_size=10)
    assert progress.attempts[-1]["step"] in (5, 10)
    assert progress.history[0]["loss"] == pytest.approx(math.log(VOCAB), abs=0.3)
    assert progress.validation[-1]["loss"] < progress.validation[0]["loss"] - 0.05
    table = weights(tmp_path / "cut")["elmo.token_embedding.characters"]
    assert table.shape == (VOCAB, 6)
    assert table[42].tolist() == [258, ord("4"), ord("2"), 259, 260, 260]
    assert table[END].tolist() == [258, 257, 256, 259, 260, 260]
