"""Score answers by the rules of SQuAD's official script, and of CMRC 2018's for Chinese.

SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250; evaluate-v2.0.py, 2018) ignores case, ASCII
punctuation, the articles a, an, the and extra white space. Exact match compares the rest, F1 its
words as bags; the best of several gold answers counts. A question without an answer, or whose gold
answers are all empty by these rules, is right only if nothing is answered.

CMRC 2018 (Cui et al. 2019, arXiv:1810.07366; cmrc2018_evaluate.py) ignores case and a list of
signs, each Han character is a word, and F1 uses the longest common substring instead of bags. For
other scripts the official code uses NLTK's words; here a word is a run between blanks, dashes and
ASCII punctuation, with points and commas inside, and each such sign is a word. These rules apply to
a context with more Han characters than words of other scripts.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from rungwise.tasks.kinds.examples import Question
from rungwise.tokens.segmenters import HAN

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
    f1 = max(
        _chinese_f1(gold, prediction) if chinese else _word_f1(gold, prediction) for gold in golds
    )
    return float(prediction in golds), f1


def normalise(text: str) -> str:
    """Normalise as SQuAD does: lower case, no punctuation, no articles, single blanks."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def _word_f1(gold: str, predicted: str) -> float:
    expected, words = gold.split(), predicted.split()
    shared = sum((Counter(expected) & Counter(words)).values())
    return _f1(shared, expected, words)


def normalise_chinese(text: str) -> str:
    """Normalise as CMRC does: lower case, without blanks at both ends and its list of signs."""
    return text.lower().strip().translate(_WITHOUT_SIGNS)


def _chinese_f1(gold: str, predicted: str) -> float:
    expected, words = _CHINESE_WORD.findall(gold), _CHINESE_WORD.findall(predicted)
    return _f1(_longest_common_run(expected, words), expected, words)


def is_chinese(text: str) -> bool:
    """Whether a text has more Han characters than words of other scripts."""
    return len(_HAN.findall(text)) > len(_OTHER_WORD.findall(text))


def _f1(shared: int, expected: Sequence[str], words: Sequence[str]) -> float:
    """Return 2 shared / (all words of both); of no words 1 if the other has none either, else 0."""
    if not expected or not words:
        return float(list(expected) == list(words))
    return 2 * shared / (len(expected) + len(words))


def _longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    longest = 0
    lengths = [0] * (len(second) + 1)  # of the common substring that ends before each position
    for word in first:
        lengths = [0] + [
            lengths[place] + 1 if word == other else 0 for place, other in enumerate(second)
        ]
        longest = max(longest, *lengths)
    return longest
