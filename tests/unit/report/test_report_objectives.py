"""A page for every objective, and its examples, against slower ways to come to the same.

B batch, T sequence, V vocabulary
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation import examples
from rungwise.evaluation.examples import Continuation, Neighbour, Neighbourhood
from rungwise.models.families.gpt import GptConfig
from rungwise.models.losses.objectives import Meaning
from rungwise.models.trained.language_models import Sampling, TwoDirectionModel
from rungwise.tokenizer import ids_after_blank, load_tokenizer
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, WordConfig, WordPieceConfig
from rungwise.training.pretrained import load_encoder, load_model
from rungwise.training.summary import PretrainSummary
from tests.conftest import made_up_sentences
from tests.report_pages import built, changed_run, check_self_contained, csv_rows, written_page
from tests.small_models import KINDS as OBJECTIVES
from tests.small_models import objective_of, small_config
from tests.toy_rungs import Table

END = 3


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return built("causal", tmp_path_factory.mktemp("causal"))


def opened(made: dict[str, Artifact]) -> tuple[Any, Tokenizer]:
    return load_model(made["pretrain"]), load_tokenizer(made["tokenizer"].folder)


def test_given_weights_did_not_begin_untrained(causal: dict[str, Artifact], tmp_path: Path) -> None:
    """Those of the test below did."""
    pretrain = causal["pretrain"]
    inputs = pretrain.record["inputs"] | {"initial": {"stage": "initial", "fingerprint": "0f"}}
    given = dataclasses.replace(pretrain, record=pretrain.record | {"inputs": inputs})
    page, _ = written_page(causal | {"pretrain": given}, tmp_path, continuations=0)
    assert "Before the first step" not in page.words


# The objective of each is that of a network in the fast run, and its page the same.
SLOW = {"left_to_right", "modern_left_to_right", "llama", "mlm"}
MORE = ("replaced_tokens", "causal_and_masked", "span_denoising", "permuted")


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
        for name in (*OBJECTIVES, *MORE)
    ],
)
def test_every_objective_has_a_page_with_its_own_numbers(objective: str, tmp_path: Path) -> None:
    made, trained_on = built(objective, tmp_path), objective_of(objective)
    terms, model = trained_on.tokens, small_config(objective)
    page, summary = written_page(made, tmp_path / "page", fill_in_examples=3, continuations=2)
    masks = trained_on.masks
    sections = {"result", "loss", "speed", "origin"}
    if objective != "span_denoising":  # it writes any number of tokens for a blank
        sections |= {"blanks"} if masks or objective == "bidirectional" else {"continuations"}
    assert page.ids == sections
    check_self_contained(page)
    assert summary.headline.startswith(f"{model.page_name(trained_on)} guesses 23.4% of ")
    assert "The model learnt nothing yet: its loss of 5.48 is 0.98 nats" in summary.headline
    for words in (
        f"Validation {terms.name} loss 5.48",
        "23.4%",
        "123.4",
        "Before the first step",
        model.page_name(trained_on),
    ):
        assert words in page.words, words
    assert ("2.345" in page.words) == trained_on.is_code_length
    rows = csv_rows(tmp_path / "page" / "validation.csv")
    assert [float(row[terms.loss_key]) for row in rows] == [5.678, 5.578, 5.478]
    alternatives = (tmp_path / "page" / "report.html").read_text("utf-8").count(' alt="')
    assert alternatives == sum(load.startswith("data:image") for load in page.loads)


def test_the_page_of_a_pretraining_says_what_the_record_says(tmp_path: Path) -> None:
    made = built("causal", tmp_path)
    run = PretrainSummary.of(made["pretrain"]).gradient
    assert run is not None
    costs = {"price_per_hour": 36.0, "cost": 0.025, "checkpoints_failed": 2}
    made["pretrain"] = changed_run(
        made["pretrain"],
        attempts=[
            {"step": 0, "workers": 3},
            {"step": 12, "workers": 1},
            {"step": 15, "workers": 2},
        ],
        lengths=[
            {"from_step": 0, "sequence_length": 128},
            {"from_step": 18, "sequence_length": 512},
        ],
        skipped_steps=list(range(1, 16)),
        parallel="fsdp",
        bfloat16=True,
        throughput=run.throughput | costs,
    )
    page, _ = written_page(made, tmp_path / "page")
    for words in (
        "without padding, worker start-up and validation",
        "(MFU) 40.0% of 25.0 GFLOP per second",
        "waiting for data 1.23%",
        "stalled on checkpoints 0.20%",
        "saving a checkpoint 0.250 s",
        "stalled for 0.005 s",
        "checkpoints not written 2",
        "cost 0.025 2.5 s in the loop, validation included, at 36.00 an hour",
        "cost per million tokens 12.50",  # 0.025 over 2,000 tokens
        "2 workers (CPU, 1 thread each), each with a shard of the model (FSDP2), bfloat16",
        "not finite: 15 (step 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 3 more)",
        run.data_hash,
        run.flops_rule,
        "From step 18 sequences have 512 tokens",
        "resumed from the checkpoint of step 12 with 1 worker.",
        "resumed from the checkpoint of step 15 with 2 workers.",
    ):
        assert words.replace(" ", "") in page.words.replace(" ", "").replace("\xa0", ""), words


def test_a_model_reads_rows_as_long_as_those_it_was_trained_on(causal: dict[str, Artifact]) -> None:
    """Positions behind them were never learnt, though the table has them."""
    lengths = [{"from_step": 0, "sequence_length": 8}, {"from_step": 18, "sequence_length": 16}]
    shorter = changed_run(causal["pretrain"], lengths=lengths)
    model: Any = load_model(shorter)
    whole: Any = load_model(causal["pretrain"])
    assert model.max_length == 16 < whole.max_length
    (scores,) = model.log_probabilities([list(range(5, 29))])  # two windows of 16 and less
    (expected,) = whole.log_probabilities([list(range(5, 21))])
    np.testing.assert_allclose(scores[:16], expected, rtol=1e-5)
    encoder = load_encoder(shorter)
    assert encoder is not None
    assert encoder.max_length == 16


def test_a_loss_that_is_no_probability_of_text_is_held_against_none(
    causal: dict[str, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = dataclasses.replace(objective_of("causal"), meaning=Meaning.ANSWERS)
    monkeypatch.setattr(GptConfig, "objective", lambda *_: objective)
    page, _ = written_page(causal, tmp_path, continuations=0)
    assert "no probability of text" in page.words
    assert not [word for word in ("equally likely", "nigram", "perplexity") if word in page.words]


def test_a_model_that_was_fitted_without_steps_has_a_page_without_curves(tmp_path: Path) -> None:
    made = built("causal", tmp_path)
    counted = PretrainSummary.of(made["pretrain"]).model_copy(
        update={"fitting": "counts", "gradient": None}
    )
    made["pretrain"] = counted.replace_summary(made["pretrain"])
    page, summary = written_page(made, tmp_path / "page")
    assert page.ids == {"result", "continuations", "origin"}
    assert not {"loss.png", "training.csv"} & set(summary.show)
    assert "fitted on 2.0 k tokens" in page.words.replace("\xa0", " ")
    assert "2.345" in page.words


@torch.no_grad()
@pytest.mark.parametrize("objective", ["causal", "left_to_right"])
def test_the_likeliest_continuation_is_that_of_a_plain_loop(objective: str, tmp_path: Path) -> None:
    model, tokenizer = opened(built(objective, tmp_path))
    texts = [" ".join(made_up_sentences(seed, 1)[0].split()[: 2 + seed]) for seed in range(4)]
    likeliest = Sampling(length=8, temperature=0)
    together = examples.continue_texts(model, tokenizer, texts, likeliest)
    for text, added in zip(texts, together, strict=True):
        ids = [END, *tokenizer.encode(text, add_special_tokens=False).ids]
        for _ in range(likeliest.length):
            window = torch.tensor([ids[-model.max_length :]])
            ids.append(int(model.next_logits(window)[0, -1].argmax()))
            if ids[-1] == END:
                break
        whole = tokenizer.decode([t for t in ids if t != END], skip_special_tokens=False)
        assert (text + added).replace(" ", "").lower() == whole.replace(" ", "").lower()
        # Rows that are longer or shorter beside it change nothing, nor does a second time.
        assert examples.continue_texts(model, tokenizer, [text], likeliest) == [added]
    drawn = [examples.continue_texts(model, tokenizer, texts, Sampling(seed=n)) for n in (2, 3)]
    assert drawn[0] != drawn[1]


def test_beginnings_follow_a_rule_and_are_text_of_one_document(causal: dict[str, Artifact]) -> None:
    model, tokenizer = opened(causal)

    def continued(number: int, seed: int) -> list[Continuation]:
        texts = examples.draw_texts(causal["corpus"], seed)
        return examples.continue_beginnings(model, tokenizer, texts, number, seed)

    six = continued(6, 0)
    assert six[:2] == continued(2, 0)
    assert six != continued(6, 1)
    documents = [" ".join(made_up_sentences(10 + document, 4)) for document in range(10)]
    for prompt, _, truth in six:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        assert 4 <= len(ids) <= examples.LONGEST_PROMPT
        assert any(f"{prompt}{truth}" in document for document in documents)
        # The model begins with a new word, unless the cut fell where there is none.
        assert not truth[:1].isalnum()


@torch.no_grad()
def test_a_bidirectional_model_guesses_without_seeing_the_answer(tmp_path: Path) -> None:
    made = built("bidirectional", tmp_path)
    model, tokenizer = opened(made)
    assert isinstance(model, TwoDirectionModel)
    gaps = examples.fill_gaps(model, tokenizer, examples.draw_texts(made["corpus"], 0), 5, 0)
    assert len(gaps) == 5
    for gap in gaps:
        blank = " " if gap.before else ""
        before, whole = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in (gap.before, f"{gap.before}{blank}{gap.answer}{gap.after}")
        )
        row = torch.tensor([[END, *whole, END]])  # with the answer in its place
        place, length = torch.tensor([1 + len(before)]), torch.tensor([row.shape[1]])
        logits = model.blank_logits(row, torch.zeros_like(row), length, place)
        shares = torch.softmax(logits[0].float(), dim=-1)
        assert gap.probability == pytest.approx(float(shares[whole[len(before)]]), rel=1e-5)


@pytest.mark.parametrize("config", [WordPieceConfig, ByteBpeConfig, WordConfig])
def test_words_are_found_in_every_spelling(config: Any) -> None:
    sentences = [s for seed in range(40) for s in made_up_sentences(seed, 3)]
    tokenizer = train(config(vocab_size=600), sentences)
    found = Neighbourhood(Table(np.ones((tokenizer.get_vocab_size(), 2))), tokenizer).words
    assert all(word.isalpha() and len(word) >= 3 for word in found)
    written = {word for s in sentences for word in s.strip(".").split()}
    pieces = dict(zip(written, ids_after_blank(tokenizer, [*written]), strict=True))
    single = {tokenizer.decode(ids).strip() for ids in pieces.values() if len(ids) == 1}
    assert {word for word in single if len(word) >= 3 and word.isalpha()} <= {*found}


def test_a_unigram_word_begins_with_its_blank() -> None:
    pieces = [("[UNK]", 0.0), ("▁read", -1.0), ("read", -1.0), ("▁on", -1.0), (".", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    near = Neighbourhood(Table(np.ones((5, 2))), tokenizer)
    assert near.by_id == {1: "read"}


def test_neighbours_are_of_words_in_held_out_text(causal: dict[str, Artifact]) -> None:
    tokenizer = load_tokenizer(causal["tokenizer"].folder)
    table = Table(np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 4)))

    def draw(number: int) -> dict[str, list[Neighbour]]:
        texts = examples.draw_texts(causal["corpus"], 0)
        return examples.draw_neighbours(table, tokenizer, texts, number, 0)

    drawn, near = draw(4), Neighbourhood(table, tokenizer)
    assert list(drawn)[:2] == list(draw(2))
    assert draw(0) == {}
    text = " ".join(s for document in range(10) for s in made_up_sentences(10 + document, 4))
    for word, neighbours in drawn.items():
        assert word in text
        assert neighbours == near.nearest(word, 6)
