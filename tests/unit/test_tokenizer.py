"""Tokenizers: one vocabulary in any process, the published examples, text that looks special."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from rungwise.artifact import Artifact
from rungwise.context import Context
from rungwise.corpus import shards
from rungwise.corpus.document import SCHEMA, digest_of
from rungwise.errors import DataError
from rungwise.storage import Folder
from rungwise.tokenizer import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    TokenizerConfig,
    load,
    run,
    train,
)

TEXT = [
    "He was playing while they play; players played, and the player plays.",
    "Strawberries and blueberries are berries.",
    "私は Tokyo に住む naïve café",
] * 5


def config(kind: str, **changes: object) -> TokenizerConfig:
    return TokenizerConfig(kind=kind, **{"vocab_size": 120, "min_frequency": 1, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_every_process_learns_the_same_vocabulary(kind: str) -> None:
    """The library's own training does not: its hash maps are seeded anew in every process."""
    code = (
        "import sys, hashlib; sys.path.insert(0, 'tests/unit');"
        "from test_tokenizer import TEXT, config, train;"
        f"text = train(config('{kind}', vocab_size=300), TEXT).to_str();"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    repository = Path(__file__).resolve().parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(4)
    }
    here = train(config(kind, vocab_size=300), TEXT).to_str()
    assert found == {hashlib.sha256(here.encode()).hexdigest() + "\n"}


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_special_tokens_have_the_ids_the_rest_of_the_platform_uses(kind: str) -> None:
    tokenizer = train(config(kind, vocab_size=300), TEXT)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [
        PAD_ID,
        UNK_ID,
        CLS_ID,
        SEP_ID,
        MASK_ID,
    ]


def test_words_fall_into_pieces_and_come_back() -> None:
    tokenizer = train(config("wordpiece", vocab_size=90), TEXT)
    pieces = tokenizer.encode("playing", add_special_tokens=False).tokens
    assert pieces[0] == "play"
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert tokenizer.decode(tokenizer.encode("the player plays").ids) == "the player plays"
    # Han characters stand alone.
    assert len(tokenizer.encode("私住", add_special_tokens=False).tokens) == 2


def test_byte_level_bpe_knows_every_text() -> None:
    tokenizer = train(config("byte_bpe", vocab_size=300, lowercase=False), TEXT)
    for text in ("Ünïcödé \x07 🎉 ok", "  two  spaces ", "\n\t"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert UNK_ID not in ids
        assert tokenizer.decode(ids) == text


def corpus(folder: Path, sentences: list[str]) -> Artifact:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    files = []
    for split in shards.SPLITS:
        row = {
            "id": "d",
            "label": "l",
            "digest": digest_of(sentences),
            "sentences": sentences,
            "paragraph_starts": [0],
        }
        pq.write_table(
            pa.Table.from_pylist([row], schema=SCHEMA), folder / f"{split}-00000.parquet"
        )
        files.append({"file": f"{split}-00000.parquet", "split": split, "documents": 1})
    return Artifact("corpus", "c" * 12, Folder.at(folder), {"summary": {"files": files}})


def test_text_that_looks_like_a_special_token_is_text(tmp_path: Path) -> None:
    output = Folder.at(tmp_path / "t")
    inputs = {
        "corpus": corpus(tmp_path / "c", [*TEXT, "The [MASK] token and [SEP] and [CLS] too."])
    }
    run(config("wordpiece", vocab_size=100), inputs, output, Context())
    ids = load(output).encode("a [MASK] b [SEP] [CLS] [PAD]", add_special_tokens=False).ids
    assert not {PAD_ID, CLS_ID, SEP_ID, MASK_ID} & set(ids)


def test_the_summary_counts_what_it_measured(tmp_path: Path) -> None:
    inputs = {"corpus": corpus(tmp_path / "c", TEXT)}
    summary = run(config("wordpiece", vocab_size=100), inputs, Folder.at(tmp_path / "t"), Context())
    tokenizer = load(Folder.at(tmp_path / "t"))
    tokens = sum(len(tokenizer.encode(s, add_special_tokens=False).ids) for s in TEXT)
    words = sum(len(s.split()) for s in TEXT)
    assert summary["vocab_size"] == 100
    assert summary["tokens_per_word"] == pytest.approx(tokens / words)
    assert summary["unknown_rate"] == 0
    assert summary["sample_characters"] == sum(len(s) for s in TEXT)


@pytest.mark.parametrize(("size", "message"), [(5000, "fill only"), (30, "different characters")])
def test_a_vocabulary_that_does_not_fit_the_text_is_refused(
    tmp_path: Path, size: int, message: str
) -> None:
    inputs = {"corpus": corpus(tmp_path / "c", TEXT)}
    output = Folder.at(tmp_path / "t")
    with pytest.raises(DataError, match=rf"tokenizer\.vocab_size: .*{message}"):
        run(config("wordpiece", vocab_size=size), inputs, output, Context())
    assert output.names() == []
