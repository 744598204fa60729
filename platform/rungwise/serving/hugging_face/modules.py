"""The files of an exported folder: their names, what sentence-transformers reads, card, tokenizer.

The metadata of the card names no licence: those of the texts are in it, and that of a model is for
its owner to choose. A literal `[MASK]` in a text is plain text in our training, but a special token
in their library, whose pipelines mark the word to fill in with it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.errors import DataError
from rungwise.core.tokens import END_OF_TEXT, ROLE_NAMES, SEP
from rungwise.models.counterpart import Counterpart, SentenceModule
from rungwise.models.transformer.rows import Pooling

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # a pickle, of older versions of transformers
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
INDEX = ".index.json"  # ends the name of the file that lists shards
FILES = (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG)
# Additional files of sentence-transformers, and its names of poolings.
MODULES, SENTENCES = "modules.json", "sentence_bert_config.json"
POOLING: Mapping[Pooling, str] = {
    "mean": "mean_tokens",
    "root": "mean_sqrt_len_tokens",
    "max": "max_tokens",
    "last": "lasttoken",
}


def auto_class(architecture: str) -> str:
    """The auto class of transformers that loads a class that is exported."""
    if architecture.endswith("LMHeadModel"):
        return "AutoModelForCausalLM"
    _, has_head, head = architecture.partition("For")
    return f"AutoModelFor{head}" if has_head else "AutoModel"


def count_unused_positions(counterpart: Counterpart, data: Mapping[str, Any]) -> int:
    """How many unused rows their position table has before the first position."""
    return 1 + (data.get("pad_token_id", 1) or 0) if counterpart.after_padding else 0


def write_modules(
    folder: Path, modules: Sequence[SentenceModule], longest: int | None = None
) -> None:
    """Write modules of sentence-transformers in the order of use, each to a folder of its own but
    the first; `longest` is the longest row of a Transformer, which is there already."""
    entries = []
    for number, module in enumerate(modules):
        path = f"{number}_{module.name}" if number else ""
        (folder / path).mkdir(exist_ok=True)
        if module.tensors:
            tensors = {name: each.float().contiguous() for name, each in module.tensors.items()}
            save_file(tensors, folder / path / WEIGHTS)
        if module.settings:
            write_json(folder / path / CONFIG, module.settings)
        kind = f"sentence_transformers.models.{module.name}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
    write_json(folder / MODULES, entries)
    if longest is not None:
        write_json(folder / SENTENCES, {"max_seq_length": longest, "do_lower_case": False})


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


# Their role names, and the special tokens that can fill each, of texts that are framed or not.
_ROLES: dict[bool, dict[str, tuple[str, ...]]] = {
    True: {f"{role}_token": ROLE_NAMES[role] for role in ("pad", "unk", "cls", "sep", "mask")},
    False: {
        "pad_token": ROLE_NAMES["pad"],
        "unk_token": ROLE_NAMES["unk"],
        "bos_token": (END_OF_TEXT, "<s>", SEP),
        "eos_token": ROLE_NAMES["end"],
    },
}


def read_tokenizer(path: Path, vocab_size: int, framed: bool) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and its special token for each role, of `framed` or other texts.

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
        for role, names in _ROLES[framed].items()
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
