"""Weights of transformers to begin a pretraining with, and words added to their vocabulary."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.models.family import Family
from rungwise.models.losses.objectives import Objective
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_stages
from rungwise.serving.export import export_model
from rungwise.serving.importing import INITIAL_WEIGHTS, import_weights
from rungwise.training.config import FitConfig, GradientConfig, GradientFit
from rungwise.training.initial import ImportConfig, check_initial, compare_tensors, load_initial
from tests import toy_tokenizers
from tests.conftest import small_recipe
from tests.summaries import made_of
from tests.unit.training.test_continued_weights import instances_of, kept

TEXT = ["the cat sat on the mat", "a cat and a mat sat", "on and on the cats sat"]


def wordpiece() -> Tokenizer:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    return toy_tokenizers.wordpiece([*TEXT, alphabet, " ".join(alphabet)], 70)


def byte_bpe() -> Tokenizer:
    """As ModernBERT's: its special tokens stand behind the vocabulary, and not in it."""
    tokenizer = toy_tokenizers.byte_bpe(TEXT)
    names = [*toy_tokenizers.SPECIAL, "<|endoftext|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
FOLDERS: dict[str, tuple[Any, Any, Any]] = {
    "bert": (wordpiece, transformers.BertForPreTraining, transformers.BertConfig),
    "modern_bert": (byte_bpe, transformers.ModernBertForMaskedLM, transformers.ModernBertConfig),
    "gpt": (byte_bpe, transformers.GPT2LMHeadModel, transformers.GPT2Config),
    "llama": (byte_bpe, transformers.LlamaForCausalLM, transformers.LlamaConfig),
}


def folder_of(kind: str, folder: Path) -> Path:
    """A random model of transformers with its tokenizer; five rows only pad the vocabulary."""
    tokenizer, model, config = FOLDERS[kind]
    made = tokenizer()
    sizes = {"vocab_size": made.get_vocab_size() + (5 if kind != "bert" else 0), **SIZES}
    if kind == "gpt":
        sizes |= {"n_positions": sizes.pop("max_position_embeddings")}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    torch.manual_seed(3)
    model(config(**sizes, **ids)).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return folder


def imported(kind: str, tmp_path: Path) -> tuple[Family, Objective, Artifact, Tokenizer]:
    """Family and objective of a run that begins with an imported model, the artifact of the initial
    stage, and the tokenizer that it read."""
    folder = folder_of(kind, tmp_path / "theirs")
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (tmp_path / "tokenizer").mkdir()
    words.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    tokenizer = Artifact("tokenizer", "t" * 12, Folder.at(tmp_path / "tokenizer"), {})
    output = tmp_path / "initial" / "made-iiiiiiiiiiii"
    output.mkdir(parents=True)
    context = Context(ComputeConfig(), SilentReporter())
    config = ImportConfig(path=str(folder))
    summary = import_weights(config, {"tokenizer": tokenizer}, Folder.at(output), context)
    inputs = made_of(tokenizer=tokenizer)
    made = {"summary": summary.model_dump(mode="json"), "inputs": inputs, "config": {}}
    model = summary.model
    return model, model.objectives[0], kept(tmp_path, "initial", "i" * 12, made), words


def fit(model: Any, objective: str) -> GradientFit:
    return FitConfig(model, GradientConfig(steps=1, objective=objective))


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_run_begins_with_their_logits(kind: str, tmp_path: Path) -> None:
    model, objective, artifact, words = imported(kind, tmp_path)
    module: Any = model.build(words.get_vocab_size(), objective)
    assert load_initial(module, artifact) == {}
    assert compare_tensors(module, artifact).fresh == ()
    # Out again: their library has the same logits.
    words.save(str(tmp_path / "tokenizer.json"))
    export_model(module.eval(), model, tmp_path / "tokenizer.json", tmp_path / "out")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = auto.encode("the cat and the endocarditis", add_special_tokens=False)
    assert ids == words.encode("the cat and the endocarditis").ids
    theirs = FOLDERS[kind][1].from_pretrained(tmp_path / "theirs").eval()
    again = FOLDERS[kind][1].from_pretrained(tmp_path / "out").eval()
    expected_BTV, found_BTV = (
        output.prediction_logits if kind == "bert" else output.logits
        for output in (model(input_ids=torch.tensor([ids])) for model in (theirs, again))
    )
    size = words.get_vocab_size()
    torch.testing.assert_close(
        found_BTV[..., :size], expected_BTV[..., :size], atol=1e-5, rtol=1e-5
    )


def test_heads_that_the_folder_lacks_are_drawn_and_others_carried(tmp_path: Path) -> None:
    model, _, artifact, words = imported("bert", tmp_path)
    module = model.build(words.get_vocab_size(), model.objective("mlm"))
    carried = load_initial(module, artifact)
    assert set(carried) == {"bert.pooler.weight", "bert.pooler.bias", "nsp.weight", "nsp.bias"}
    assert set(compare_tensors(module, artifact).carried) == set(carried)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    model, _, artifact, _ = imported("bert", tmp_path)
    rows = instances_of(tmp_path)
    drier = model.model_copy(update={"dropout": 0.0})
    check_initial(fit(drier, "mlm"), artifact, rows)
    gpt, _, theirs, _ = imported("gpt", tmp_path / "gpt")
    crossing = gpt.model_copy(update={"crosses_documents": True})
    check_initial(fit(crossing, "causal"), theirs, rows)
    wider = model.model_copy(update={"intermediate_size": 99})
    with pytest.raises(ConfigError, match=r"model\.intermediate_size is 99, but there it was 24"):
        check_initial(fit(wider, "mlm"), artifact, rows)
    check_initial(fit(model, "left_to_right"), artifact, rows)  # a conversion
    with pytest.raises(ConfigError, match="the instances are of the tokenizer u"):
        check_initial(fit(model, "mlm"), artifact, instances_of(tmp_path, "u" * 12))
    with pytest.raises(DataError, match=r"pretrain\.initial: .* has no config\.json"):
        INITIAL_WEIGHTS.stage(ImportConfig(path=str(tmp_path)))


def test_a_recipe_takes_model_and_tokenizer_from_the_folder(tmp_path: Path) -> None:
    folder = folder_of("modern_bert", tmp_path / "theirs")
    recipe = small_recipe(tmp_path / "artifacts", tmp_path / "corpus.txt")
    (tmp_path / "corpus.txt").write_text("a text")
    recipe |= {"pretrain": {"initial": str(folder), "steps": 2}}
    del recipe["tokenizer"]
    recipe["instances"] = {"kind": "masked_blocks", "sequence_length": 16}
    del recipe["model"]
    for key in ("finetune", "tasks", "sweep", "evaluate", "registry", "variants"):
        recipe.pop(key, None)
    made = validate(Recipe, recipe)
    assert made.model is not None
    assert (made.model.kind, made.model.width) == ("modern_bert", 16)
    assert made.tokenizer.model_dump(include={"kind", "path"}) == {
        "kind": "file",
        "path": str(folder),
    }
    stages = pretrain_stages(made)
    assert stages["pretrain"].inputs["initial"] is stages["initial"]
    data = made.model_dump(mode="json")
    assert validate(Recipe, data).model_dump(mode="json") == data
    validate(Recipe, recipe | {"model": {"dropout": 0.1}})
    gpt = {"pretrain": {"initial": str(folder_of("gpt", tmp_path / "gpt")), "steps": 2}}
    gpt |= {"instances": {"kind": "causal", "sequence_length": 16}}
    crossing = validate(Recipe, recipe | gpt | {"model": {"crosses_documents": True}}).model
    assert crossing is not None
    assert crossing.model_dump()["crosses_documents"]
    with pytest.raises(ConfigError, match=r"pretrain\.initial: expected a folder .* 'bert-base'"):
        validate(Recipe, recipe | {"pretrain": {"initial": "bert-base", "steps": 2}})
    with pytest.raises(ConfigError, match=r"model\.num_layers is 3, but the weights in .* have 2"):
        validate(Recipe, recipe | {"model": {"num_layers": 3}})
    # Its place is no part of what it is.
    moved = folder.rename(tmp_path / "moved")
    recipe["pretrain"] = {"initial": str(moved), "steps": 2}
    again = pretrain_stages(validate(Recipe, recipe))
    assert again["pretrain"].fingerprint == stages["pretrain"].fingerprint
