"""Exported models, judged by others' tools beside rungwise's own suites.

    python -m benchmarks.judges artifacts/pretrain/NAME ...    as many as you like

    GPT, Llama and others     lm-eval, minicons    BLiMP
    BERT, ModernBERT          minicons             BLiMP, by pseudo-likelihoods within words
    n-gram models             kenlm                BLiMP
    sentence encoders         mteb                 STS benchmark
    vectors of words          gensim               WordSim-353, SimLex-999

Every tool reads what `rungwise export` wrote and files of this machine, nothing else. Data lies in
data/, or in RUNGWISE_DATA.
"""

import argparse
import csv
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import add_results
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.items import estimate_items
from rungwise.evaluation.suites.language_models import (
    TIES_TO_GOOD,
    MinimalPair,
    pair_credits,
    read_pairs,
    sample_pairs,
    sentence_scores,
)
from rungwise.evaluation.suites.vectors import OWN, SentencesSuite, SimilaritySuite
from rungwise.models.families.ngram import FILE as ARPA
from rungwise.models.ngram_model import NgramLanguageModel
from rungwise.models.trained.capabilities import (
    HidesWords,
    LanguageModel,
    SentenceVectors,
    WordVectors,
)
from rungwise.pipeline.loading import find_built
from rungwise.serving.export import write_pretrained
from rungwise.tasks.formats.texts import ColumnsConfig, TableFormat
from rungwise.training.initial import find_tokens
from rungwise.training.pretrained import find_tokenizer

TOOLS = {"lm-eval": "lm_eval", **{name: name for name in ("minicons", "mteb", "kenlm", "gensim")}}
DATA = Path(os.environ.get("RUNGWISE_DATA", "data"))
BLIMP = DATA / "tasks" / "en" / "BLiMP" / "BLiMP.zip"
STS = DATA / "tasks" / "en" / "STS-B" / "stsb-en-test.csv"
WORD_PAIRS = (DATA / "wordsim" / "wordsim353.tsv", DATA / "wordsim" / "simlex999.txt")
BATCH = 64  # sentences

Scores = dict[str, tuple[float, float]]  # ours and theirs, in points, by tool and measure


def judge_pairs(rung: Rung, folder: Path, pairs: Sequence[MinimalPair]) -> Scores:
    """Percent of minimal pairs, by every installed tool that reads this kind of model."""
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    ours = sentence_scores(rung, texts)
    if isinstance(rung.model, NgramLanguageModel):
        tools: dict[str, Callable[[], NDArray[np.float64]]] = {
            "kenlm": lambda: kenlm_scores(folder / ARPA, _spelt(rung, texts))
        }
    else:
        masked = isinstance(rung.model, HidesWords)
        tools = {"minicons": lambda: minicons_scores(folder, texts, masked)}
    scores = {
        f"{tool}: pairs": (_percent(ours), _percent(score()))
        for tool, score in tools.items()
        if is_installed(tool)
    }
    if "minicons" in tools and not isinstance(rung.model, HidesWords) and is_installed("lm-eval"):
        end = rung.splitter.id_to_token(rung.special.require("end")[0])
        closed = [(pair.good + end, pair.bad + end) for pair in pairs]
        good_first = _percent(ours, TIES_TO_GOOD)  # which is what it counts
        scores["lm-eval: pairs"] = good_first, lm_eval_accuracy(folder, closed)
        bare = [(pair.good, pair.bad) for pair in pairs]
        scores["lm-eval: pairs, the end left out"] = good_first, lm_eval_accuracy(folder, bare)
    return scores


def _percent(scores: NDArray[np.float64], part: str = "") -> float:
    """Percent of credit, from the scores of good and bad sentences by turns."""
    return 100 * float(pair_credits(scores[0::2] - scores[1::2])[part].mean())


def _spelt(rung: Rung, texts: Sequence[str]) -> list[str]:
    """The texts as tokens of the ARPA file between blanks."""
    return [" ".join(map(rung.splitter.id_to_token, ids)) for ids in rung.encode(texts)]


def minicons_scores(folder: Path, texts: Sequence[str], masked: bool) -> NDArray[np.float64]:
    """The log-probability of each text and of its end, or its PLL-word-l2r."""
    from minicons import scorer  # pyright: ignore[reportMissingImports]

    kind = scorer.MaskedLMScorer if masked else scorer.IncrementalLMScorer
    model = kind(str(folder), "cpu")
    scores: list[float] = []
    for first in range(0, len(texts), BATCH):
        batch: Any = list(texts[first : first + BATCH])
        if masked:
            # minicons 0.3.39 calls a method of tokenizers that transformers 5 has no more.
            batch = model.tokenizer(batch, padding=True, return_tensors="pt")
            batch.pop("token_type_ids", None)
            keys: dict[str, Any] = {"PLL_metric": "within_word_l2r"}
        else:
            keys = {"bos_token": True, "eos_token": True}
        scores += model.sequence_score(batch, reduction=lambda row: row.sum().item(), **keys)
    return np.array(scores)


def lm_eval_accuracy(folder: Path, pairs: Sequence[tuple[str, str]]) -> float:
    """Percent of pairs whose first text lm-eval finds likelier, in a task like its own `blimp`."""
    import lm_eval  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        file = Path(scratch) / "pairs.jsonl"
        file.write_text("".join(json.dumps({"good": a, "bad": b}) + "\n" for a, b in pairs))
        task = {
            "task": "minimal_pairs",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"validation": str(file)}, "cache_dir": scratch},
            "validation_split": "validation",
            "output_type": "multiple_choice",
            "doc_to_text": "",
            "doc_to_choice": "{{[good, bad]}}",
            "doc_to_target": 0,
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}],
        }
        model = HFLM(pretrained=str(folder), device="cpu", batch_size=BATCH, dtype="float32")
        results = lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0)
    return 100 * cast(Any, results)["results"]["minimal_pairs"]["acc,none"]


def kenlm_scores(arpa: Path, sentences: Sequence[str]) -> NDArray[np.float64]:
    """The log-probability of each sentence and of its end, in nats."""
    import kenlm

    model = kenlm.Model(str(arpa))
    return np.array([model.score(sentence) for sentence in sentences]) * np.log(10)


def judge_sentences(rung: Rung, folder: Path, file: Path = STS) -> Scores:
    """Correlations over pairs with scores, times 100, as mteb computes them for STS tasks."""
    if not is_installed("mteb"):
        return {}
    columns = ColumnsConfig(text=0, second=1, score=2)
    form = TableFormat(columns=columns, delimiter=",", quoting=True, header=False)
    suite = SentencesSuite(path=(str(file),), format=form)
    rows = suite.measure(rung, "sentences")
    ours = {each.metric: 100 * estimate_items([each]).mean for each in rows if each.part == OWN}
    theirs = mteb_correlations(folder, file)
    names = {"correlation": "cosine_spearman", "pearson": "cosine_pearson"}
    return {
        f"mteb: {theirs_of}": (ours[name], theirs[theirs_of]) for name, theirs_of in names.items()
    }


def mteb_correlations(folder: Path, file: Path) -> dict[str, float]:
    import mteb  # pyright: ignore[reportMissingImports]
    from mteb.abstasks.sts import AbsTaskSTS  # pyright: ignore[reportMissingImports]
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        data = Path(scratch) / "data"
        data.mkdir()
        with (
            file.open(newline="", encoding="utf-8") as stream,
            (data / "test.jsonl").open("w") as to,
        ):
            for first, second, score in csv.reader(stream):
                row = {"sentence1": first, "sentence2": second, "score": float(score)}
                to.write(json.dumps(row) + "\n")

        class LocalPairs(AbsTaskSTS):
            metadata = mteb.TaskMetadata(
                name="LocalPairs",
                description="Pairs of sentences with scores.",
                type="STS",
                dataset={"path": str(data), "revision": "local"},
                eval_splits=["test"],
                eval_langs=["eng-Latn"],
                main_score="cosine_spearman",
            )

        model = SentenceTransformer(str(folder), device="cpu")
        result = mteb.evaluate(
            model, LocalPairs(), cache=mteb.ResultCache(scratch), show_progress_bar=False
        )
    [scores] = result.task_results[0].scores["test"]
    return {name: 100 * value for name, value in scores.items() if name.startswith("cosine")}


def judge_words(rung: Rung, folder: Path, files: Sequence[Path] = WORD_PAIRS) -> Scores:
    """Correlations with people's judgements over the pairs of words in the exported vocabulary,
    times 100; rungwise alone makes vectors of other words, from their pieces."""
    if not is_installed("gensim"):
        return {}
    from gensim.models import KeyedVectors

    vectors = KeyedVectors.load_word2vec_format(str(folder / "vectors.bin"), binary=True)
    scores = {}
    for file in files:
        with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
            known = Path(scratch) / file.name
            lines = file.read_text("utf-8").splitlines(keepends=True)
            words = [line.lower().split("\t")[:2] for line in lines]
            known.write_text(
                "".join(
                    line
                    for line, pair in zip(lines, words, strict=True)
                    if not line.startswith("#") and all(word in vectors for word in pair)
                )
            )
            _, spearman, _ = vectors.evaluate_word_pairs(str(known))
            rows = SimilaritySuite(path=(str(known),)).measure(rung, "words")
        [ours] = [each for each in rows if each.metric == "correlation"]
        key = f"gensim: {ours.part}, {len(ours.names)} pairs"
        scores[key] = 100 * estimate_items([ours]).mean, 100 * spearman[0]
    return scores


def is_installed(tool: str) -> bool:
    return importlib.util.find_spec(TOOLS[tool]) is not None


def open_rung(pretrain: Artifact) -> Rung:
    tokens = find_tokens(pretrain)
    corpus = find_input(tokens, "corpus")
    return Rung(pretrain, tokens, find_tokenizer(pretrain), corpus, SilentReporter())


def judge(pretrain: Artifact, per_paradigm: int | None) -> Scores:
    """Export the model and compare what it can be asked."""
    rung = open_rung(pretrain)
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        folder = Path(scratch)
        write_pretrained(pretrain, Folder.at(scratch))
        if isinstance(rung.model, LanguageModel):
            pairs = sample_pairs(read_pairs((str(BLIMP),), "BLiMP"), per_paradigm)
            return judge_pairs(rung, folder, pairs)
        if isinstance(rung.model, SentenceVectors):
            return judge_sentences(rung, folder)
        assert isinstance(rung.model, WordVectors), "nothing else is exported"
        return judge_words(rung, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", help="folders of pretrain artifacts")
    parser.add_argument("--pairs", type=int, default=None, help="of each paradigm; default: all")
    options = parser.parse_args(arguments)
    tools = {name: version(name) for name in TOOLS if is_installed(name)}
    print("tools:", ", ".join(f"{name} {number}" for name, number in tools.items()) or "none")
    for model in options.models:
        pretrain = find_built(model, "artifacts")
        title = pretrain.record["config"]["model"]["kind"]
        scores = judge(pretrain, options.pairs)
        for measure, (ours, theirs) in scores.items():
            print(f"{title:<14}{measure:<36}{ours:8.3f}{theirs:8.3f}")
        made_by = {"tools": tools, "command": " ".join(["benchmarks.judges", *sys.argv[1:]])}
        add_results("judges", made_by, {f"{title} {pretrain.fingerprint}": scores})
    return 0


if __name__ == "__main__":
    sys.exit(main())
