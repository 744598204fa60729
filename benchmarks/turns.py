"""How the instance benchmarks compare: competitors take turns, each in a process of its own."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import texts
from benchmarks.common import median_ratio, run_alone, take_turns
from benchmarks.measuring import Setup
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.document import read_documents
from rungwise.tokenizer import FILE, TokenizerFileConfig, read_tokenizer
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, WordPieceConfig

Measured = dict[str, list[dict[str, Any]]]  # competitor: what each round gave
Rates = dict[str, list[float]]  # competitor: the rate of each round


@dataclass(frozen=True)
class Row:
    """One line of the table: a ratio or a rate in words, and the absolute numbers behind it."""

    label: str
    value: str
    absolute: str = ""


@dataclass
class Bench:
    """What the sections share."""

    folder: Path
    setup: Setup
    quick: bool
    rounds: int
    base: Artifact
    measured: dict[str, Measured] = field(default_factory=dict)

    def take_turns(
        self,
        section: str,
        competitors: dict[str, tuple[str, dict[str, Any]]],
        rounds: int | None = None,
    ) -> Measured:
        """Every competitor once a round, and in every round another one first.

        One that needs a package which is not installed is left out, and that is said.
        """
        measured: Measured = {name: [] for name in competitors}
        for turn, name in take_turns(list(competitors), rounds or self.rounds):
            if name not in measured:
                continue
            worker, arguments = competitors[name]
            print(f"  {section}, round {turn + 1}: {name}", file=sys.stderr)
            result = self.run(worker, **arguments)
            if "missing" in result:
                print(f"  {name} is left out: no package {result['missing']}", file=sys.stderr)
                del measured[name]
            else:
                measured[name].append(result)
        self.measured[section] = measured
        return measured

    def run(self, worker: str, **arguments: Any) -> dict[str, Any]:
        """One measurement in a new process."""
        path = self.folder / "setup.json"
        self.setup.write(path, **arguments)
        return run_alone("benchmarks.instance_workers", worker, str(path))


def compute_rates(measured: Measured, tokens: int = 0) -> Rates:
    """Tokens a CPU second in each round; `tokens` is for competitors that do not count them."""
    return {
        name: [run.get("tokens", tokens) / run["seconds"] for run in rounds]
        for name, rounds in measured.items()
    }


def format_rate(rates: Rates, name: str) -> str:
    """The median rate of one competitor in words."""
    return f"{median(rates[name]) / 1e6:.2f} M tokens/s"


def ratio(rates: Rates, label: str, ours: str, peer: str, unit: str = "M tokens/s") -> Row:
    """The median ratio of the rates of two competitors, round by round."""
    if missing := [name for name in (ours, peer) if name not in rates]:
        return Row(label, "left out", f"{' and '.join(missing)} cannot run here")
    scale = 1e6 if unit == "M tokens/s" else 1.0
    value = median_ratio(rates[ours], rates[peer])
    absolute = f"{median(rates[ours]) / scale:.3g} over {median(rates[peer]) / scale:.3g} {unit}"
    return Row(label, f"{value:.2f}", absolute)


def count_shards(bench: Bench, megabytes: float) -> int:
    """How many files of the repeated text hold about so much; it is written when first wanted."""
    folder = Path(bench.setup.repeated)
    if not folder.exists():
        megabytes_of_text = 20 if bench.quick else 1000
        print(f"  writing {megabytes_of_text} MB of text", file=sys.stderr)
        texts.write_repeated(bench.base, folder, megabytes_of_text)
    rows = json.loads((folder / "artifact.json").read_text())["summary"]["files"]
    passed = np.cumsum([row["bytes"] for row in rows])
    return int(np.searchsorted(passed, megabytes * 1e6)) + 1


def prepare(folder: Path, quick: bool, rounds: int) -> Bench:
    """Texts and vocabularies: BERT's and GPT-2's own where they are, else learned ones."""
    base = texts.write_corpus(texts.english(8_000_000 if quick else 40_000_000), folder / "english")
    plain = texts.write_plain(base, "validation", folder / "plain")
    data = texts.real_data()
    sentences = (
        sentence
        for file in texts.files(base, "train")
        for document in read_documents(base.folder, file)
        for sentence in document.sentences
    )
    for name, source, config in (
        ("wordpiece", "bert-base-uncased", WordPieceConfig(vocab_size=30_522)),
        ("bpe", "gpt2", ByteBpeConfig(vocab_size=50_257, lowercase=False)),
    ):
        if data is not None:
            learned = read_tokenizer(TokenizerFileConfig(path=str(data / "vocab" / source)))
        else:
            learned = train(config, list(sentences))
        (folder / name).mkdir()
        learned.save(str(folder / name / FILE))
        pieces = sorted(learned.get_vocab().items(), key=lambda item: item[1])
        lines = "".join(f"{piece}\n" for piece, _ in pieces)
        (folder / name / "vocab.txt").write_text(lines, encoding="utf-8")
    setup = Setup(
        corpus=str(folder / "english"),
        repeated=str(folder / "repeated"),
        wordpiece=str(folder / "wordpiece"),
        bpe=str(folder / "bpe"),
        sentences=str(plain.sentences),
        documents=str(plain.documents),
        instances=str(folder / "instances"),
        instances_whole_word=str(folder / "instances-whole-word"),
        arguments={},
    )
    return Bench(folder, setup, quick, rounds, base)
