"""Model inputs: an example as rows of ids, framed as the model family reads them.

    one text    start  a a a  end
    two texts   start  a a a  between  b b b  end

In BERT start is [CLS] and the other two are [SEP] (Devlin et al. 2019, arXiv:1810.04805, figure 4).
In GPT they are three new tokens that fine-tuning learns: start, delimiter and extract (Radford et
al. 2018, "Improving Language Understanding by Generative Pre-Training", figure 1). Segments are 0
up to and including `between` and 1 after it; GPT ignores them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One sequence. `second` is the index of the first token of the second text, or of `end`."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    second: int


@dataclass(frozen=True)
class Cut:
    """A text that lost all but its tokens [begin, end)."""

    text: str
    begin: int
    end: int


@dataclass(frozen=True)
class Item:
    """The rows of one forward pass that give one prediction.

    An item has one row, or one for each option of a choice, or two for a pair that is read in both
    orders or apart.
    `example` is the index of its example; a long context gives several items. `target` is what the
    head is trained on, None if unknown:

        classification  the index of the label
        multilabel      1 for each of the task's labels that it has, 0 for the others
        regression      the number
        tagging         the index of the tag of each word in the item
        span            (start, end), positions in the row, both included; (0, 0) for no answer
        choice          the index of the option
        generation      the ids of the tokens to write, the end included

    `places` maps the row back to the example. Tagging: the row position of the token that
    represents each word (`first` is the index of the item's first word). Generation: the positions
    that predict the target. Span: [start, end) in characters of each context token, from
    `rows[0].second` on.

    `needs` is the length of the longest row if nothing were cut, infinite if another limit than
    the row's cuts a text, and `cut` what was cut.
    """

    rows: tuple[Row, ...]
    example: int
    target: Any = None
    places: tuple[Any, ...] = ()
    first: int = 0
    needs: float = field(default=0, compare=False)
    cut: tuple[Cut, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Frame:
    """The ids of the three marks, and the longest row, marks included.

    `reads_ahead`: whether a position sees those after it. If not, the last token represents a word.
    """

    start: int
    between: int
    end: int
    sequence_length: int
    reads_ahead: bool = True

    def one(self, text: Sequence[int]) -> Row:
        """A row of one text, which must fit."""
        ids = (self.start, *text, self.end)
        assert len(ids) <= self.sequence_length, "the text is longer than the frame"
        return Row(ids, (0,) * len(ids), len(ids) - 1)

    def two(self, first: Sequence[int], second: Sequence[int]) -> Row:
        """A row of two texts, which must fit together."""
        ids = (self.start, *first, self.between, *second, self.end)
        assert len(ids) <= self.sequence_length, "the texts are longer than the frame"
        begin = len(first) + 2
        return Row(ids, (0,) * begin + (1,) * (len(ids) - begin), begin)
