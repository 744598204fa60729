"""A peer: Hugging Face `datasets` and `transformers`, used the way their own examples use them.

`load_dataset`, `map` with a fast tokenizer over batches, `map` again to concatenate and cut, and a
collator that masks when batches are made. `map` writes its result to Arrow files by itself. Nothing
is fetched: the vocabulary is a file, and the cache is a folder that the caller throws away.
"""

# `datasets` is an extra, `bench`, which checking does without.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import transformers

if TYPE_CHECKING:
    import datasets

# As the masked-language-model example has it: ids, and whether a token is special.
_COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")


def fast_tokenizer(file: Path, roles: Mapping[str, str]) -> transformers.PreTrainedTokenizerFast:
    """`tokenizer.json` with its special tokens, such as `{"mask_token": "[MASK]"}`."""
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **roles)


def masked_blocks(
    documents: Path, cache: Path, tokenizer: transformers.PreTrainedTokenizerFast, length: int
) -> datasets.Dataset:
    """Blocks of `length` tokens, cut from the concatenation of a thousand documents at a time."""
    return _grouped(
        documents,
        cache,
        lambda rows: tokenizer(rows["text"], return_special_tokens_mask=True),
        length,
    )


def causal_blocks(
    documents: Path,
    cache: Path,
    tokenizer: transformers.PreTrainedTokenizerFast,
    length: int,
    end: str,
) -> datasets.Dataset:
    """Blocks of `length` tokens with an end token behind every document."""

    def tokenise(rows: dict[str, list[str]]) -> Any:
        return tokenizer([text + end for text in rows["text"]])

    return _grouped(documents, cache, tokenise, length)


def masking_collator(
    tokenizer: transformers.PreTrainedTokenizerFast, whole_words: bool
) -> transformers.DataCollatorForLanguageModeling:
    """The collator of the example, 15 %; with whole words it knows no random replacement."""
    return transformers.DataCollatorForLanguageModeling(
        tokenizer,
        mlm=True,
        mlm_probability=0.15,
        whole_word_mask=whole_words,
        mask_replace_prob=1.0 if whole_words else 0.8,
        random_replace_prob=0.0 if whole_words else 0.1,
    )


def _grouped(
    documents: Path, cache: Path, tokenise: Callable[[dict[str, list[str]]], Any], length: int
) -> datasets.Dataset:
    import datasets  # the collator does without it

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain.from_iterable(rows[key])) for key in rows}
        whole = len(joined["input_ids"]) // length * length
        return {
            key: [values[at : at + length] for at in range(0, whole, length)]
            for key, values in joined.items()
        }

    loaded = datasets.load_dataset(
        "parquet", data_files=str(documents), split="train", cache_dir=str(cache)
    )
    assert isinstance(loaded, datasets.Dataset)
    tokenised = loaded.map(tokenise, batched=True, remove_columns=["text"])
    return tokenised.map(group, batched=True)
