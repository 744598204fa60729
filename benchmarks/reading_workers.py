"""Workers of the instance benchmarks that draw masks and read rows; see instance_workers.py."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import (
    BERT_ROLES,
    Setup,
    instances_summary,
    list_rows,
    load_artifact,
    load_texts,
    make_stages,
    measured,
)
from rungwise.core.stages import artifact
from rungwise.core.storage.folder import Folder

READ_ROWS = 256


def masks(setup: Setup) -> dict[str, Any]:
    """Masks for a (64, 512) batch, again and again for a few seconds: `system` and `unit`."""
    system, whole_words = setup.arguments["system"], setup.arguments["unit"] == "whole_word"
    if system == "ours":
        step = _our_masks(setup, whole_words)
    else:
        step = _peer_masks(setup, system, whole_words)
    step(0)
    result: dict[str, Any] = {}
    steps = 0
    with measured(result):
        began = time.perf_counter()
        while time.perf_counter() - began < setup.arguments["for_seconds"]:
            steps += 1
            step(steps)
    return result | {"tokens": steps * 64 * 512}


def _full_rows(setup: Setup) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """64 rows `[CLS] A [SEP]` of 512 tokens, and the characters of each token."""
    from rungwise.tokenizer import load_tokenizer, special_ids

    tokenizer = load_tokenizer(Folder(setup.wordpiece))
    special = special_ids(tokenizer)
    text = " ".join(load_texts(setup, "document")[:400].to_pylist())
    encoding = tokenizer.encode(text, add_special_tokens=False)
    rows, offsets = [], []
    for begin in range(0, 64 * 510, 510):
        ids = encoding.ids[begin : begin + 510]
        rows.append([special.cls, *ids, special.sep])
        offsets.append([(0, 0), *encoding.offsets[begin : begin + 510], (0, 0)])
    return rows, offsets


def _our_masks(setup: Setup, whole_words: bool) -> Callable[[int], Any]:
    from rungwise.instances.masking import MaskingConfig, Vocabulary, mask
    from rungwise.instances.shards import PaddedRows
    from rungwise.tokenizer import load_tokenizer, special_ids

    tokenizer = load_tokenizer(Folder(setup.wordpiece))
    vocabulary = Vocabulary(tokenizer.get_vocab_size(), special_ids(tokenizer))
    rows, offsets = _full_rows(setup)
    ids = np.array(rows, dtype=np.int64)
    edges = np.array(offsets)  # (64, 512, 2)
    starts = np.ones(ids.shape, dtype=bool)
    starts[:, 1:] = edges[:, 1:, 0] != edges[:, :-1, 1]
    padded = PaddedRows(np.arange(64), ids, np.full(64, 512), {}, starts)
    config = MaskingConfig(unit="whole_word" if whole_words else "token", max_predictions=77)

    def step(epoch: int) -> Any:
        return mask(padded, np.full(64, epoch), 0, vocabulary, config)

    return step


def _peer_masks(setup: Setup, system: str, whole_words: bool) -> Callable[[int], Any]:
    """`collator`: from lists of ids, as a loader calls it; `tensors`: its masking step alone."""
    import torch

    from benchmarks.baselines import hugging_face as peer

    torch.set_num_threads(1)
    tokenizer = peer.fast_tokenizer(Path(setup.wordpiece) / "tokenizer.json", BERT_ROLES)
    collate = peer.masking_collator(tokenizer, whole_words)
    rows, offsets = _full_rows(setup)
    special = [int(at in (0, 511)) for at in range(512)]
    features: list[dict[str, Any]] = [
        {"input_ids": row, "special_tokens_mask": special, "offset_mapping": edges}
        for row, edges in zip(rows, offsets, strict=True)
    ]
    if not whole_words:
        for feature in features:
            del feature["offset_mapping"]
    if system == "collator":
        return lambda _: collate(features)
    ids = torch.tensor(rows)
    flags = torch.tensor([special] * 64)
    edges = torch.tensor(offsets) if whole_words else None
    return lambda _: collate.torch_mask_tokens(
        ids.clone(), special_tokens_mask=flags.clone(), offset_mapping=edges
    )


def reader(setup: Setup) -> dict[str, Any]:
    """Rows in training order, 256 at a time, for a few seconds: `unit`, and `masked` or plain."""
    from rungwise.instances.order import ReadOrder
    from rungwise.instances.reader import InstanceReader

    whole_words = setup.arguments["unit"] == "whole_word"
    instances = load_artifact(setup.instances_whole_word if whole_words else setup.instances)
    source = InstanceReader(instances, "train")
    order = ReadOrder(source.rows_per_shard, 0)

    def step(number: int) -> int:
        rows = order.locate(np.arange(number * READ_ROWS, (number + 1) * READ_ROWS))
        if setup.arguments["masked"]:
            return int(source.batch(rows.instances, rows.epochs, seed=0).tokens)
        return int(source.rows(rows.instances).lengths.sum())

    step(0)  # opens the shards, which a run does once
    result: dict[str, Any] = {}
    tokens = steps = 0
    with measured(result):
        began = time.perf_counter()
        while time.perf_counter() - began < setup.arguments["for_seconds"]:
            steps += 1
            tokens += step(steps)
    return result | {"tokens": tokens}


def build_instances(setup: Setup) -> dict[str, Any]:
    """A finished artifact of pairs over the seen text at `target`, for the reader: `unit`."""
    target = Path(setup.arguments["target"])
    corpus, unit = load_artifact(setup.corpus), setup.arguments["unit"]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        stages = make_stages(setup, corpus.folder, Folder(scratch), "masked_pairs", "memo", unit)
        task = stages.instances
        rows = stages.build(stages.encode(list_rows(corpus, "train")))
        shutil.rmtree(target, ignore_errors=True)
        Path(task.output.uri).rename(target)
    summary = instances_summary(rows, task.vocab_size, task.special)
    record = {
        "stage": "instances",
        "label": "benchmark",
        "fingerprint": "benchmark",
        "config": task.config.model_dump(mode="json"),
        "summary": summary.model_dump(mode="json"),
        "finished": "",
    }
    artifact.finish(Folder(str(target)), record, {})
    return {"tokens": summary.tokens}
