"""What is written loads in transformers with the same logits and ids, and the other way round.

Random small models, nothing is downloaded. Shapes: B batch, T sequence, V vocabulary, C classes.
"""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, DataError
from rungwise.finetune.model import BiLstm, HeadedEncoder
from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import IS_NEXT, NOT_NEXT, BertConfig
from rungwise.models.families.gpt import DecoderForPretraining, GptConfig, LlamaConfig
from rungwise.serving.export import export_model, rename_headed
from rungwise.serving.importing import load_model
from rungwise.tasks.kinds.heads import ChoiceHead, SequenceHead, SpanHead, TokenHead
from tests import toy_tokenizers
from tests.small_models import objective_of, shaken, small_config, small_model

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
TEXT = ["The cat sat on the mat.", "Strawberries are red; is that so?", "naïve café"]
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "num_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 24,
}


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return saved(toy_tokenizers.wordpiece(TEXT[:2], 59), tmp_path_factory.mktemp("wordpiece"))


@pytest.fixture(scope="module")
def byte_bpe(tmp_path_factory):
    tokenizer = toy_tokenizers.byte_bpe(TEXT, special_tokens=["<|endoftext|>"])
    return saved(tokenizer, tmp_path_factory.mktemp("byte_bpe"))


def saved(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def size_of(tokenizer_file):
    return Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()


def loaded(auto, folder):
    """Their model, every weight of which came out of the folder."""
    model, told = auto.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    return model.eval()


def edited(folder, **changes):
    path = folder / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "removed"}))


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def bert_inputs(vocab_size):
    ids_BT = torch.randint(1, vocab_size, (4, 18))  # [PAD] is no word: RoBERTa passes over it
    segments_BT = (torch.arange(18) > 8).long().expand(4, 18)
    lengths_B = torch.tensor([18, 11, 5, 17])
    real_BT = (torch.arange(18) < lengths_B[:, None]).long()
    theirs = {"input_ids": ids_BT, "token_type_ids": segments_BT, "attention_mask": real_BT}
    return (ids_BT, segments_BT, lengths_B), theirs, real_BT == 1


def every_logit(model, ours):
    ids_BT, segments_BT, lengths_B = ours
    every_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return model(MaskedBatch.to_predict(ids_BT, segments_BT, lengths_B, every_BT))


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm", "positions", "next_sentence"),
    [
        ("post", "learned", True),
        ("post", "sinusoid", True),
        ("post", "learned", False),
        ("pre", "learned", True),
        ("pre", "sinusoid", False),
    ],
)
def test_bert_goes_out(wordpiece, tmp_path, norm, positions, next_sentence):
    """With norms in front it is RoBERTa-PreLayerNorm, which has no head of NSP."""
    config, V = BertConfig(**SIZES, norm=norm, positions=positions), size_of(wordpiece)
    model = config.masked(V, next_sentence)
    shaken(model, 0.1).eval()
    export_model(model, config, wordpiece, tmp_path)
    pairs = next_sentence and norm == "post"
    auto = f"AutoModelFor{'PreTraining' if pairs else 'MaskedLM'}"
    theirs = loaded(getattr(transformers, auto), tmp_path)
    ours, inputs, real_BT = bert_inputs(V)
    found, expected = every_logit(model, ours), theirs(**inputs)
    logits_BTV = expected.prediction_logits if pairs else expected.logits
    assert logits_BTV.std() > 0.3
    assert logits_BTV.shape[-1] == V
    torch.testing.assert_close(logits_BTV[real_BT], found.mlm[real_BT], **TOLERANCE)
    if pairs:
        torch.testing.assert_close(
            expected.seq_relationship_logits, found.nsp[:, [IS_NEXT, NOT_NEXT]], **TOLERANCE
        )


def encoder_of(config, vocab_size):
    return config.encoder(config.objective(None), vocab_size, config.dropout)


def headed(config, vocab_size, head):
    return shaken(HeadedEncoder(encoder_of(config, vocab_size), head), 0.1).eval()


@pytest.mark.parametrize(
    ("outputs", "kind"), [(3, "single_label_classification"), (1, "regression")]
)
def test_a_classifier_goes_out_with_its_labels(wordpiece, tmp_path, outputs, kind):
    config, V = BertConfig(**SIZES), size_of(wordpiece)
    model = headed(config, V, SequenceHead(32, outputs, "cls", 0.1, pooler=True))
    names = ["numpy", "scipy", "torch"][:outputs]
    export_model(model, config, wordpiece, tmp_path, labels=names)
    theirs = loaded(transformers.AutoModelForSequenceClassification, tmp_path)
    assert theirs.config.id2label == dict(enumerate(names))
    assert theirs.config.problem_type == kind
    with pytest.raises(ConfigError, match=f"labels: expected {outputs} names, one a class, found"):
        export_model(model, config, wordpiece, tmp_path, labels=["numpy", "scipy"])


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changes", "name"),
    [
        ("left_to_right", {"norm": "post"}, "BertLMHeadModel"),
        ("left_to_right", {"norm": "pre"}, "RobertaPreLayerNormForCausalLM"),
        ("modern_left_to_right", {"num_layers": 3}, "ModernBertDecoderForCausalLM"),
    ],
)
def test_a_left_to_right_encoder_goes_out_as_a_decoder(wordpiece, tmp_path, kind, changes, name):
    """It is not mistaken for a BERT coming in; ModernBERT has a window shorter than the rows."""
    model = shaken(small_model(kind, V := size_of(wordpiece), **changes), 0.1).eval()
    export_model(model, small_config(kind, **changes), wordpiece, tmp_path)
    theirs = loaded(transformers.AutoModelForCausalLM, tmp_path)
    assert type(theirs).__name__ == name
    ids_BT = torch.randint(1, V, (3, 12))
    torch.testing.assert_close(theirs(input_ids=ids_BT).logits, model.logits(ids_BT), **TOLERANCE)
    with pytest.raises(DataError, match=r"is_decoder must be false, found true|model_type must be"):
        load_model(tmp_path)


@torch.no_grad()
def test_a_detector_of_replaced_tokens_goes_out_as_electra(wordpiece, tmp_path):
    config, V = BertConfig(**SIZES), size_of(wordpiece)
    model: Any = config.build(V, config.objective("replaced_tokens"))
    model = shaken(model, 0.1).eval()
    export_model(model, config, wordpiece, tmp_path)
    theirs = loaded(transformers.AutoModelForPreTraining, tmp_path)
    assert type(theirs).__name__ == "ElectraForPreTraining"
    (ids_BT, segments_BT, lengths_B), inputs, real_BT = bert_inputs(V)
    expected = model.detector(model.bert.encode(ids_BT, segments_BT, lengths_B))
    torch.testing.assert_close(theirs(**inputs).logits[real_BT], expected[real_BT], **TOLERANCE)


HEADS = {
    "SequenceClassification": lambda: SequenceHead(32, 3, "cls", 0.1, pooler=True),
    "MultipleChoice": lambda: ChoiceHead(32, 1, "cls", 0.1, pooler=True),
    "TokenClassification": lambda: TokenHead(32, 3, 0.1),
    "QuestionAnswering": lambda: SpanHead(32),
}


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", ["mlm_nsp", "mlm", "causal", *HEADS])
def test_what_went_out_comes_back_bit_by_bit(kind, norm, wordpiece, tmp_path):
    """That what comes in is theirs, is shown in the tests of parity."""
    V = size_of(wordpiece)
    if kind in HEADS:
        config = BertConfig(**SIZES, norm=norm)
        model = headed(config, V, HEADS[kind]())
    else:
        config = small_config(
            kind, dropout=0.1, norm=norm, intermediate_size=64, initializer_range=0.05
        )
        model = shaken(config.build(V, objective_of(kind)))
    name = export_model(model, config, wordpiece, tmp_path)
    loaded(getattr(transformers, name), tmp_path)
    found, state = load_model(tmp_path)
    assert found == config
    expected = model.state_dict()
    if kind in HEADS:
        counterpart = next(each for each in config.counterparts() if each.holds(config))
        expected = rename_headed(expected, counterpart.architectures[model.head.purpose])
    elif norm == "pre":  # RoBERTa has no head for pairs
        left_out = ("bert.pooler.", "nsp.")
        expected = {key: each for key, each in expected.items() if not key.startswith(left_out)}
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name


@pytest.fixture
def bert_folder(wordpiece, tmp_path):
    model = shaken(small_model("mlm_nsp", size_of(wordpiece)))
    export_model(model, model.bert.config, wordpiece, tmp_path)
    return tmp_path


@pytest.fixture
def gpt_folder(byte_bpe, tmp_path):
    model = shaken(small_model("causal", size_of(byte_bpe), intermediate_size=64))
    export_model(model, small_config("causal", intermediate_size=64), byte_bpe, tmp_path)
    return tmp_path


def test_names_of_old_checkpoints_are_understood(bert_folder):
    """bert-base-uncased has TensorFlow's names of LayerNorm, a counter, and tied copies."""
    _, expected = load_model(bert_folder)

    def age(tensors):
        for name in list(tensors):
            if "LayerNorm" in name:
                old = name.replace("weight", "gamma").replace("bias", "beta")
                tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(16)[None]
        embedding = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.weight"] = embedding.clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()

    rewritten(bert_folder, age)
    edited(bert_folder, position_embedding_type="absolute", gradient_checkpointing=False)
    torch.testing.assert_close(load_model(bert_folder)[1], expected, atol=0, rtol=0)


def test_gpt2_without_prefix_and_with_its_masks_is_understood(gpt_folder):
    """As openai-community/gpt2 is stored, in half width too."""
    _, expected = load_model(gpt_folder)

    def age(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    rewritten(gpt_folder, age)
    edited(gpt_folder, n_ctx=16, n_inner="removed")
    config: Any
    config, state = load_model(gpt_folder)
    assert config.intermediate_size == 4 * 16
    torch.testing.assert_close(state, expected, atol=0, rtol=0)

    rewritten(gpt_folder, lambda tensors: tensors.update({k: v.half() for k, v in tensors.items()}))
    assert {tensor.dtype for tensor in load_model(gpt_folder)[1].values()} == {torch.float32}


def test_weights_in_shards_are_the_same(bert_folder):
    _, expected = load_model(bert_folder)
    theirs = transformers.AutoModelForPreTraining.from_pretrained(bert_folder)
    (bert_folder / "model.safetensors").unlink()
    theirs.save_pretrained(bert_folder, max_shard_size="5KB")
    assert not (bert_folder / "model.safetensors").exists()
    torch.testing.assert_close(load_model(bert_folder)[1], expected, atol=0, rtol=0)


@pytest.mark.parametrize("shard", ["/etc/hostname", "../secret.bin", "sub/a.bin", "..", ""])
def test_an_index_names_only_files_beside_it(bert_folder, shard):
    (bert_folder / "model.safetensors").unlink()
    index = bert_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(DataError, match=rf"{index.name} lists .*, which is not beside it"):
        load_model(bert_folder)


def test_the_tokenizer_of_bert_gives_the_same_ids_in_its_frame(bert_folder, wordpiece):
    ours = Tokenizer.from_file(str(wordpiece))
    theirs = transformers.AutoTokenizer.from_pretrained(bert_folder)
    for text in TEXT:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert theirs.encode(text, add_special_tokens=False) == ids
        assert theirs.encode(text) == [2, *ids, 3]
    a, b = (ours.encode(text, add_special_tokens=False).ids for text in TEXT[:2])
    pair = theirs(TEXT[0], TEXT[1])
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert theirs.encode("[MASK]", add_special_tokens=False) == [4]
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (0, 1, 4)
    assert theirs.model_max_length == 16
    assert json.loads((bert_folder / "config.json").read_text())["pad_token_id"] == 0


def test_a_tokenizer_of_another_size_is_refused(wordpiece, byte_bpe, tmp_path):
    model = small_model("mlm_nsp", size_of(wordpiece))
    with pytest.raises(DataError, match=r"tokenizer\.json: expected 59 tokens .*, found 270"):
        export_model(model, model.bert.config, byte_bpe, tmp_path)
    with pytest.raises(DataError, match=r"missing\.json: expected a tokenizer\.json"):
        export_model(model, model.bert.config, tmp_path / "missing.json", tmp_path)


def test_models_without_a_counterpart_are_refused(wordpiece, tmp_path):
    V = size_of(wordpiece)
    bert, gpt = BertConfig(**SIZES, norm="pre"), GptConfig(**{**SIZES, "intermediate_size": 100})
    wide = gpt.model_copy(update={"norm": "post"})
    plain = BertConfig(**SIZES)
    odd = LlamaConfig(num_layers=1, num_heads=4, head_size=8, hidden_size=30)
    mean = HeadedEncoder(encoder_of(plain, V), SequenceHead(32, 2, "mean", 0.1))
    topped = HeadedEncoder(encoder_of(plain, V), SpanHead(8), top=BiLstm(32, 4, 1, 0.0))
    reader = HeadedEncoder(gpt.encoder(gpt.objective("causal"), V, 0.0, 3), SpanHead(32))
    for model, config, message in (
        (mean, plain, r"finetune\.pooling is mean"),
        (topped, plain, r"has a BiLSTM .* expected finetune\.top\.kind linear"),
        (reader, gpt, "with marks of its own, which no tokenizer"),
        (DecoderForPretraining(wide, V), wide, r"model\.intermediate_size is 100, and OpenAIGPT"),
        (odd.build(V, odd.objectives[0]), odd, "hidden_size is 30, and LlamaForCausalLM takes onl"),
        (small_model("bidirectional", V), bert, "a BidirectionalForPretraining has no counterpart"),
        (torch.nn.Linear(2, 2), bert, "a Linear has no counterpart in transformers"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_model(model, config, wordpiece, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("folder", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, 'embedding_type must be "absolute"'),
        ("bert", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters must be null"),
        ("bert", {"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, found 1e-05"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings must be true"),
        ("bert", {"model_type": "roberta"}, 'model_type must be one of .*gpt2.* found "roberta"'),
        ("bert", {"model_type": "removed"}, "model_type must be one of .* found null"),
        ("bert", {"num_hidden_layers": "removed"}, "the key num_hidden_layers is missing"),
        ("bert", {"vocab_size": "removed"}, "the key vocab_size is missing"),
        ("bert", {"vocab_size": "59"}, 'vocab_size must be a number above 0, found "59"'),
        ("bert", {"max_position_embeddings": None}, "embeddings must be a number above 0, found n"),
        ("bert", {"attention_probs_dropout_prob": 0.5}, "dropout_prob and attention_.* the same"),
        ("bert", {"attention_probs_dropout_prob": [0]}, "dropout_prob and attention_.* the same"),
        ("bert", {"num_attention_heads": 3}, "hidden_size 16 and num_heads 3"),
        ("gpt", {"activation_function": "relu"}, 'activation_function must be "gelu_new"'),
        ("gpt", {"n_embd": "removed"}, "the key n_embd is missing"),
        ("gpt", {"n_positions": "16"}, 'n_positions must be a number above 0, found "16"'),
    ],
)
def test_a_config_that_ours_cannot_follow_is_named_by_its_key(folder, changes, message, request):
    folder = request.getfixturevalue(f"{folder}_folder")
    edited(folder, **changes)
    with pytest.raises(DataError if "num_heads" not in message else ConfigError) as caught:
        load_model(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    caught.match(message)


def test_weights_that_do_not_fit_are_named(bert_folder):
    name = "bert.encoder.layer.1.attention.self.key.bias"
    half_a_head = "cls.predictions.transform.dense.weight"
    another, tied = "bert.encoder.layer.2.output.dense.bias", "cls.predictions.decoder.weight"
    kept = load_file(bert_folder / "model.safetensors")
    for removed, added, message in (
        (name, {}, rf"model\.safetensors: the tensor {name} is missing"),
        (half_a_head, {}, rf"the tensor {half_a_head} is missing"),
        ("", {another: torch.zeros(16)}, rf"{another} has no place in a bert"),
        ("", {tied: torch.zeros(59, 16)}, rf"{tied} differs from bert\.embeddings"),
        (
            "",
            {"bert.pooler.dense.bias": torch.zeros(17)},
            r"bert\.pooler\.bias has the shape \[17\], expected \[16\]",
        ),
    ):
        tensors = {key: each for key, each in kept.items() if key != removed} | added
        save_file(tensors, bert_folder / "model.safetensors")
        with pytest.raises(DataError, match=message):
            load_model(bert_folder)


def test_files_that_are_not_there_or_not_readable_are_named(bert_folder):
    weights, config = bert_folder / "model.safetensors", bert_folder / "config.json"
    index = bert_folder / "model.safetensors.index.json"
    half = weights.read_bytes()[:100]
    for change, message in (
        (lambda: weights.write_bytes(half), r"model\.safetensors: expected safetensors"),
        (weights.unlink, r"has no model\.safetensors and no model\.safetensors\.index\.json"),
        (
            lambda: index.write_text('{"weight_map": {"a": "model-1.safetensors"}}'),
            r"index\.json lists model-1\.safetensors, which is not besid",
        ),
        (lambda: index.write_text("{}"), r"index\.json: expected a weight_map"),
        (lambda: config.write_text("{"), r"config\.json: expected JSON"),
        (lambda: config.write_text("[]"), "expected an object, found list"),
        (config.unlink, r"config\.json: expected JSON, found .*No such file"),
    ):
        change()
        with pytest.raises(DataError, match=message):
            load_model(bert_folder)
