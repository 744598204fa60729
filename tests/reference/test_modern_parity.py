"""GPT-2, GPT-1, ModernBERT, Llama and Qwen3 of transformers under our names: same logits, same
gradients, in float32 to 1e-5, in and out again.

Every weight is random, so that none can sit in the wrong place unseen. Shapes: B batch, T sequence,
V vocabulary.
"""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch.nn import functional

from rungwise.core.errors import DataError
from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import BertConfig, ModernBertConfig
from rungwise.models.families.gpt import GptConfig, LlamaConfig
from rungwise.models.transformer.block import parameter_count
from rungwise.serving.export import export_model
from rungwise.serving.importing import load_model
from tests.small_models import shaken

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
V, T = 97, 40
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_SIZES: dict[str, Any] = {
    "vocab_size": V,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**GPT_SIZES, bos_token_id=0, eos_token_id=0)
    ),
    "gpt1": lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT_SIZES)),
    # Five layers: global, two local, global, local; the window is shorter than a row.
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **SIZES, num_hidden_layers=5, local_attention=10, cls_token_id=1, sep_token_id=2
        )
    ),
    "modernbert without local layers": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **SIZES, num_hidden_layers=2, layer_types=["full_attention"] * 2
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_hidden_layers=3)
    ),
    "llama with shared keys": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SIZES,
            num_hidden_layers=3,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        )
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            **SIZES, num_hidden_layers=3, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6
        )
    ),
}


@pytest.fixture(params=MODELS)
def theirs(request):
    return shaken(MODELS[request.param](), 0.1).eval()


def logits_of(model, ids_BT, lengths_B):
    if hasattr(model, "logits"):
        return model.logits(ids_BT)
    positions_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return model(MaskedBatch.to_predict(ids_BT, None, lengths_B, positions_BT)).mlm


@pytest.mark.parametrize("padded", [False, True])
def test_what_comes_in_has_the_same_logits_and_gradients(theirs, tmp_path, padded):
    theirs.save_pretrained(tmp_path)
    config, state = load_model(tmp_path)
    model = config.build(V, config.objectives[0]).eval()
    model.load_state_dict(state)
    assert parameter_count(model) == theirs.num_parameters()

    ids_BT = torch.randint(1, V, (4, T))  # their table learns no row for padding, which is 0
    lengths_B = torch.tensor([T, 25, 3, 1]) if padded else None
    real_BT = torch.arange(T) < (torch.full((4,), T) if lengths_B is None else lengths_B)[:, None]
    expected = theirs(input_ids=ids_BT, attention_mask=real_BT.long()).logits
    found = logits_of(model, ids_BT, lengths_B)
    assert expected[real_BT].std() > 0.3, "logits that hardly vary prove little"
    torch.testing.assert_close(found[real_BT], expected[real_BT], **TOLERANCE)

    labels_BT = torch.randint(V, (4, T)).masked_fill(~real_BT, -100)
    for logits_BTV in (expected, found):
        functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    counterpart = next(each for each in config.counterparts() if each.holds(config))
    for name, parameter in model.named_parameters():
        stored = [gradients[part] for part in counterpart.list_names(name)]
        expected = counterpart.join(name, stored)
        torch.testing.assert_close(
            parameter.grad, expected, **TOLERANCE, msg=lambda m, name=name: name + m
        )


@torch.no_grad()
def test_what_goes_out_again_is_what_came_in(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "in")
    config, state = load_model(tmp_path / "in")
    model = config.build(V, config.objectives[0]).eval()
    for name, tensor in model.state_dict().items():
        tensor.copy_(state[name])
    words = {f"w{index}": index for index in range(V)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    name = export_model(model, config, tmp_path / "tokenizer.json", tmp_path / "out")
    assert name == type(theirs).__name__
    assert load_model(tmp_path / "out")[0] == config
    again = type(theirs).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(again[1][key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again[0].state_dict()[name], tensor), name
    ids_BT = torch.randint(V, (2, T))
    found = again[0].eval()(input_ids=ids_BT).logits
    torch.testing.assert_close(found, theirs(input_ids=ids_BT).logits, atol=0, rtol=0)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored.keys() == load_file(tmp_path / "in" / "model.safetensors").keys()


def test_an_exported_modernbert_names_the_special_tokens_of_its_own_tokenizer(tmp_path):
    config = ModernBertConfig(num_layers=1, num_heads=2, hidden_size=16)
    names = ["w0", "[SEP]", "[MASK]", "[PAD]", "[CLS]", "[UNK]"]
    tokenizer = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(names[1:])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = config.build(len(names), config.objectives[0])
    export_model(model, config, tmp_path / "tokenizer.json", tmp_path / "out")
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id) == (3, 4, 1)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (4, 1)  # as in the published config
    assert theirs.vocab_size == len(names)


def test_the_published_shapes_have_the_published_numbers_of_parameters():
    """Of GPT and BERT the papers'; Warner et al. 2024, table 3; Llama and Qwen3 by transformers."""
    wide: dict[str, Any] = {"num_heads": 16, "hidden_size": 1024}
    large: dict[str, Any] = {**wide, "num_layers": 24, "intermediate_size": 4096}
    gpt1 = GptConfig(norm="post", max_position_embeddings=512)
    gpt_large = GptConfig(num_layers=36, num_heads=20, hidden_size=1280, intermediate_size=5120)
    gpt_xl = GptConfig(num_layers=48, num_heads=25, hidden_size=1600, intermediate_size=6400)
    llama = LlamaConfig(
        num_layers=32, num_heads=32, hidden_size=4096, intermediate_size=11008, tied=False
    )
    qwen3 = LlamaConfig(
        **wide,
        num_layers=28,
        num_key_value_heads=8,
        head_size=128,
        intermediate_size=3072,
        query_key_norm=True,
    )
    for config, vocab_size, parameters in (
        (BertConfig(), 30_522, 110_106_428),
        (BertConfig(**large), 30_522, 336_226_108),
        (gpt1, 40_478, 116_534_784),
        (GptConfig(), 50_257, 124_439_808),
        (GptConfig(**large), 50_257, 354_823_168),
        (gpt_large, 50_257, 774_030_080),
        (gpt_xl, 50_257, 1_557_611_200),
        (ModernBertConfig(), 50_368, 149_655_232),
        (ModernBertConfig(**wide, num_layers=28, intermediate_size=2624), 50_368, 395_881_664),
        (llama, 32_000, 6_738_415_616),
        (qwen3, 151_936, 596_049_920),
    ):
        with torch.device("meta"):
            model = config.build(vocab_size, config.objectives[0])
        assert parameter_count(model) == parameters, config


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "rope_type must be default, found"),
        ("llama", {"rope_parameters": [1]}, r"rope_parameters must be an object, found \[1\]"),
        ("llama", {"attention_bias": True}, "attention_bias must be false, found true"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 5}, "layer_types must begin with"),
        ("modernbert", {"norm_bias": True}, "norm_bias must be false"),
    ],
)
def test_what_ours_cannot_follow_is_named(tmp_path, kind, changes, message):
    MODELS[kind]().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        load_model(tmp_path)


def test_the_keys_of_older_configs_say_the_same(tmp_path):
    """ModernBERT's of transformers 4, which had a key for each number."""
    MODELS["modernbert"]().save_pretrained(tmp_path)
    expected, _ = load_model(tmp_path)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())
    del data["layer_types"], data["rope_parameters"]
    old = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    path.write_text(json.dumps(data | old | {"global_attn_every_n_layers": 3}))
    assert load_model(tmp_path)[0] == expected


@pytest.mark.parametrize("every", [2, 3, 7])
def test_two_layers_do_not_say_how_often_one_is_global_and_the_key_does(every):
    config = ModernBertConfig(num_layers=2, global_every=every)
    counterpart = config.counterparts()[0]
    assert counterpart.values(counterpart.keys(config))["global_every"] == every
