"""What the measuring processes of the instance benchmarks share: their setup, a clock, inputs."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.stages import artifact
from rungwise.core.stages.artifact import Artifact, SharedResults
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import SpecialIds
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.instances.shards import Shard
from rungwise.instances.summary import InstancesSummary, ShardFile
from rungwise.tokenizer import TokenizerSummary

if TYPE_CHECKING:
    from rungwise.instances.building import ShardTask
    from rungwise.tokenizer.token_building import EncodeTask
    from rungwise.tokenizer.token_stage import TokensSummary

PEERS = ("tokenizers", "datasets", "transformers", "nanotoken", "gigatoken")
END = "<|endoftext|>"
BERT_ROLES = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


@dataclass(frozen=True)
class Setup:
    """Where everything lies; `arguments` are of one worker."""

    corpus: str  # artifact: what has been seen (train) and what has not (validation)
    repeated: str  # artifact: much text
    wordpiece: str  # folder of tokenizer.json, and of vocab.txt
    bpe: str  # folder of tokenizer.json
    sentences: str  # of the unseen text, a sentence a line
    documents: str  # of the unseen text, Parquet
    instances: str  # finished artifacts: pairs with token and with whole-word masks
    instances_whole_word: str
    arguments: dict[str, Any]

    def write(self, path: Path, **arguments: Any) -> None:
        path.write_text(json.dumps({**asdict(self), "arguments": arguments}))


@contextlib.contextmanager
def measured(result: dict[str, Any]) -> Iterator[None]:
    """Put the CPU seconds and the wall time of the block into `result`."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    result["seconds"] = time.process_time() - cpu
    result["wall"] = time.perf_counter() - wall


def load_artifact(folder: str) -> Artifact:
    """The artifact in `folder`."""
    loaded = artifact.load(Folder(folder))
    assert loaded is not None, folder
    return loaded


def list_rows(corpus: Artifact, split: str) -> list[CorpusFile]:
    """The manifest rows of one split of a corpus."""
    return [row for row in CorpusSummary.of(corpus).files if row.split == split]


def shard_row(path: Path, split: str, shard: Shard) -> dict[str, Any]:
    """The row of a manifest for one file of instances."""
    return {
        "file": path.name,
        "split": split,
        "sha256": file_digest(path),
        "bytes": path.stat().st_size,
        "instances": len(shard),
        "tokens": len(shard.ids),
    }


def instances_summary(
    rows: list[dict[str, Any]], vocab_size: int, special: SpecialIds, **fields: Any
) -> InstancesSummary:
    """The summary of shards with these rows of a manifest."""
    files = [
        ShardFile(
            **{name: {"source": "all", **row}.get(name, 0) for name in ShardFile.model_fields}
        )
        for row in rows
    ]
    counts = {
        split: sum(file.instances for file in files if file.split == split)
        for split in ("train", "validation")
    }
    known: dict[str, Any] = {
        "kind": "masked_pairs",
        "sequence_length": 128,
        "files": files,
        "vocab_size": vocab_size,
        "special": special,
        "instances": counts,
        "tokens": sum(file.tokens for file in files),
        "text_bytes": {"train": 0, "validation": 0},
        "statistics": {},
        "unigram_loss": 0.0,
        "headline": "benchmark",
    }
    return InstancesSummary.model_validate(known | fields)


def load_texts(setup: Setup, unit: str, split: str = "validation") -> pa.StringArray:
    """The texts of one split: sentences, or documents with their sentences joined by a blank."""
    corpus = load_artifact(setup.corpus)
    parts: list[pa.Array] = []
    for row in list_rows(corpus, split):
        sentences = pq.read_table(corpus.folder.local(row.file))["sentences"].combine_chunks()
        if unit == "sentence":
            parts.append(sentences.flatten())
        else:
            parts.append(pa.array([" ".join(lines) for lines in sentences.to_pylist()]))
    return pa.concat_arrays(parts)


@dataclass(frozen=True)
class Stages:
    """The tasks of the stages tokens and instances, for files of a corpus in this process."""

    tokens: EncodeTask
    instances: ShardTask

    def encode(self, files: Sequence[CorpusFile]) -> TokensSummary:
        """Encode files of the corpus, one after the other."""
        from rungwise.tokenizer.token_building import (
            FileOrder,
            add_counts,
            count_no_tokens,
            summarise_files,
        )

        # No result is one of another round.
        rows = [self.tokens(FileOrder(row, uuid.uuid4().hex)) for row in files]
        task = self.instances
        counts = count_no_tokens(task.vocab_size)
        for row in rows:
            add_counts(row, counts)
        return summarise_files(rows, tokenizer_summary(task.vocab_size, task.special), counts)

    def build(self, tokens: TokensSummary) -> list[dict[str, Any]]:
        """Build the shards of encoded files; their rows of the manifest."""
        from rungwise.instances.building import list_orders

        return [self.instances(row) for row in list_orders(self.instances.config, tokens.files)]


def tokenizer_summary(vocab_size: int, special: SpecialIds) -> TokenizerSummary:
    """As much of the summary of a tokenizer as the stages after it read."""
    return TokenizerSummary.model_construct(vocab_size=vocab_size, special=special)


def make_stages(
    setup: Setup, corpus: Folder, output: Folder, kind: str, backend: str, unit: str = "token"
) -> Stages:
    """The stages for masked pairs of 128 tokens or causal blocks of 1,024; tokens go to the folder
    `tokens` of `output`, shards to `instances`."""
    # The stages import Ray, which only few workers need; and here, since their methods are timed.
    import rungwise.instances.building
    import rungwise.tokenizer.token_building  # noqa: F401
    from rungwise.instances.building import ShardTask
    from rungwise.instances.pairs import MaskedPairsConfig
    from rungwise.instances.texts import CausalConfig
    from rungwise.tokenizer import load_tokenizer, special_ids
    from rungwise.tokenizer.encoder import EncoderChoice
    from rungwise.tokenizer.token_building import EncodeTask

    masked = {"sequence_length": 128, "masking": {"unit": unit}}
    config = CausalConfig() if kind == "causal" else MaskedPairsConfig.model_validate(masked)
    folder = Folder(setup.bpe if kind == "causal" else setup.wordpiece)
    tokenizer = load_tokenizer(folder)
    vocab_size = tokenizer.get_vocab_size()
    choice = EncoderChoice(backend)  # pyright: ignore[reportArgumentType]
    tokens, instances = output / "tokens", output / "instances"
    return Stages(
        EncodeTask(config.tokens, corpus, folder, tokens, SharedResults(tokens / "shared"), choice),
        ShardTask(config, tokens, instances, vocab_size, special_ids(tokenizer)),
    )
