"""The mean log rank of held-out words, for models that score windows of text and give no
probabilities (Turian et al. 2010, "Word representations", ACL).

    every word of the vocabulary in a word's place ──> scores ──> ln of the rank of its own

A model that knows nothing ranks words at random: about ln V - 1. The exponential of the value is
the geometric mean of the ranks.
"""

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rungwise.evaluation.suites.base import Rung, Suite, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.perplexity import held_out_texts
from rungwise.evaluation.suites.section import Column, MeasuredRung, compare_rungs
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import RanksWords


class RanksSuite(Suite):
    """Ranks of words of the held-out split."""

    needs: ClassVar[str] = "scores of all words in the place of one"
    capability: ClassVar[type] = RanksWords

    kind: Literal["ranks"] = "ranks"
    words: int = Field(default=1000, ge=1)  # held-out words to rank, evenly spread

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        (end,) = rung.special.require("end")
        texts = sorted(held_out_texts(rung, end), key=lambda text: text.name)
        starts = np.cumsum([0, *(len(text.ids) for text in texts)])
        samples = evenly(int(starts[-1]), self.words)
        places = [
            (samples[(samples >= begin) & (samples < stop)] - begin).tolist()
            for begin, stop in itertools.pairwise(starts)
        ]
        ranks = rung.model.ranks([text.ids for text in texts], places)
        sums = [[np.log(each).sum(), len(each)] for each in ranks]
        nonempty = [number for number, each in enumerate(places) if each]
        names = [texts[number].name for number in nonempty]
        numbers = np.array(sums)[nonempty]
        return SuiteResult([Items(name, "log_rank", names, [""] * len(names), numbers)])

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "log_rank", name=f"log rank ({name})")]
