"""Files beside the weights: JSON, and what sentence-transformers reads.

The README.md of an exported model: its card, below the metadata that the Hugging Face hub reads.

The metadata names no licence: those of the texts are in the card, and that of a model is for its
owner to choose.

The special tokens of a tokenizer under their role names in Hugging Face transformers.

A literal `[MASK]` in a text is plain text in our training, but a special token in their library,
whose pipelines mark the word to fill in with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.errors import DataError
from rungwise.serving.hugging_face.names import CONFIG, MODULES, POOLING, SENTENCES


def write_pooling(folder: Path, width: int, longest: int, mode: str) -> dict[str, str]:
    """Write the files of sentence-transformers beside a Transformer; return its modules."""
    (folder / POOLING).mkdir()
    pooling = {"word_embedding_dimension": width, f"pooling_mode_{mode}": True}
    write_json(folder / POOLING / CONFIG, pooling)
    write_json(folder / SENTENCES, {"max_seq_length": longest, "do_lower_case": False})
    return {"": "Transformer", POOLING: "Pooling"}


def write_modules(folder: Path, classes: Mapping[str, str]) -> None:
    """Write which class of sentence-transformers loads each folder, in the order of use."""
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (path, name) in enumerate(classes.items())
    ]
    write_json(folder / MODULES, modules)


def write_json(path: Path, data: Any) -> None:
    text = json.dumps(json.loads(canonical_json(data)), indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


HUB_CARD = "README.md"
_PIPELINES = {  # the hub's tags of what a model does, by the class that loads it
    "AutoModel": "sentence-similarity",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMultipleChoice": "multiple-choice",
}


def hub_card(card: str, auto: str, sentences: bool) -> str:
    """Return `card` below its metadata. `auto` is the class of transformers that loads the model;
    `sentences`, whether sentence-transformers does."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=_PIPELINES[auto],
        tags=["rungwise"],
    )
    return f"---\n{data.to_yaml()}\n---\n\n{card}"


# Their role names, and the special tokens that can fill each.
_ROLES: dict[bool, dict[str, tuple[str, ...]]] = {
    True: {  # masked models
        "pad_token": ("[PAD]", "<pad>"),
        "unk_token": ("[UNK]", "<unk>"),
        "cls_token": ("[CLS]", "<s>", "<cls>"),
        "sep_token": ("[SEP]", "</s>", "<sep>"),
        "mask_token": ("[MASK]", "<mask>"),
    },
    False: {
        "pad_token": ("[PAD]", "<pad>"),
        "unk_token": ("[UNK]", "<unk>"),
        "bos_token": ("<|endoftext|>", "<s>", "[SEP]"),
        "eos_token": ("<|endoftext|>", "</s>", "[SEP]"),
    },
}


def read_tokenizer(path: Path, vocab_size: int, masked: bool) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and its special token for each role in a `masked` or other model.

    Raises DataError if it cannot be read, or does not have `vocab_size` tokens.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise DataError(f"{path}: expected a tokenizer.json, found {error}") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size != vocab_size:
        raise DataError(
            f"{path}: expected {vocab_size} tokens as the model has, found {size}; give the "
            f"tokenizer that the model was trained with"
        )
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    roles = {
        role: next(name for name in names if name in special)
        for role, names in _ROLES[masked].items()
        if special.intersection(names)
    }
    return tokenizer, roles


def add_frame(tokenizer: Tokenizer, roles: dict[str, str]) -> None:
    """Frame as [CLS] A [SEP] and [CLS] A [SEP] B [SEP], with B in segment 1."""
    if "cls_token" not in roles or "sep_token" not in roles:
        return
    cls, sep = roles["cls_token"], roles["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
