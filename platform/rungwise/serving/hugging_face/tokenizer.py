"""The special tokens of a tokenizer under their role names in Hugging Face transformers.

A literal `[MASK]` in a text is plain text in our training, but a special token in their library,
whose pipelines mark the word to fill in with it.
"""

from pathlib import Path

from tokenizers import Tokenizer, processors

from rungwise.core.errors import DataError

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
