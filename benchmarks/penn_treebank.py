"""The perplexity of finished language models on a text file, read as one contiguous text.

    python -m benchmarks.penn_treebank FILE PRETRAIN...

PRETRAIN is the folder of a finished pretrain artifact, or of its stage: then the newest of it.
Every line is a sentence, every sentence ends with the end symbol, which is predicted too, and a
model forgets at the end of a line only what it is made to forget: so Mikolov et al. measure on the
Penn Treebank, 82,430 tokens in its test file. A word outside the vocabulary is an error, for a
perplexity with unknown words compares with nothing. Nothing is trained here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rungwise.core.artifact import Artifact, at_or_below
from rungwise.core.errors import DataError
from rungwise.core.storage import Folder
from rungwise.models.perplexity import perplexity
from rungwise.pretraining.pretrained import language_model, tokenizer_of
from rungwise.pretraining.summary import PretrainSummary
from rungwise.tokenizer import load, special_ids


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("pretrain", nargs="+", help="the folder of an artifact, or of its stage")
    options = parser.parse_args(arguments)
    print("model\tparameters\ttrained for\ttokens\tperplexity\tscored in")
    for place in options.pretrain:
        pretrain = at_or_below(Folder.at(place))
        if pretrain is None:
            print(f"{place}: expected a finished pretrain artifact", file=sys.stderr)
            return 2
        text = contiguous(pretrain, options.file)
        began = time.monotonic()
        found = perplexity(language_model(pretrain), [text], options.file.stat().st_size)
        seconds = time.monotonic() - began
        summary = PretrainSummary.of(pretrain)
        print(
            f"{pretrain.label}-{pretrain.fingerprint}\t{summary.parameters:,}\t"
            f"{summary.seconds:.0f} s\t{found.predicted:,}\t{found.perplexity:.2f}\t{seconds:.0f} s"
        )
    return 0


def contiguous(pretrain: Artifact, file: Path) -> list[int]:
    """The ids of all lines, each with the end symbol behind it.

    Raises DataError naming the line of a word that the vocabulary lacks.
    """
    tokenizer = load(tokenizer_of(pretrain).folder)
    special = special_ids(tokenizer)
    (end,) = special.require("end")
    text: list[int] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        ids = tokenizer.encode(line.strip(), add_special_tokens=False).ids
        if special.unk in ids:
            raise DataError(f"{file}:{number}: a word is not in the vocabulary of {pretrain.label}")
        text += [*ids, end]
    return text


if __name__ == "__main__":
    sys.exit(main())
