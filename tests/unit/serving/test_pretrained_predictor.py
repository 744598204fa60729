"""Answers of a pretrained model: as transformers has them, and to what is typed."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save

from rungwise.__main__ import main
from rungwise.core.errors import DataError, UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.models.config import model_config
from rungwise.models.word_vectors.vector_family import WordVectorModel
from rungwise.pipeline.loading import find_model
from rungwise.serving.export import write_pretrained
from rungwise.serving.predictor import PretrainedPredictor, describe_model, load_predictor
from rungwise.tasks.kinds.examples import Text
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import WordConfig
from rungwise.tokenizer.token_stage import TokensSummary
from tests.conftest import Cli, made_up_sentences
from tests.report_pages import LENGTH, Recorder, built, pretrain_summary, tokenizer_summary

TEXTS = [Text(str(n), text) for n, text in enumerate([*made_up_sentences(5, 3), "", "two words"])]


def answered(
    pretrain: Artifact, tokenizer: Artifact, copy: Path, texts: list[Text]
) -> list[dict[str, Any]]:
    """The answers to all texts, which a copy of the files without the artifact gives too."""
    predictor = load_predictor(pretrain.folder)
    assert isinstance(predictor, PretrainedPredictor)
    copy.mkdir()
    (copy / "model.json").write_text(json.dumps(describe_model(pretrain)))
    for source, name in ((pretrain, "model.safetensors"), (tokenizer, "tokenizer.json")):
        (copy / name).write_bytes(source.folder.read_bytes(name))
    said = predictor(texts)
    with pytest.raises(DataError, match=r"has no artifact\.json"):
        load_predictor(Folder.at(copy))
    artifacts.finish(Folder.at(copy), {"stage": "served", "fingerprint": "abc"}, {})
    assert load_predictor(Folder.at(copy))(texts) == said
    with pytest.raises(UserError, match="is a pretrained model; give its artifact"):
        find_model(str(copy), str(copy.parent))
    [alone] = predictor(texts[2:3])
    assert alone.keys() == said[2].keys()
    for key, value in alone.items():
        expected = said[2][key]  # the nearest are words
        assert value == (expected if key == "nearest" else pytest.approx(expected, rel=1e-5))
    return said


@pytest.mark.parametrize("objective", ["mlm", "left_to_right", "causal"])
def test_states_and_probabilities_are_those_of_the_export(objective: str, tmp_path: Path) -> None:
    made = built(objective, tmp_path / "root")
    said = answered(made["pretrain"], made["tokenizer"], tmp_path / "copy", TEXTS)
    write_pretrained(made["pretrain"], Folder.at(tmp_path / "out"))
    is_encoder = objective == "mlm"
    auto = transformers.AutoModel if is_encoder else transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text, own in zip(TEXTS, said, strict=True):
        ids = tokenizer.encode(text.text, add_special_tokens=False)
        with torch.no_grad():
            if is_encoder:
                row = [tokenizer.cls_token_id, *ids[: LENGTH - 2], tokenizer.sep_token_id]
                states_TD = theirs(torch.tensor([row])).last_hidden_state[0]
                np.testing.assert_allclose(own["vector"], states_TD.mean(dim=0), atol=1e-5)
                continue
            end = tokenizer.convert_tokens_to_ids("[SEP]")
            end = tokenizer.eos_token_id if end in (None, tokenizer.unk_token_id) else end
            if len(ids) + 1 > LENGTH:
                continue  # read in windows
            log_TV = theirs(torch.tensor([[end, *ids]])).logits[0].log_softmax(dim=-1)
        targets = [*ids, end]
        assert own["tokens"] == len(targets)
        expected = sum(float(log_TV[place, token]) for place, token in enumerate(targets))
        assert own["log_probability"] == pytest.approx(expected, rel=1e-4)


def test_a_table_gives_words_their_neighbours(tmp_path: Path) -> None:
    recorder = Recorder(Folder.at(tmp_path / "root"))
    tokenizer = train(WordConfig(vocab_size=80, min_frequency=1), made_up_sentences(1, 200))
    made = recorder.add("tokenizer", {}, tokenizer_summary(tokenizer, "word"))
    made.folder.write_bytes("tokenizer.json", tokenizer.to_str().encode())
    recorder.add("tokens", {}, TokensSummary.model_construct(headline="tokens"))
    table_VD = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 6))
    model = WordVectorModel(table_VD.astype(np.float32), table_VD.astype(np.float32))
    config = model_config({"kind": "word2vec", "size": 6})
    stage = {"model": config.model_dump(), "pretrain": {"kind": "asynchronous"}}
    summary = pretrain_summary(config, "skip_gram", {"loss": 1.0}, None)
    summary = summary.model_copy(update={"vocab_size": len(table_VD)})
    pretrain = recorder.add("pretrain", stage, summary)
    pretrain.folder.write_bytes("model.safetensors", save(model.to_tensors()))
    for one in recorder.made.values():
        artifacts.finish(one.folder, one.record, {})
    asked = [Text(word, word) for word in ("worker", *words()[:2])]
    own, *_ = answered(pretrain, made, tmp_path / "copy", asked)
    vector_D = table_VD[tokenizer.token_to_id("worker")]
    np.testing.assert_allclose(own["vector"], vector_D, rtol=1e-6)
    best = table_VD[tokenizer.token_to_id(own["nearest"][0])]
    cosine = best @ vector_D / np.linalg.norm(best) / np.linalg.norm(vector_D)
    assert own["cosines"][0] == max(own["cosines"]) == pytest.approx(cosine, rel=1e-5)
    assert len(own["nearest"]) == 10


SHARE = re.compile(r"(\S+) (\d+\.\d)%")


def words() -> list[str]:
    return made_up_sentences(1, 1)[0].split()


@pytest.mark.parametrize("objective", ["mlm", "bidirectional"])
def test_a_gap_is_filled_from_both_sides(objective: str, tmp_path: Path, cli: Cli) -> None:
    made = built(objective, tmp_path / "root")
    folder = made["pretrain"].folder.uri
    first, *_, last = words()
    line = cli("try", folder, f"{first} ___ {last}")
    shares = SHARE.findall(line)
    assert len(shares) == 5
    assert line.count("\n") == 1
    if objective == "mlm":
        write_pretrained(made["pretrain"], Folder.at(tmp_path / "out"))
        model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        row = tokenizer(f"{first} {tokenizer.mask_token} {last}", return_tensors="pt")
        place = row["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        with torch.no_grad():
            best = model(**row).logits[0, place].softmax(dim=-1).topk(5)
        assert [share for _, share in shares] == [f"{100 * p:.1f}" for p in best.values.tolist()]
        assert shares[0][0] == tokenizer.decode(best.indices[:1]).strip()
    else:
        others = " ".join(words()[1:4])
        assert cli("try", folder, f"{first} ___ {others}") != line, "what follows the gap is read"
    refused = cli("try", folder, "no gap", status=2)
    assert "expected one gap, written ___, found 'no gap'" in refused
    refused = cli("try", folder, first, "___", last, status=2)  # without quotes
    assert "expected 1 text (text), found 3; put each in quotes" in refused
    long = " ".join(words() * 50 + ["___"])
    assert "tokens, and the model reads" in cli("try", folder, long, status=2)


def test_a_continuation_is_theirs(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built("causal", tmp_path / "root")
    folder, beginning = made["pretrain"].folder.uri, " ".join(words()[:2])
    write_pretrained(made["pretrain"], Folder.at(tmp_path / "out"))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = [tokenizer.eos_token_id, *tokenizer.encode(beginning, add_special_tokens=False)]
    with torch.no_grad():
        whole = model.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)[0]
    expected = tokenizer.decode(whole, skip_special_tokens=True).strip()

    def said(*flags: str) -> str:
        return cli("try", folder, beginning, *flags).strip()

    assert said("--temperature=0", "--length=4") == expected
    assert said("--top-k=1", "--length=4") == expected
    assert len({said(f"--seed={seed}") for seed in range(3)}) == 3
    (tmp_path / "in.txt").write_text(f"{beginning}\n" * 2)
    asked = ["predict", folder, "--input", str(tmp_path / "in.txt"), "--length=4", "--top-k=1"]
    for line in cli(*asked).splitlines():
        assert beginning + json.loads(line)["continuation"] == expected
    refused = cli("try", folder, beginning, "--temperature=-1", status=2)
    assert "temperature: expected 0 or more, found -1.0" in refused
    typed = b"se\xf1or"  # as a terminal in Latin-1 sends it
    assert "holds half of a character" in cli("try", folder, os.fsdecode(typed), status=2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed + b"\n"), "utf-8"))
    assert main(["try", folder]) == 0
    assert "holds half of a character" in capsys.readouterr().err


def test_predict_fills_gaps_as_try_does(tmp_path: Path, cli: Cli) -> None:
    folder = built("mlm", tmp_path / "root")["pretrain"].folder.uri
    gap, plain = f"{words()[0]} ___ {words()[1]}", words()[0]
    shares = SHARE.findall(cli("try", folder, gap))
    (tmp_path / "in.txt").write_text(f"{gap}\n{plain}\n")
    asked = ["predict", folder, "--input", str(tmp_path / "in.txt")]
    filled, other = map(json.loads, cli(*asked).splitlines())
    assert [(token, f"{100 * share:.1f}") for token, share in filled["gap"].items()] == shares
    assert other.keys() == {"where", "vector"}
    assert "does not write from left to right" in cli(*asked, "--length=3", status=2)


def test_lines_are_asked_for_until_the_input_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built("mlm", tmp_path / "root")["pretrain"].folder.uri
    gap = f"{words()[0]} ___"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{gap}\nno gap\n{gap}\n"))
    assert main(["try", folder]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first == second
    assert SHARE.match(first)
    assert err.count("expected one gap") == 1
