"""A metric as a function of sums over examples, so that the bootstrap can draw examples: a resample
is a sum of rows. N examples, k sums each, C labels. Shares and correlations, never percentages, but
for the mean squared error; 0/0 is 0.

chrF (Popović 2015), as in sacrebleu: for n = 1 to 6, precision and recall of the character n-grams,
without blanks; the F of their means over n, with recall weighted twice. An n counts only if both
sides have n-grams, and for each example only if its target has any.

Answers are scored as by SQuAD's script (Rajpurkar et al. 2016, arXiv:1606.05250; evaluate-v2.0.py):
without case, ASCII punctuation and articles; exact match, and F1 of the words as bags. In a context
with more Han characters than words of other scripts they are scored as by CMRC 2018's (Cui et al.
2019, arXiv:1810.07366): each Han character is a word, and F1 uses the longest common substring."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rungwise.tasks.kinds.examples import Question, TaskInfo
from rungwise.tokenizer.mask_units import HAN

Numbers = NDArray[np.float64]
Predictions = Sequence[Mapping[str, Any]]
_ERRORS = ("loss", "mean_squared_error")


@dataclass(frozen=True)
class TaskMetric:
    """The sums (N, k) of examples, and the value (...) of their totals (..., k). Higher is better
    for a metric that can select a model."""

    count: Callable[[Predictions, Any, TaskInfo], Numbers]
    value: Callable[[Numbers], Numbers]
    selects: bool = True


def means(values: ArrayLike, counts: ArrayLike | None = None) -> Numbers:
    """Return the sums (N, 2) for `mean`: the values, and 1 or `counts`."""
    values_N = np.asarray(values, np.float64)
    return np.stack([values_N, np.ones(len(values_N)) if counts is None else counts], axis=1)


def mean(totals: Numbers) -> Numbers:
    return ratio(totals[..., 0], totals[..., 1])


def ratio(above: Numbers, below: Numbers) -> Numbers:
    """Divide, with 0 where `below` is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) != 0)


def thirds(totals: Numbers) -> list[Numbers]:
    """Split sums (..., 3C) into those of right predictions, of predictions, and of targets."""
    return np.split(totals, 3, axis=-1)


def f1_scores(totals: Numbers) -> Numbers:
    """Return the F1 of each class (..., C) from sums (..., 3C)."""
    right, predicted, gold = thirds(totals)
    return ratio(2 * right, predicted + gold)


def metric_range(metric: str) -> tuple[float, float]:
    """Return the lowest and highest possible value of a metric or a loss."""
    if metric in _ERRORS:
        return 0.0, math.inf
    return (-1.0 if metric in CORRELATIONS else 0.0), 1.0


CORRELATIONS = ("matthews", "pearson", "weighted_pearson", "spearman", "correlation")
# Decimal digits of metrics that are no shares.
OWN_UNITS = {
    "mean_squared_error": 3,
    "loss": 3,
    "bits_per_byte": 3,
    "perplexity": 1,
    "log_rank": 2,
    "tokens_per_second": 0,
}


def format_metric(value: float, metric: str) -> str:
    """A share as `78.2%`, a correlation times 100 as `52.1`, a loss as `0.412`."""
    if metric in OWN_UNITS:
        return f"{value:,.{OWN_UNITS[metric]}f}"
    return f"{100 * value:.1f}" + "%" * (metric not in CORRELATIONS)


_ORDERS = 6
_BETA_SQUARED = 4


def counts(text: str, gold: str) -> list[int]:
    """Count the n-grams of each n in `text`, then in `gold`, then in both."""
    pairs = list(zip(_ngrams(text), _ngrams(gold), strict=True))
    own = [a.total() if b else 0 for a, b in pairs]
    return [*own, *(b.total() for _, b in pairs), *((a & b).total() for a, b in pairs)]


def value(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the score (...) of summed counts (..., 18)."""
    own, gold, both = thirds(totals)
    orders = np.maximum(1, ((own > 0) & (gold > 0)).sum(axis=-1))
    precision, recall = (ratio(both, side).sum(axis=-1) / orders for side in (own, gold))
    return ratio((1 + _BETA_SQUARED) * precision * recall, _BETA_SQUARED * precision + recall)


def is_same_text(text: str, gold: str) -> bool:
    """Whether the texts are equal without blanks, which chrF ignores and many tokenizers lose."""
    return "".join(text.split()) == "".join(gold.split())


def _ngrams(text: str) -> list[Counter[str]]:
    letters = "".join(text.split())
    return [
        Counter(letters[n : n + order] for n in range(len(letters) - order + 1))
        for order in range(1, _ORDERS + 1)
    ]


_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HAN = re.compile(f"[{HAN}]")
_OTHER_WORD = re.compile(rf"[^\W{HAN}]+")
_WITHOUT_SIGNS = str.maketrans(
    "",
    "",
    "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』",  # noqa: RUF001
)
_OTHER = rf"[^\s{HAN}{re.escape(string.punctuation)}\u2013\u2014]+"  # en and em dash end a word
_CHINESE_WORD = re.compile(rf"[{HAN}]|{_OTHER}(?:[.,]{_OTHER})*|\S")


def score_answer(predicted: str, example: Question) -> tuple[float, float]:
    """Return (exact match, F1) of a text, "" for no answer. The example must have answers."""
    assert example.answers is not None, "an example without known answers has no score"
    chinese = is_chinese(example.context)
    bare = normalise_chinese if chinese else normalise
    prediction, golds = bare(predicted), [bare(answer.text) for answer in example.answers]
    golds = [gold for gold in golds if gold] or [""]
    return float(prediction in golds), max(_f1(gold, prediction, chinese) for gold in golds)


def normalise(text: str) -> str:
    """Normalise as SQuAD does: lower case, no punctuation, no articles, single blanks."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def normalise_chinese(text: str) -> str:
    """Normalise as CMRC does: lower case, without blanks at both ends and its list of signs."""
    return text.lower().strip().translate(_WITHOUT_SIGNS)


def is_chinese(text: str) -> bool:
    """Whether a text has more Han characters than words of other scripts."""
    return len(_HAN.findall(text)) > len(_OTHER_WORD.findall(text))


def _f1(gold: str, predicted: str, chinese: bool) -> float:
    """Return 2 shared / (all words of both); of no words 1 if the other has none either, else 0."""
    expected, words = map(_CHINESE_WORD.findall if chinese else str.split, (gold, predicted))
    if not expected or not words:
        return float(expected == words)
    shared = (Counter(expected) & Counter(words)).total()
    if chinese:
        shared = SequenceMatcher(None, expected, words, autojunk=False).find_longest_match().size
    return 2 * shared / (len(expected) + len(words))
