"""`rungwise export`: what it writes is the artifact's own model and ids, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.numpy import save
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, PerSplit
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import CLS_ID, SEP_ID, UNK_ID
from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import MaskedOutput
from rungwise.models.families.ngram import BrownConfig, NgramConfig, read_arpa
from rungwise.models.fitting import HERE, create_arrays
from rungwise.pipeline.loading import find_built
from rungwise.serving.export import HUB_CARD, write_pretrained
from rungwise.serving.importing import FILES
from rungwise.tokenizer import CLEAN_UP, open_encoder
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import WordPieceConfig
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.pretrained import load_module
from rungwise.training.summary import PretrainSummary
from tests.conftest import SPECIAL_IDS, Cli, made_up_sentences, s3_bucket
from tests.report_pages import LENGTH, Recorder, built, tokenizer_summary

TOLERANCE: Any = {"atol": 1e-5, "rtol": 1e-5}
ODD = [
    "a worker returns the rows at once 3.",
    "  two   blanks,\ttabs\nand lines ",
    "naïve café İstanbul ǅ ﬁ",
    "中文字符 and 한국어, \U0001f9ea!",
    "a\u0301 b\u200bc \xa0d",
    "'s the model's isn't ...",
    "",
]


@torch.no_grad()
@pytest.mark.parametrize(
    ("objective", "auto"),
    [
        ("mlm_nsp", "AutoModelForPreTraining"),
        ("mlm", "AutoModelForMaskedLM"),
        ("sentence_order", "AutoModelForPreTraining"),
        ("causal", "AutoModelForCausalLM"),
        ("left_to_right", "AutoModelForCausalLM"),
    ],
)
def test_an_exported_artifact_gives_the_same_ids_and_logits_on_text(
    objective: Any, auto: str, tmp_path: Path, cli: Cli
) -> None:
    made = built(objective, tmp_path / "root")
    out = tmp_path / "an out"
    said = cli("export", made["pretrain"].folder.uri, "--to", str(out))
    assert f"{auto}.from_pretrained" in said.splitlines()[-1]
    assert sorted(path.name for path in out.iterdir()) == sorted((*FILES, HUB_CARD))
    card = ModelCard.load(out / HUB_CARD)
    assert card.data.to_dict() == {"library_name": "transformers", "tags": ["rungwise"]}
    assert f"pretrained with the objective {objective} on" in card.text
    assert "licence: not stated" in card.text
    model: Any = load_module(made["pretrain"])
    theirs, told = getattr(transformers, auto).from_pretrained(out, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    encoder = open_encoder(made["tokenizer"].folder)
    for text in ODD:
        # The exported tokenizer cleans up as the corpus was cleaned, which an artifact's need not.
        ids = encoder.encode(pa.array([CLEAN_UP.normalize_str(text)])).ids.tolist()
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
    text = ODD[0]
    inputs = {key: value[:, :LENGTH] for key, value in tokenizer(text, return_tensors="pt").items()}
    if isinstance(model, MaskedOutput):
        every = torch.arange(inputs["input_ids"].shape[1])[None]
        rows = MaskedBatch.to_predict(inputs["input_ids"], inputs["token_type_ids"], None, every)
        ours = model(rows).mlm
    else:
        ours = model.logits(inputs["input_ids"])
    outputs = theirs(**inputs)
    logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
    assert logits.std() > 0.1
    torch.testing.assert_close(logits, ours, **TOLERANCE)


def test_what_transformers_has_not_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = built("bidirectional", tmp_path / "root", {})
    with pytest.raises(ConfigError, match="a BidirectionalForPretraining has no counterpart"):
        write_pretrained(made["pretrain"], Folder.at(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def counted_run(family: NgramConfig | BrownConfig, folder: Path) -> tuple[Artifact, Any, Tokenizer]:
    recorder = Recorder(Folder.at(folder))
    sentences = [sentence for seed in range(9) for sentence in made_up_sentences(seed, 4)]
    config = WordPieceConfig(vocab_size=120, min_frequency=1)
    tokenizer = train(config, sentences)
    vocab_size = tokenizer.get_vocab_size()
    made = recorder.add("tokenizer", {}, tokenizer_summary(tokenizer, config.kind))
    made.folder.write_bytes("tokenizer.json", tokenizer.to_str().encode())
    even = PerSplit(train=1, validation=1)
    sizes = {"documents": even, "tokens": even, "text_bytes": even, "unigram_loss": 4.0}
    tokens = {"vocab_size": vocab_size, "special": SPECIAL_IDS, "files": (), "headline": "tokens"}
    recorder.add("tokens", {}, TokensSummary.model_validate(sizes | tokens))
    texts = [[*tokenizer.encode(s).ids, SEP_ID] for s in sentences]
    starts = np.cumsum([0, *(len(text) - 1 for text in texts)])
    documents = np.arange(len(texts) + 1)
    ids = np.concatenate([text[:-1] for text in texts]).astype(np.uint16)
    text = TokenisedText(ids, starts, documents, documents[:-1].astype(np.uint64))
    parts = [[family.count(text, SPECIAL_IDS)]]
    tensors = family.estimate(parts, HERE, create_arrays, vocab_size, SPECIAL_IDS)
    model = family.from_tensors(tensors, SPECIAL_IDS)
    summary = PretrainSummary.model_construct(headline="pretrain")
    stage = {"model": family.model_dump(), "pretrain": {"kind": "counts"}}
    made = recorder.add("pretrain", stage, summary)
    made.folder.write_bytes("model.safetensors", save(tensors))
    for one in recorder.made.values():
        artifacts.finish(one.folder, one.record, {})
    return made, model, tokenizer


def test_an_ngram_model_goes_to_arpa(tmp_path: Path, cli: Cli) -> None:
    """Its start and end symbols and its unknown token have the names that readers of ARPA know."""
    family = NgramConfig(order=3, fallback_discounts=(0.5, 1.0, 1.5))
    made, model, tokenizer = counted_run(family, tmp_path / "root")
    out = tmp_path / "out"
    assert "kenlm.Model" in cli("export", made.folder.uri, "--to", str(out))
    words = [str(tokenizer.id_to_token(n)) for n in range(tokenizer.get_vocab_size())]
    words[CLS_ID], words[SEP_ID], words[UNK_ID] = "<s>", "</s>", "<unk>"
    written = (out / "model.arpa").read_bytes().splitlines()
    again = read_arpa("model.arpa", written, words, SPECIAL_IDS)
    texts = [[*tokenizer.encode(s).ids, SEP_ID] for s in made_up_sentences(77, 5)]
    for scores, expected in zip(
        again.log_probabilities(texts), model.log_probabilities(texts), strict=True
    ):
        np.testing.assert_allclose(scores, expected, rtol=1e-7)
    assert "already holds model.arpa" in cli("export", made.folder.uri, "--to", str(out), status=2)


def test_classes_are_written_as_paths(tmp_path: Path, cli: Cli) -> None:
    family, out = BrownConfig(classes=7, minimum_count=2), tmp_path / "out"
    made, model, tokenizer = counted_run(family, tmp_path / "root")
    assert "paths of Brown clusters" in cli("export", made.folder.uri, "--to", str(out))
    lines = [line.split("\t") for line in (out / "paths.txt").read_text("utf-8").splitlines()]
    numbers = [tokenizer.token_to_id(word) or -1 for _, word in lines]
    assert sorted(numbers) == np.flatnonzero(model.classes < 7).tolist()
    assert [bits for bits, _ in lines] == [model.paths[model.classes[n]] for n in numbers]
    assert len({bits for bits, _ in lines}) == 7


def test_mistakes_are_named(tmp_path: Path, cli: Cli) -> None:
    made = built("causal", tmp_path / "root")
    pretrain = str(tmp_path / "root" / "pretrain")
    assert find_built(pretrain, "artifacts").fingerprint == made["pretrain"].fingerprint
    assert find_built(made["pretrain"].folder.uri, "artifacts").folder == made["pretrain"].folder
    for place, overrides, message in (
        (str(tmp_path), [], "no artifact here; expected a recipe"),
        (pretrain, ["model.num_layers=2"], "keys can be changed of a recipe"),
    ):
        with pytest.raises(UserError, match=message):
            find_built(place, "artifacts", overrides)
    out = tmp_path / "out"
    assert "AutoModelForCausalLM" in cli("export", pretrain, "--to", str(out))
    (out / "config.json").unlink()
    message = cli("export", pretrain, "--to", str(out), status=2)
    names = "model.safetensors, tokenizer.json, tokenizer_config.json"
    assert f"already holds README.md, {names}" in message
    assert not (out / "config.json").exists()
    made["tokenizer"].folder.remove()
    with pytest.raises(DataError, match=r"the tokenizer that .* was built from"):
        write_pretrained(made["pretrain"], Folder.at(tmp_path / "other"))


def test_from_one_bucket_to_another(tmp_path: Path, cli: Cli) -> None:
    made = built("causal", tmp_path / "root")
    with s3_bucket("models") as bucket:
        store = Folder.at(bucket)
        for stage, artifact in made.items():
            if stage == "corpus":
                continue
            for name in artifact.folder.names():
                there = store / "artifacts" / stage / artifact.folder.uri.rpartition("/")[2]
                there.copy_file(Path(artifact.folder.path(name)), name)
        said = cli("export", f"{bucket}/artifacts/pretrain", "--to", f"{bucket}/out")
        assert (store / "out").names() == sorted((*FILES, HUB_CARD))
        assert "the card lacks what the model was trained on: " in said
        config = json.loads((store / "out").read_bytes("config.json"))
        assert config["model_type"] == "gpt2"
