"""The live lines of a run, on terminals of two widths, and what is said where none is."""

import io
import re

import pytest
from rich.console import Console

from rungwise.pipeline.display import Display
from rungwise.training.summary import GradientRun, PretrainSummary
from tests.training_runs import config

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
    ("loss", "early", "advice"),
    [
        (7.2, False, "more pretrain.steps (now 20)"),
        (6.96, False, "more pretrain.steps (now 20)"),
        (6.96, True, "a longer run (this one ended early, after 20 steps)"),
        (6.94, False, ""),
    ],
)
def test_a_run_that_has_learnt_nothing_says_so(loss: float, early: bool, advice: str) -> None:
    summary = PretrainSummary.model_construct(
        model=config().model,
        objective="mlm_nsp",
        final={"mlm_loss": loss},
        unigram_loss=7.0,
        gradient=GradientRun.model_construct(steps=20, stopped_early=early),
    )
    assert advice in summary.caution
    assert bool(summary.caution) == bool(advice)
