"""The plain-Python peer of the benchmarks does what it stands for: its tokens are BERT's."""

import gzip
import json
import struct
import zlib
from pathlib import Path

import pytest

from benchmarks.baselines import google_bert
from benchmarks.baselines.google_bert import FullTokenizer, Settings


@pytest.mark.parametrize("model", ["bert-base-uncased", "bert-base-cased", "bert-base-chinese"])
def test_ids_are_those_of_the_golden_file(real_data: Path, model: str) -> None:
    vocabulary = google_bert.read_vocabulary(real_data / "vocab" / model / "vocab.txt")
    # The golden ids come from a library whose longest word is 100 letters, not 200.
    tokenizer = FullTokenizer(vocabulary, lowercase=model != "bert-base-cased", longest_word=100)
    path = real_data / "oracles" / "tokenization" / f"{model}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            assert tokenizer.ids(tokenizer.tokenize(row["text"])) == row["ids"]


def test_records_hold_framed_masked_pairs(tmp_path: Path) -> None:
    letters = [chr(ord("a") + number) for number in range(26)]
    vocabulary = {
        piece: number
        for number, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    }
    text = tmp_path / "text.txt"
    documents = ["\n".join([" ".join(letters[first:])] * 9) for first in (0, 1)]
    text.write_text("\n\n".join(documents))
    output = tmp_path / "records"
    settings = Settings(sequence_length=32, max_predictions=5, dupe_factor=4)
    written = google_bert.create([text], output, FullTokenizer(vocabulary, True), settings)
    data, records = output.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<I", data[8:12])[0] == zlib.crc32(data[:8])
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == zlib.crc32(body)
        records.append(struct.unpack("<107i5f", body))
        data = data[16 + size :]
    assert len(records) == written > 20
    for record in records:
        ids, present, segments = record[:32], record[32:64], record[64:96]
        positions, targets, weights = record[96:101], record[101:106], record[107:]
        length = sum(present)
        assert ids[0] == 2
        assert ids[length - 1] == 3
        assert ids.count(3) == 2
        assert sum(segments) == length - ids.index(3) - 1
        assert sum(weights) == min(5, max(1, round(0.15 * length)))
        assert all(0 < at < length for at, used in zip(positions, weights, strict=True) if used)
        assert all(t > 4 for t, used in zip(targets, weights, strict=True) if used)
