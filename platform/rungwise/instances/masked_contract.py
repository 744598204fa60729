"""Checks on masked kinds: the frame of their rows, their masks, the balance of labels.

Masks are drawn when rows are read, so the check draws those of epoch 0: for every row of a shard up
to half a million tokens, and for evenly spaced rows of a larger one.
"""

from typing import Any

import numpy as np

from rungwise.instances.contract import Facts, Share, check_rows, check_shares, must
from rungwise.instances.kind import unused_text
from rungwise.instances.masking import (
    MaskingConfig,
    Vocabulary,
    expected_predictions,
    mask,
)
from rungwise.instances.rows import pad_rows
from rungwise.instances.shards import Shard

_ROWS_AT_ONCE = 1024
_TOKENS_MASKED = 1 << 19
_TOKENS_A_SPAN = 10.0  # the tokens of a phrase or span share one 80/10/10 draw
_LABELS = {"is_next": "share of IsNext pairs", "in_order": "share of pairs in order"}


def check_masked(
    shard: Shard, facts: Facts, length: int, masking: MaskingConfig, segments: int | None
) -> dict[str, Any]:
    """Check frame, masks and labels of a shard with rows of at most `length` tokens and `segments`
    segments; None allows any number of `[CLS] A [SEP]`.

    Returns the counts of `check_rows`, the sums of labels, `too_small_to_say` (0 or 1), and of the
    masks drawn `candidates`, `expected`, `selected`, `to_mask`, `to_random`, `kept` and
    `most_predictions`. Raises DataError naming the figure and the bound.
    """
    special = facts.special
    cls_id, sep_id = special.require("cls", "sep")
    rows = len(shard)
    first, last = shard.offsets[:-1], shard.offsets[1:] - 1
    texts = rows
    if segments is None:
        opens, closes = shard.ids[1:] == cls_id, shard.ids[:-1] == sep_id
        apart = int((opens != closes).sum())
        must(facts.name, "[SEP] and [CLS] that are not neighbours", apart, "exactly", 0, apart == 0)
        texts = 1 + int(opens.sum())
    counts = check_rows(shard, facts, length, {cls_id: texts, sep_id: (segments or 1) * texts})
    begin = int((shard.ids[first] == cls_id).sum())
    must(facts.name, "instances that begin with [CLS]", begin, "exactly", rows, begin == rows)
    ends = shard.ids[last] == sep_id
    if "a_length" in shard.columns:
        middle = first + shard.columns["a_length"].astype(np.int64) - 1
        ends &= shard.ids[np.clip(middle, 0, len(shard.ids) - 1)] == sep_id
    end = int(ends.sum())
    what = "instances whose A and last segment end with [SEP]"
    must(facts.name, what, end, "exactly", rows, end == rows)
    counts |= _masking_counts(shard, facts, length, masking)
    counts |= {name: int(shard.columns[name].sum()) for name in _LABELS if name in shard.columns}
    most, allowed = counts["most_predictions"], masking.max_predictions
    must(facts.name, "predictions of an instance", most, "at most", allowed, most <= allowed)
    counts["too_small_to_say"] = int(bool(check_shares(facts.name, _shares(counts, masking))))
    return counts


def check_totals(totals: dict[str, Any], masking: MaskingConfig) -> list[str]:
    """Check the shares over all shards, whose counts add up to `totals`. Returns the figures that
    even all instances are too few to judge. Raises DataError naming the figure and the bound."""
    return check_shares("all shards", _shares(totals, masking))


def _shares(counts: dict[str, Any], masking: MaskingConfig) -> list[Share]:
    per_draw = _TOKENS_A_SPAN if masking.unit in ("phrase", "span") else 1.0
    candidates = counts["candidates"]
    shares = [
        Share(figure, counts[part], counts[whole], expected, bound, per_draw)
        for figure, part, whole, expected, bound in (
            (
                "share of tokens selected",
                "selected",
                "candidates",
                counts["expected"] / max(candidates, 1),
                0.003,
            ),
            ("share of selected made [MASK]", "to_mask", "selected", masking.mask_share, 0.01),
            ("share of selected made random", "to_random", "selected", masking.random_share, 0.01),
        )
    ]
    shares += [
        Share(figure, counts[label], counts["instances"], 0.5, 0.01)
        for label, figure in _LABELS.items()
        if label in counts
    ]
    return shares


def masked_statistics(totals: dict[str, Any], length: int) -> dict[str, Any]:
    """Return the shares reported for an artifact, from the summed counts of its shards."""
    selected, instances = max(totals["selected"], 1), max(totals["instances"], 1)
    labels = {f"{name}_share": totals[name] / instances for name in _LABELS if name in totals}
    return {
        "selected_share": totals["selected"] / max(totals["candidates"], 1),
        "mask_share": totals["to_mask"] / selected,
        "random_share": totals["to_random"] / selected,
        "kept_share": totals["kept"] / selected,
        "most_predictions": totals["most_predictions"],
        "fill": totals["tokens"] / (instances * length),
        **unused_text(totals),
        "shards_too_small_to_say": totals["too_small_to_say"],
        **labels,
    }


def masked_headline(statistics: dict[str, Any], too_small: list[str]) -> str:
    """One line: `mlm 15.0% (80.0/10.0/10.0)`, label balance, unused text, unchecked shares."""
    text = (
        f"mlm {statistics['selected_share']:.1%} ({statistics['mask_share'] * 100:.1f}/"
        f"{statistics['random_share'] * 100:.1f}/{statistics['kept_share'] * 100:.1f})"
    )
    for key, name in (("is_next_share", "nsp"), ("in_order_share", "in order")):
        if key in statistics:
            text += f"  {name} {statistics[key]:.1%}"
    text += f"  {statistics['unused_share']:.2%} of the text unused"
    if too_small:
        text += f"  too few instances to check the {', the '.join(too_small)}"
    return text


def _masking_counts(
    shard: Shard, facts: Facts, length: int, masking: MaskingConfig
) -> dict[str, int]:
    names = ("candidates", "selected", "to_mask", "to_random", "kept", "most_predictions")
    counts: dict[str, int] = dict.fromkeys(names, 0)
    expected = 0.0
    vocabulary = Vocabulary(facts.vocab_size, facts.special)
    ordinary = np.ones(facts.vocab_size, dtype=bool)
    ordinary[list(facts.special.ids)] = False
    sample = np.arange(0, len(shard), max(1, len(shard.ids) // _TOKENS_MASKED))
    for begin in range(0, len(sample), _ROWS_AT_ONCE):
        local = sample[begin : begin + _ROWS_AT_ONCE]
        rows = pad_rows(shard, local, local, length, vocabulary.pad)
        masked = mask(
            rows.ids.astype(np.int64),
            rows.lengths,
            rows.unit_starts,
            local,
            np.zeros_like(local),
            facts.seed,
            vocabulary,
            masking,
        )
        used = masked.weights > 0
        now = np.take_along_axis(masked.ids, masked.positions, axis=1)[used]
        before = masked.targets[used]
        candidates = ordinary[rows.ids].sum(axis=1)  # padding is special
        expected += float(expected_predictions(candidates, masking).sum())
        counts["candidates"] += int(candidates.sum())
        counts["selected"] += int(used.sum())
        counts["to_mask"] += int((now == vocabulary.mask).sum())
        counts["to_random"] += int(((now != vocabulary.mask) & (now != before)).sum())
        counts["kept"] += int((now == before).sum())
        most = int(used.sum(axis=1).max(initial=0))
        counts["most_predictions"] = max(counts["most_predictions"], most)
    return {**counts, "expected": round(expected)}
