"""Exported models judged by lm-eval, minicons, mteb and gensim on published files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import judges
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.language_models import read_pairs, sample_pairs, sentence_scores
from rungwise.models.losses.masked_variants import SIMCSE
from rungwise.models.word_vectors.vector_family import WordVectorModel
from rungwise.serving.export import export_model, export_vectors
from rungwise.tasks.formats.base import split_lines
from rungwise.tokenizer import FILE
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import WordPieceConfig
from tests.conftest import SPECIAL_IDS
from tests.small_models import objective_of, shaken, small_config
from tests.toy_rungs import FIRST_WORD, toy_rung

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of the tools, about one another
]


def needs(tool: str) -> None:
    if not judges.is_installed(tool):
        pytest.skip(f"{tool} is not installed: pip install 'rungwise[judges]'")


def exported(kind: str, texts: list[str], folder: Path, objective: Any = None) -> tuple[Rung, Path]:
    """A rung with large random weights, and the folder it is exported to."""
    torch.manual_seed(7)
    tokenizer = train(WordPieceConfig(vocab_size=250), texts)
    family = small_config(kind, max_position_embeddings=96)
    objective = objective or objective_of(kind)
    module = shaken(family.build(tokenizer.get_vocab_size(), objective)).eval()
    rung = toy_rung(folder / "own", ["a"], family.trained(module, objective, SPECIAL_IDS))
    tokenizer.save(str(folder / "own" / FILE))
    export_model(module, family, folder / "own" / FILE, folder / "exported")
    return rung, folder / "exported"


@pytest.mark.parametrize(
    ("kind", "tools"),
    [
        ("causal", ("minicons", "lm-eval")),
        ("llama", ("minicons", "lm-eval")),
        ("mlm", ("minicons",)),
        ("modern_bert", ("minicons",)),
    ],
)
def test_minimal_pairs_are_judged_alike(
    kind: str, tools: tuple[str, ...], real_data: Path, tmp_path: Path
) -> None:
    """Four pairs of each paradigm of BLiMP: as many points, and the same logarithms."""
    for tool in tools:
        needs(tool)
    path = real_data / "tasks" / "en" / "BLiMP" / "BLiMP.zip"
    pairs = sample_pairs(read_pairs((str(path),), "BLiMP"), 4)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    rung, folder = exported(kind, texts, tmp_path)
    scores = judges.judge_pairs(rung, folder, pairs)
    for tool in tools:
        ours, theirs = scores[f"{tool}: pairs"]
        assert ours == pytest.approx(theirs, abs=0.1), tool
        assert 30 < ours < 70, "random weights do no better"
    masked = kind in ("mlm", "modern_bert")
    theirs = judges.minicons_scores(folder, texts[:100], masked)
    np.testing.assert_allclose(sentence_scores(rung, texts[:100]), theirs, rtol=1e-4)


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
def test_mteb_finds_the_same_correlations(kind: str, real_data: Path, tmp_path: Path) -> None:
    needs("mteb")
    file = real_data / "tasks" / "en" / "STS-B" / "stsb-en-test.csv"
    rung, folder = exported(kind, split_lines(file.read_text("utf-8")), tmp_path, SIMCSE)
    for name, (ours, theirs) in judges.judge_sentences(rung, folder, file).items():
        assert ours == pytest.approx(theirs, abs=0.1), name
        assert ours > 5, "words in common alone give more than nothing"


def test_gensim_finds_the_correlations_of_our_word_vectors(real_data: Path, tmp_path: Path) -> None:
    needs("gensim")
    files = [real_data / "wordsim" / name for name in ("wordsim353.tsv", "simlex999.txt")]
    pairs = [line.lower().split("\t") for file in files for line in split_lines(file.read_text())]
    words = sorted({word for pair in pairs if len(pair) > 2 for word in pair[:2]})
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(len(words) + FIRST_WORD, 8)).astype(np.float32)
    model = WordVectorModel(vectors, vectors)
    rung = toy_rung(tmp_path, words, model, lowercase=True)
    export_vectors(model, rung.splitter, tmp_path)
    scores = judges.judge_words(rung, tmp_path, files)
    assert len(scores) == 2
    for name, (ours, theirs) in scores.items():
        assert ours == pytest.approx(theirs, abs=0.1), name
