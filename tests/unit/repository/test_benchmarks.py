"""Benchmarks: what they derive from runs, by hand, and the one for a GPU, tried on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks import gpu, learning, perplexity, texts
from benchmarks.learning import ARMS, steps_to, values_of
from benchmarks.quickstart import CONFIG, READ, records
from benchmarks.text_sizes import WHOLE, read_part, suggest_vectors, write_held_out
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import RawDocument
from rungwise.pipeline.workflow import load_recipe, make_stages
from rungwise.training.fit_config import check_rows
from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_a_simulation_runs_every_part_to_its_end(tmp_path: Path) -> None:
    assert gpu.main(["--simulate", "--to", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*-gpu-simulated.json")
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert list(parts) == list(gpu.PARTS)
    assert set(parts["workers"]["over one"]) == {"ddp", "fsdp"}
    assert all(parts["resume"]["same bits"].values())
    throughput = parts["throughput"]
    assert set(throughput) == {case.name for case in gpu.CASES["simulated"]}
    assert all("tokens_per_second" in each for each in throughput.values())
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert gpu.ONLY_A_GPU in page
    assert all(f"## {name.capitalize()}" in page for name in gpu.PARTS)


def test_a_failed_part_stops_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: gpu.Plan) -> dict[str, object]:
        raise RuntimeError("no kernel image")

    parts = {"tests": fail, "families": lambda plan: {"gpt": 1}}
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--simulate", "--only", "tests,families", "--to", str(tmp_path)]) == 1
    (file,) = tmp_path.glob("*.json")
    results = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert results == {"tests": {"error": "RuntimeError: no kernel image"}, "families": {"gpt": 1}}
    assert "Failed: RuntimeError: no kernel image" in file.with_suffix(".md").read_text()


def run_of(held_out: list[list[float]], test: list[list[float]], **more: Any) -> dict[str, Any]:
    """A run with scores by rate and tuning."""
    facts = {"operations": 1e12, "seconds": 60.0, "steps": [100]}
    return {**facts, "scores": {"validation": held_out, "test": test}, **more}


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_fits_the_quickstart(name: str) -> None:
    recipe, arm = load_recipe("quickstart"), ARMS[name]
    assert sum(step.share for step in arm.steps) == (0.5 if name == "masked_half" else 1)
    for step in arm.steps:
        optimizer = {f"optimizer.{key}": value for key, value in arm.optimizer.items()}
        changed = learning._of_step(recipe, step, optimizer)
        assert changed.instances is not None
        check_rows(learning.find_fit(changed), changed.instances.kind, changed.instances.length)


def test_the_rate_is_that_of_all_runs_and_a_pretraining_is_one_value() -> None:
    runs = [
        run_of([[0.1, 0.3], [0.5, 0.5]], [[0.9, 0.9], [0.2, 0.4]]),
        run_of([[0.9, 0.9], [0.6, 0.7]], [[0.8, 0.8], [0.6, 0.6]]),
    ]
    assert values_of(runs) == pytest.approx([0.3, 0.6])  # 0.575 over 0.55 on validation
    assert values_of(runs[1:]) == pytest.approx([0.8])


def test_steps_to_a_loss_lie_on_a_line_between_validations() -> None:
    rows = [{"step": 0, "loss": 8.0}, {"step": 10, "loss": 6.0}, {"step": 20, "loss": 5.0}]
    runs = [{"validation": rows}, {"validation": [*rows[:2], {"step": 20, "loss": 4.0}]}]
    assert steps_to(runs[:1], 7.0) == pytest.approx(5.0)
    assert steps_to(runs, 5.5) == pytest.approx((15.0 + 12.5) / 2)
    assert steps_to(runs, 4.5) is None


def test_every_stage_has_its_record_also_where_several_are_of_one_kind(tmp_path: Path) -> None:
    titles = [each.title for each in make_stages("finetune", load_recipe(REPOSITORY / CONFIG))]
    root = Folder.at(tmp_path)
    for number, title in enumerate(titles):
        folder = artifacts.find_folder(root, title.stage, "x", f"{number:012}")
        record = {"stage": title.stage, "title": str(title), "fingerprint": f"{number:012}"}
        artifacts.finish(folder, record | {"finished": f"2026-01-01T00:00:{number:02}"}, {})
    assert list(records(root)) == list(map(str, titles))
    assert [title.stage for title in titles].count("sweep") == 2
    assert set(READ) <= set(map(str, titles))


@pytest.mark.parametrize("count", [10, 30, 100, 548])
@pytest.mark.parametrize("null", ["signs", "centred", "drawn", "heavy"])
def test_equally_good_models_are_seldom_called_different(null: str, count: int) -> None:
    trials, documents = 500, perplexity.read_documents()
    draw = perplexity.draw_heavy if null == "heavy" else getattr(documents, null)
    shares = perplexity.count_calls(draw, count, trials)
    for share, most in zip(shares["in use"], (0.06, 0.01), strict=True):
        calls = round(share * trials)
        assert stats.binomtest(calls, trials, most, alternative="greater").pvalue > 1e-3
    if (null, count) == ("drawn", 548):  # a third of the draws miss the largest document
        assert shares["jackknife"][0] > 0.06 > shares["in use"][0]


def test_a_page_of_equally_good_models_has_seldom_a_verdict() -> None:
    calls = round(100 * perplexity.count_pages(perplexity.read_documents(), 30, 100))
    assert stats.binomtest(calls, 100, 0.05, alternative="greater").pvalue > 1e-3


def test_a_part_takes_the_same_share_of_every_source() -> None:
    whole, part = (read_part(millions, ["word2vec", "gpt"], ()) for millions in (WHOLE, 1.0))
    assert list(part.variants) == ["word2vec", "gpt"]
    assert whole.corpus
    assert part.corpus
    for larger, smaller in zip(whole.corpus.sources, part.corpus.sources, strict=True):
        assert smaller.share == larger.share / 10
    passes = [
        suggest_vectors(part, words).variants["word2vec"]["pretrain.epochs"]
        for words in (1_000_000, 10_000_000)
    ]
    assert passes[0] > passes[1]


def test_held_out_documents_are_lines(tmp_path: Path) -> None:
    sentences = [
        f"Sentence {number} has its own number in it, and is long." for number in range(40)
    ]
    documents = [
        RawDocument(str(n), "x", (one, "A second one.")) for n, one in enumerate(sentences)
    ]
    corpus, file = texts.write_corpus(documents, tmp_path), tmp_path / "held-out.txt"
    write_held_out(corpus, file)
    lines = file.read_text().splitlines()
    assert len(lines) > 4
    assert {*lines} < {f"{one} A second one." for one in sentences}
