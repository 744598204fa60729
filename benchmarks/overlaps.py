"""Count the texts of public sets that stand in another set, or in a corpus, that models learn from.

python benchmarks/overlaps.py data
"""

import argparse
import gzip
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rungwise.core.configuration.config import validate
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.evaluation.comparison.compare import RUN
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.data.files import find_overlap, load

IMDB = {"kind": "table", "layout": "json_lines", "columns": {"label": "label"}}
SST = {"kind": "table", "columns": {"text": 0, "label": 1}, "header": False}
MR = {"kind": "folders", "label": "file", "example": "line", "encoding": "cp1252"}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of public data")
    root = parser.parse_args(argv).data / "tasks" / "en"
    for title, form, train, test in (
        ("CoNLL-2003", {"kind": "conll"}, "CoNLL-2003/eng.train.gz", "CoNLL-2003/eng.testb"),
        ("IMDB", IMDB, "IMDB/train.jsonl.gz", "IMDB/test.jsonl.gz"),
    ):
        splits = read(form, root / train, root / test)
        shared = find_overlap(splits["train"], splits["test"]).sum()
        print(f"{title}: {shared} of {len(splits['test']):,} test examples stand in train")
        if title == "CoNLL-2003":
            path = root.parents[1] / "corpora/en/reuters21578/reuters-000-018.txt.gz"
            with gzip.open(path, "rt") as lines:
                documents = lines.read().split("\n\n")
            count("CoNLL-2003, test", splits["test"], "Reuters-21578", documents)
    sentences = read(MR, root / "MR" / "rt-polarity.*", root / "MR" / "rt-polarity.*")["train"]
    known = read(SST, root / "SST-2" / "train.tsv", root / "SST-2" / "test.tsv")["train"]
    count("MR", sentences, "SST-2's train", [example.text for example in known])
    return 0


def read(form: dict[str, Any], train: Path, test: Path) -> dict[str, list[Any]]:
    paths = {"train": str(train), "validation": str(test), "test": str(test)}
    return load(validate(FilesTaskConfig, {"format": form, **paths})).splits


def count(title: str, examples: Sequence[Any], other: str, documents: Iterable[str]) -> None:
    texts = [" ".join(example.parts) for example in examples]
    found = find_texts(texts, (text.split("\n") for text in documents), RUN).sum()
    print(f"{title}: {found:,} of {len(texts):,} stand in {other}, all runs of {RUN} words")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
