"""How long a run takes, as its recipe grows and beside what runs took; its lines on a terminal."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from rich.console import Console

from rungwise.__main__ import main
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import union_members
from rungwise.core.stages.artifact import Summary
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.suites.base import ExpectedText
from rungwise.evaluation.suites.language_models import (
    MinimalPairsSuite,
    PerplexitySuite,
    SpeedSuite,
)
from rungwise.models.config import ModelConfig
from rungwise.pipeline import estimate, workflow
from rungwise.pipeline.display import Display
from rungwise.pipeline.estimate import Rates, RunForecast, Work
from rungwise.pipeline.loading import _TYPES
from rungwise.training.fit_config import PretrainConfig
from rungwise.training.summary import GradientRun, PretrainSummary
from tests.conftest import small_gpt, small_recipe, write_corpus, write_recipe
from tests.summaries import finished
from tests.training_runs import config

# What stages of a kind took together on 2026-11-28 from 15:19 on, on two cores; the rates were
# measured on another run, three hours later. The ladder had no mixture yet.
TOOK = {
    ("finetune", "quickstart"): (
        {"corpus": 17.0, "tokenizer": 3.8, "pretrain": 85.8, "sweep": 20.4, "evaluate": 22.3},
        156.0,
    ),
    ("ladder", "ladder"): (
        {"corpus": 17.0, "task": 20.7, "pretrain": 794.4, "measure": 352.1, "evaluate": 275.4},
        755.0,
    ),
}
LATER = "counts_and_gpt"


@pytest.fixture
def reference(tmp_path: Path) -> Rates:
    return replace(Rates.of(Folder.at(tmp_path / "nothing")), slowness=1.0)


def plan(recipe: dict[str, Any], folder: Path, rates: Rates) -> RunForecast:
    path = write_recipe(folder / "recipe.yaml", recipe)
    loaded = workflow.load_recipe(path)
    return RunForecast(workflow.plan("pretrain", loaded), loaded.compute, rates)


@pytest.mark.parametrize("places", TOOK, ids=lambda each: each[1])
def test_it_is_within_a_factor_of_one_and_a_half_of_what_runs_took(
    places: tuple[str, str], reference: Rates, tmp_path: Path
) -> None:
    name, recipe_name = places
    recipe = workflow.load_recipe(recipe_name, [f"root={tmp_path / 'root'}"])
    result = RunForecast(workflow.plan(name, recipe), recipe.compute, reference)
    by_kind, whole = TOOK[places]
    assert whole / 1.5 < result.wall_seconds(result.seconds) < whole * 1.5
    for kind, took in by_kind.items():
        expected = sum(
            seconds
            for title, seconds in result.seconds.items()
            if seconds and title.split("/")[0] == kind and LATER not in title
        )
        assert took / 2 < expected < took * 2, kind


def test_more_work_takes_longer(reference: Rates, tmp_path: Path) -> None:
    little, much = (write_corpus(tmp_path / str(n), documents=n) for n in (6, 600))
    recipe = small_recipe(tmp_path / "root", little)
    first = plan(recipe, tmp_path, reference)
    longer = plan(recipe | {"pretrain": recipe["pretrain"] | {"steps": 400}}, tmp_path, reference)
    larger = plan(small_recipe(tmp_path / "root", much), tmp_path, reference)
    for name, seconds in first.seconds.items():
        assert seconds
        assert longer.seconds[name] == seconds or name == "pretrain"
    assert (longer.seconds["pretrain"] or 0) > 1.2 * (first.seconds["pretrain"] or 0)
    for name in ("corpus", "tokenizer", "tokens", "instances"):
        assert (larger.seconds[name] or 0) > (first.seconds[name] or 0) > 0
    assert "on this machine" in first.line
    assert "GB of disk" in first.line


def test_a_task_takes_as_long_as_the_examples_that_are_used(
    reference: Rates, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"some words {n}", "label": f"{n % 2}"}) for n in range(2000)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:200]))
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    files = {
        "kind": "files",
        "format": {"kind": "table", "layout": "json_lines", "columns": {"label": "label"}},
    }
    files |= {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    short = {"finetune": {"sequence_length": 32}}
    seconds = []
    for limit in (None, 500, 100):
        data = files | {"validation_fraction": 0.1, "max_test_examples": limit}
        path = write_recipe(tmp_path / "r.yaml", recipe | {"tasks": {"t": {"data": data}}, **short})
        loaded = workflow.load_recipe(path)
        rows = workflow.plan("finetune", loaded)
        result = RunForecast(rows, loaded.compute, reference)
        seconds.append(sum(result.seconds[name] or 0 for name in result.seconds))
    assert seconds[0] > seconds[1] > seconds[2] > 0


@pytest.mark.parametrize("family", union_members(ModelConfig), ids=lambda f: f.__name__)
def test_a_family_tells_whether_it_gives_the_probability_of_a_text(family: Any) -> None:
    read = getattr(family, "from_tensors", family.trained)
    kind = get_type_hints(read)["return"]
    kinds = get_args(kind) or (kind,)
    assert any(hasattr(each, "log_probabilities") for each in kinds) == family.rates_texts


def test_a_suite_of_files_reads_about_as_much_as_there_is(tmp_path: Path) -> None:
    fields = {"field": "syntax", "linguistics_term": "island_effects", "simple_LM_method": True}
    fields |= {"one_prefix_method": False, "two_prefix_method": False, "lexically_identical": True}
    good = "Who should Derek hug after shocking Richard?"
    for name in ("adjunct_island", "wh_island"):
        pair = {"sentence_good": good, "sentence_bad": good} | fields | {"UID": name}
        lines = [json.dumps(pair | {"pairID": str(n)}) for n in range(500)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [*tmp_path.iterdir()]
    size = sum(file.stat().st_size for file in files)
    once = ExpectedText(0, len(files), size)
    tokens = 2 * len(files) * 500 * 9.0
    whole = MinimalPairsSuite(path=(str(tmp_path),))
    some = MinimalPairsSuite(path=(str(tmp_path),), pairs_per_paradigm=50)
    assert tokens / 2 < whole.count_tokens(once) < tokens * 2
    assert tokens / 20 < some.count_tokens(once) < tokens / 5
    # A masked model reads a sentence again for each of its tokens.
    masked = whole.count_tokens(replace(once, masked_row=64))
    assert 9 * tokens / 2 < masked < 9 * tokens * 2
    assert not whole.count_tokens(replace(once, rates_texts=False))


def test_a_suite_of_the_held_out_text_reads_no_more_than_there_is() -> None:
    once, masked = ExpectedText(100_000), ExpectedText(100_000, masked_row=64)
    few = PerplexitySuite(documents=20, pseudo_documents=5)
    for suite in (PerplexitySuite(), PerplexitySuite(documents=10_000)):
        assert suite.count_tokens(once) == 100_000
        assert suite.count_tokens(masked) == 64 * 100_000
    assert 0 < few.count_tokens(once) < 100_000
    assert 64 * few.count_tokens(once) == 4 * few.count_tokens(masked)
    pairs = MinimalPairsSuite().count_tokens
    assert pairs(once) < pairs(masked)
    assert pairs(ExpectedText(50_000)) < pairs(once)
    speed = SpeedSuite(lengths=(8, 64), rounds=10).count_tokens
    assert (speed(once), speed(masked)) == (10 * (8 + 64), 10 * (8 * 8 + 64 * 64))


@pytest.mark.parametrize("blocks", [small_gpt(), {}, small_gpt(kind="lstm")], ids=str)
def test_a_compiled_training_takes_less_but_begins_later(
    blocks: dict[str, Any], reference: Rates, tmp_path: Path
) -> None:
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    recipe |= blocks
    if recipe["model"]["kind"] == "lstm":
        recipe["model"] = {"kind": "lstm"}
    seconds: dict[tuple[int, bool], float] = {}
    for steps in (20, 10**7):
        for compiles in (False, True):
            recipe["pretrain"]["steps"] = steps
            recipe["compute"]["compile"] = compiles
            seconds[steps, compiles] = plan(recipe, tmp_path, reference).seconds["pretrain"] or 0
    if recipe["model"]["kind"] == "lstm":  # its kernels are its own
        assert seconds[20, True] == seconds[20, False]
        assert seconds[10**7, True] == seconds[10**7, False]
    else:
        assert seconds[20, True] > seconds[20, False] + 10
        assert 0.5 < seconds[10**7, True] / seconds[10**7, False] < 0.7


def test_a_plan_breaks_no_word_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    arguments = ["plan", "pretrain", str(write_recipe(tmp_path / "r.yaml", recipe))]
    for terminal in ("0", "1"):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        assert main(arguments) == 0
        stages = capsys.readouterr().out.splitlines()[1:-1]
        assert all("first run" in line for line in stages)


def test_what_no_rate_tells_is_not_known(reference: Rates, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    recipe["compute"]["gpus_per_worker"] = 1
    result = plan(recipe, tmp_path, reference)
    assert result.seconds["pretrain"] is None
    assert "the unknown time of pretrain" in result.line


def test_every_kind_of_stage_has_a_rate(reference: Rates) -> None:
    names = {estimate._LIKE.get(name, name) for name in _TYPES} - {"longer_instances", "pretrain"}
    names |= {each.model_fields["kind"].default for each in union_members(PretrainConfig)}
    assert not {name for name in names if reference.seconds(Work(name, 1.0)) is None}
    for family in union_members(ModelConfig):
        work = Work(f"gradient/{family.model_fields['kind'].default}", 10.0)
        assert (reference.seconds(work) or 0) > 0


def test_records_of_a_root_correct_the_rates(tmp_path: Path, reference: Rates) -> None:
    root = Folder.at(tmp_path / "root")
    expected = reference.seconds(Work("corpus", 1000.0))
    assert expected
    facts = {"stage": "corpus", "inputs": {}}
    name = fingerprint(facts)
    now = Rates.of(root).seconds(Work("corpus", 1000.0))
    assert now
    work = ["corpus", 1000.0, 0.0]
    done: dict[str, Any] = {"facts": facts, "work": work, "seconds": 3 * now}
    finished("corpus", root / "corpus" / f"a-{name}", Summary(headline=""), name, **done)
    corrected = Rates.of(root)
    assert 2 * now < (corrected.seconds(Work("corpus", 1000.0)) or 0) < 3.6 * now


def test_a_run_counts_down(reference: Rates, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    result = plan(recipe, tmp_path, reference)
    out = io.StringIO()
    display = Display([*result.seconds], Console(file=out, width=120))
    display.expect(result)
    whole = result.wall_seconds(result.seconds)
    for name in result.seconds:
        display.start(name, "first run")
        display.show(name, "done", "")
    first, *rest = [line for line in out.getvalue().splitlines() if "about" in line]
    assert "expected: about" in first
    left = [line for line in rest if line.endswith("left of the run")]
    assert len(left) == len(result.seconds) - 1  # the last says nothing
    assert whole > 0


NAMES = ["corpus", "pretrain", "pretrain/ltr_no_nsp_bilstm@1"]
REASON = "tokenizer.vocab_size 4096 -> 8192; instances.sequence_length 64 -> 128; and still more"


def screen(width: int, terminal: bool = True) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    return Display(NAMES, console), out


def last_table(out: io.StringIO) -> list[str]:
    lines = re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "\n", out.getvalue()).splitlines()
    first = max(place for place, line in enumerate(lines) if line.startswith(NAMES[0]))
    return [line.rstrip() for line in lines[first:] if line.strip()]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_names_and_states_stay_whole_and_reasons_are_cut_until_the_end(width: int) -> None:
    display, out = screen(width)
    with display:
        for name in NAMES:
            display.show(name, "not built", REASON)
        display.start("pretrain", "first run")
        for done in range(0, 2000, 20):
            rates = {"tokens/s": 123456.0, "mfu": 0.42}
            values: dict[str, float | str] = {"loss": 9 - done / 400, **rates}
            display.progress("pretrain", done, 3000, values)
        display.note("corpus", REASON)
        assert display._live is not None
        display._live.refresh()
        running = last_table(out)
    ended = last_table(out)
    for rows in (running, ended):
        assert max(len(row) for row in rows) <= width
        found = [row.split()[0] for row in rows if row.startswith(tuple(NAMES))]
        assert found == NAMES
    for name, row in zip(NAMES, running, strict=False):
        assert row.startswith(f"{name} ")
    words = [" ".join(" ".join(rows).split()) for rows in (running, ended)]
    assert any(row.endswith("…") for row in running)
    assert words[0].count("and still more") == 1  # the note is not cut
    assert "…" not in words[1]
    assert "".join(ended).replace(" ", "").count("andstillmore") == 3
    if width == 110:
        assert "1,980/3,000  loss 4.05" in running[1]


def test_where_there_is_no_terminal_each_event_is_a_whole_line() -> None:
    display, out = screen(20, terminal=False)
    with display:
        display.show(NAMES[2], "failed", REASON)
        display.note("corpus", REASON)
    first, second = out.getvalue().splitlines()
    assert first.startswith(NAMES[2])
    assert first.endswith(REASON)
    assert second.endswith(REASON)


@pytest.mark.parametrize(
    ("loss", "advice"), [(7.2, "raise pretrain.steps"), (6.96, "raise pretrain.steps"), (6.94, "")]
)
def test_a_run_that_has_learnt_nothing_says_so(loss: float, advice: str) -> None:
    summary = PretrainSummary.model_construct(
        model=config().model,
        objective="mlm_nsp",
        final={"mlm_loss": loss},
        unigram_loss=7.0,
        gradient=GradientRun.model_construct(steps=20),
    )
    assert advice in summary.caution
    assert bool(summary.caution) == bool(advice)
