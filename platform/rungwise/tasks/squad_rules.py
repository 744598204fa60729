"""When an answer is right: the rules of SQuAD's official script, and CMRC 2018's for Chinese.

SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250; evaluate-v2.0.py, 2018): case, ASCII punctuation,
the articles a, an, the and extra white space do not count. Exact match compares what is left, F1
the words that both have as bags. The best of several marked answers counts. A question without an
answer, or whose marked answers are all empty by these rules, is right only if nothing is answered.

CMRC 2018 (Cui et al. 2019, arXiv:1810.07366; cmrc2018_evaluate.py): case and a list of signs do not
count, each han character is a word, and F1 counts the longest stretch that both have in common
instead of a bag. Of other writing the script makes words by NLTK; here they are what stands between
blanks, dashes and ASCII punctuation, with points and commas inside, and each such sign alone. Which
rule an example falls under is told by its context: Chinese is what has more han characters than
words of other writing.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from rungwise.instances.segmenters import HAN
from rungwise.tasks.examples import Question

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HAN = re.compile(f"[{HAN}]")
_OTHER_WORD = re.compile(rf"[^\W{HAN}]+")
_WITHOUT_SIGNS = str.maketrans(
    "",
    "",
    "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』",  # noqa: RUF001
)
_OTHER = rf"[^\s{HAN}{re.escape(string.punctuation)}\u2013\u2014]+"  # two dashes are signs too
_CHINESE_WORD = re.compile(rf"[{HAN}]|{_OTHER}(?:[.,]{_OTHER})*|\S")


def of_example(predicted: str, example: Question) -> tuple[float, float]:
    """(exact match, F1) of a predicted text, "" for no answer. The example must have answers."""
    assert example.answers is not None, "an example without known answers has no score"
    chinese = is_chinese(example.context)
    bare = chinese_normalised if chinese else normalised
    golds = [answer.text for answer in example.answers if bare(answer.text)] or [""]
    f1 = chinese_f1 if chinese else word_f1
    return (
        max(float(bare(gold) == bare(predicted)) for gold in golds),
        max(f1(gold, predicted) for gold in golds),
    )


def normalised(text: str) -> str:
    """SQuAD's: lower case, no punctuation, no articles, single blanks; in this order."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def word_f1(gold: str, predicted: str) -> float:
    """SQuAD's F1 of two texts; without words on a side 1 if both have none, else 0."""
    wanted, found = normalised(gold).split(), normalised(predicted).split()
    shared = sum((Counter(wanted) & Counter(found)).values())
    return _f1(shared, wanted, found)


def chinese_normalised(text: str) -> str:
    """CMRC's: lower case, without the signs it lists and blanks at both ends."""
    return text.lower().strip().translate(_WITHOUT_SIGNS)


def chinese_f1(gold: str, predicted: str) -> float:
    """CMRC's F1 of two texts; without words on a side 1 if both have none, else 0."""
    wanted = _CHINESE_WORD.findall(chinese_normalised(gold))
    found = _CHINESE_WORD.findall(chinese_normalised(predicted))
    return _f1(_longest_common_stretch(wanted, found), wanted, found)


def is_chinese(text: str) -> bool:
    """Whether a text has more han characters than words of other writing."""
    return len(_HAN.findall(text)) > len(_OTHER_WORD.findall(text))


def _f1(shared: int, wanted: Sequence[str], found: Sequence[str]) -> float:
    if not wanted or not found:
        return float(list(wanted) == list(found))
    return 2 * shared / (len(wanted) + len(found))


def _longest_common_stretch(first: Sequence[str], second: Sequence[str]) -> int:
    longest = 0
    lengths = [0] * (len(second) + 1)  # of the common stretch that ends before each of `second`
    for word in first:
        lengths = [0] + [
            lengths[place] + 1 if word == other else 0 for place, other in enumerate(second)
        ]
        longest = max(longest, *lengths)
    return longest
