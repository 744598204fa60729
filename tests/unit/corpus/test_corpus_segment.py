"""Sentence segmentation: hand-worked cases, the gold sentences of Brown, and what always holds."""

# ruff: noqa: RUF001  (stops and quotes of other scripts are the subject here)
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rungwise.corpus.cleaning.text import segment

# Sentences end at each bar.
MARKED = (
    'Dr. Smith paid $3.50. |"Why?" he asked. |He left.',
    "It rained! |Did it? |It did… |Then it stopped...",
    "He said “stop.” |Then (it seems) he left. |(Really.) |Yes.",
    "The U.S. Army and the U.S. Navy met. |He lives in the U.S. |The end.",
    "Acme Inc. Chairman J. F. Smith Jr. resigned. |He was ill.",
    "Use the matrix A. |The rows come first.",
    "See Fig. 3, Eq. (2) and pp. 4-6 of vol. 2. |They differ, e.g. Table 1 vs. Table 2.",
    "It was on Jan. 5 at 3 p.m. in St. Louis. |No. 7 won.",
    "They asked him. |No. |He had gone.",
    "Steps follow:\n|1. Open it. |2. Close it.",
    "Version 2.0.1 is out, at example.com/a.b today. |3 people saw it.",
    "apples, pears, etc. were sold. |Nobody bought any, etc. |The shop closed.",
    "Été est venu. |À demain.",
    "今天好。|“你好吗？”|他说。",
    "A title without a stop\n|Then a line that ends.",
    # Chinese and Japanese, without blanks.
    "他走了……|后来才回来。|你呢？|好！",
    "“真的吗……”|他问。|“没有人听见……。”",
    "……教你看。|好教得知。……”|他说。",
    "他问：“来吗？”，她不答。|“待我渡河。”、徐晃领命去了。",
    "第一，风；第二，雨；第三，雪。|完了。",
    "（完。）|《书。》|下一本。",
    '"好。"|他说。|"走吧。|今天走。"|她问："去哪？"|他不说。',
    '玉问：“他不在家么？"|尤氏道：“出城了。”|走。',
    "研究了算法.|实验结果表明,有效(P<0.05).|占99%.|血压为0.78.|结果好.",
    "为宜.|2.根据水体.|PA 6材料.|(3)中高纬度.",
    "价３．５元．|他走了．",
    "参见百度.com和J.华生的书。|好。",
    "今日は寒い。|「本当ですか？」|と聞いた。",
    # A quote left open does not reach the next paragraph.
    '他说："好。|走。\n|"好。"|他说。',
    # In text without capitals a small letter opens a sentence; one capital makes it go on.
    "dr. smith paid $3.50. |why? |he left... |it was late (really). |yes!",
    "the u.s. army met mr. j. smith of acme inc. in may. |he is in the u.s. |the end.",
    "see fig. 3 and pp. 4-6, e.g. table 1 vs. table 2. |no. |they differ, dr. no.",
    "it cost 3 p.m. tickets. |été 2.0 came. |version 2.0.1 is at example.com/a.b today.",
    "steps follow:\n|1. open it. |2. close it.",
    "dna有效.|参见百度.com和j.华生的书。 |rna好。",
    "no stop stands in this line\n|nor in this one",
    "it rained. |it stopped.",
    "it rained. it stopped. |I left.",
)


@pytest.mark.parametrize("marked", MARKED)
def test_a_text_is_cut_at_its_bars_and_nowhere_else(marked: str) -> None:
    assert segment(marked.replace("|", "")) == [one.strip() for one in marked.split("|")]


def test_a_text_of_stops_alone_ends() -> None:
    for text in ("." * 300_000, "。" * 300_000 + "，", '." ' * 100_000):
        assert "".join(segment(text)).replace(" ", "") == text.replace(" ", "")


def test_abstracts_that_use_ascii_stops_come_apart(real_data: Path) -> None:
    path = real_data / "corpora" / "zh" / "csl_abstracts" / "abstracts.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()[::4]
    sentences = [sentence for line in lines for sentence in segment(line)]
    # Thousands of abstracts of a few sentences each; half of them use no stop of their own script.
    assert len(sentences) > 3 * len(lines)
    assert not [one for one in sentences if one[0] in "，、；：。"]


WORDS = (
    "Dr. A. no The U.S. ... ?! ( ) 3.14 1. e.g. etc. end. [1] Jan. "
    "\u201c \u201d \u3002 \uff1f \u4f60 \u00e9 \u2026 \uff0e \uff0c \u2026\u2026 \u4f60.\u4f60"
)
PIECES = st.sampled_from([*WORDS.split(), "\n", " ", "\t", '"'])


@example("")
@example("\n \n\t")
@given(st.text() | st.lists(PIECES).map("".join) | st.lists(PIECES).map(" ".join))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    sentences = segment(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
    assert all("\n" not in sentence for sentence in sentences)


def _printed(tokens: str) -> str:
    """A tokenised sentence of Brown as it stood on paper."""
    text = re.sub(r" ([.,!?;:)\]'\u2019]|''|n't\b|'s\b)", r"\1", tokens)
    text = text.replace("`` ", '"').replace("''", '"').replace("( ", "(")
    # Brown repeats a closing mark that stands inside and outside of quotes.
    return re.sub(r'([.!?;])[;?!.]+(?=["\s]|$)', r"\1", text)


def _ends(sentences: list[str]) -> set[int]:
    position, ends = 0, set()
    for sentence in sentences:
        position += len("".join(sentence.split()))
        ends.add(position)
    return ends


# Measured: 0.9981 and 0.9852; missed mostly before dashes and the numbers of lists.
@pytest.mark.parametrize(
    ("fold", "precision", "recall"), [(str, 0.997, 0.984), (str.lower, 0.996, 0.983)]
)
def test_gold_sentences_of_brown(
    real_data: Path, fold: Callable[[str], str], precision: float, recall: float
) -> None:
    path = real_data / "corpora" / "en" / "brown" / "brown.txt.gz"
    found = right = gold_ends = 0
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    for document in text.strip().split("\n\n")[::2]:
        gold = [fold(_printed(line)) for line in document.split("\n")]
        expected, got = _ends(gold), _ends(segment(" ".join(gold)))
        # Brown also ends sentences at semicolons and after headings, which bear no full stop.
        expected = {
            end
            for end, sentence in zip(sorted(expected), gold, strict=True)
            if re.search(r"""[.!?]["')\]]*$""", sentence)
        } | {max(expected)}
        found += len(got)
        gold_ends += len(expected)
        right += len(got & expected)
    print(f"precision {right / found:.4f}, recall {right / gold_ends:.4f}, of {gold_ends}")
    assert right / found > precision
    assert right / gold_ends > recall
