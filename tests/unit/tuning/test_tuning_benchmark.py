"""The benchmark of suggested settings: runs of a moment, and its table by hand."""

import math
from pathlib import Path

import pytest

from benchmarks.tuning import describe_networks, train_network
from rungwise.models.family import Size
from rungwise.pipeline.variants import change_recipe
from rungwise.pipeline.workflow import load_recipe
from tests.training_runs import LENGTH, VOCAB, make_instances


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_network_learns_for_the_seconds_with_its_setting(tmp_path: Path, kind: str) -> None:
    rows, changes = make_instances(tmp_path, "causal"), {"pretrain.global_batch_size": 4}
    rung = change_recipe(load_recipe("ladder-quick"), kind)
    result = train_network(rung, rows, Size(1, 1, seconds=0.2), changes, seed=0)
    assert result["seconds"] >= 0.2
    assert result["keys"]["pretrain.global_batch_size"] == 4
    assert 0 < result["tokens"] <= 4 * LENGTH * result["steps"]
    assert 0 < result["loss"] < 1.1 * math.log(VOCAB)


def test_the_table_says_when_a_network_passes_counting() -> None:
    def runs(*losses: float, tokens: float) -> list[dict[str, float]]:
        return [{"loss": loss, "tokens": tokens} for loss in losses]

    lines = describe_networks(
        {
            ("gpt", "suggested", 60.0): runs(5.2, 5.0, tokens=9e5),
            ("gpt", "suggested", 300.0): runs(5.0, 4.9, tokens=4.25e6),
            ("lstm", "suggested", 60.0): runs(5.5, tokens=5e5),
            ("lstm", "suggested", 300.0): runs(5.1, tokens=2e6),
        },
        counted=4.969,
    )
    assert lines == [
        "| nats a token, after million tokens | 60 s | 300 s |",
        "|---|---:|---:|",
        "| gpt, suggested | 5.100, 0.9 | 4.950, 4.2 |",
        "| lstm, suggested | 5.500, 0.5 | 5.100, 2.0 |",
        "",
        "gpt, suggested: passes Kneser-Ney of order 4 (4.969) in 300 s, which are 4.25 million "
        "tokens (4.950)",
        "lstm, suggested: does not pass Kneser-Ney of order 4 (4.969) in 300 s, which are 2.00 "
        "million tokens (5.100)",
    ]
