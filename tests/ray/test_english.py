"""The quickstart's recipe, unchanged but for its sources, on real English in mixed encodings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_english_ends_below_its_unigram_loss(real_data: Path, tmp_path: Path) -> None:
    english = real_data / "corpora" / "en"
    sources = (
        f"[{{kind: text, paths: [{english}/reuters21578], documents: blank_line, "
        "lines: paragraph, label: reuters}, "
        f"{{kind: text, paths: [{english}/brown/brown.txt.gz], documents: blank_line, "
        "lines: sentence, label: brown}, "
        f"{{kind: text, paths: [{english}/gutenberg], encoding: detect, label: gutenberg}}]"
    )
    command = [sys.executable, "workflows/pretrain.py", "workflows/configs/quickstart.yaml"]
    command += [f"root={tmp_path}", f"corpus.sources={sources}", "pretrain.steps=800"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    (path,) = tmp_path.glob("pretrain/*/artifact.json")
    summary = json.loads(path.read_text())["summary"]
    assert summary["final"]["mlm_loss"] < summary["unigram_loss"] - 0.5
