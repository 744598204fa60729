"""Runs of consecutive sentences, for models that predict a sentence's neighbours: Quick-thoughts
(Logeswaran & Lee 2018, arXiv:1803.02893) and its kin. What is shuffled is the run.

B batch, R sentences of a run, L tokens of a sentence
"""

from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.arrays import Ints
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import SentenceRuns
from rungwise.instances.kind import Built, Facts, Kind
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows, Shard, gather


class SentenceRunsConfig(Kind):
    """Runs of consecutive sentences, of which each is predicted from its neighbours."""

    kind: Literal["sentence_runs"] = "sentence_runs"
    sentences: int = Field(default=50, ge=2, le=4096)  # most sentences of a run
    sentence_length: int = Field(default=30, ge=1, le=4096)  # tokens of a sentence; the rest is cut
    packed: bool = False  # a run continues with the next document

    @property
    def length(self) -> int:
        return self.sentences * self.sentence_length

    @property
    def width(self) -> int:
        return self.sentences * (self.sentence_length + 2)

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        # A row is `s1 [END] s2 [END] ... sn [END]`, with one more [END] between documents. Runs of
        # a document differ by at most one sentence; one without a neighbour is left out.
        (end_id,) = special.require("end")
        first = text.first_sentence
        sizes = np.diff(first if planned is None else first[: planned + 1])  # sentences a document
        document = np.repeat(np.arange(len(sizes)), sizes)
        sentence = np.arange(len(document))
        lengths = np.diff(text.starts[: len(document) + 1])
        cut = np.minimum(lengths, self.sentence_length)
        run = self._runs(sizes, document, sentence - first[document])
        follows = np.append(False, (np.diff(document) == 0) & (np.diff(run) == 0))
        alone = ~(follows | np.append(follows[1:], False))
        keep = np.ones_like(alone) if self.packed else ~alone
        sentence, document, run = sentence[keep], document[keep], run[keep]
        # Before a sentence the [END] of another document in the run, behind it its own.
        opens_run = np.diff(run, prepend=-1) != 0
        closes_other = ~opens_run & (np.diff(document, prepend=-1) != 0)
        symbol, one = np.full(len(sentence), len(text.ids)), np.ones(len(sentence), dtype=np.int64)
        begin = np.stack([symbol, text.starts[sentence], symbol], axis=1)
        sizes_of_row = np.stack([closes_other, cut[sentence], one], axis=1)
        source = np.append(text.ids, np.array([end_id], text.ids.dtype))
        rows = np.flatnonzero(opens_run)
        ends = np.append(0, np.cumsum(sizes_of_row.sum(axis=1)))
        bounds = np.append(rows, len(sentence))
        columns = {
            "sentences": np.diff(bounds).astype(np.uint16),
            "documents": np.add.reduceat(closes_other, rows).astype(np.uint16) + np.uint16(1),
            "document": text.documents[document[rows]],
        }
        (ids,) = gather([source], begin, sizes_of_row)
        text_tokens = int(lengths.sum())
        counts = {
            "text_tokens": text_tokens,
            "tokens_unused": text_tokens - int(cut[sentence].sum()),
            "text_sentences": len(lengths),
            "sentences_cut": int((lengths > self.sentence_length).sum()),
            "sentences_alone": int(alone.sum()),
        }
        return Built(Shard(ids, ends[bounds], columns), counts)

    def _runs(self, sizes: Ints, document: Ints, place: Ints) -> Ints:
        """The number of each sentence's run; `place` is that of the sentence in its document."""
        if self.packed:
            return np.arange(len(document)) // self.sentences
        parts = -(-sizes // self.sentences)  # of each document
        return (np.cumsum(parts) - parts)[document] + place * parts[document] // sizes[document]

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        (end_id,) = facts.special.require("end")
        sentences, bounds = (
            shard.columns[name].astype(np.int64) for name in ("sentences", "documents")
        )
        total = int(sentences.sum())
        symbols = total + int((bounds - 1).sum())
        counts = facts.check_rows(shard, self.width, {end_id: symbols})
        last = shard.ids[shard.offsets[1:] - 1]
        what = "runs that do not end with the end symbol"
        facts.check(what, int((last != end_id).sum()), "exactly", 0)
        lengths = np.diff(np.flatnonzero(shard.ids == end_id), prepend=-1) - 1
        facts.check("sentences with a token", int((lengths > 0).sum()), "exactly", total)
        longest, most = int(lengths.max(initial=0)), int(sentences.max(initial=0))
        facts.check("tokens of a sentence", longest, "at most", self.sentence_length)
        facts.check("sentences of a run", most, "at most", self.sentences)
        return {**counts, "sentences": total, "sentence_tokens": int(lengths.sum())}

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        text_sentences = max(totals["text_sentences"], 1)
        return {
            "sentences": totals["sentences"],
            "cut_share": totals["sentences_cut"] / text_sentences,
            "alone_share": totals["sentences_alone"] / text_sentences,
            "fill": totals["sentence_tokens"] / max(totals["instances"] * self.length, 1),
            **self.count_unused_tokens(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{totals['sentences'] / 1e3:.1f} k sentences  {statistics['cut_share']:.1%} cut at "
            f"{self.sentence_length} tokens  {statistics['alone_share']:.1%} without a neighbour  "
            f"{statistics['unused_share']:.2%} of the text unused"
        )

    def batch(
        self, rows: PaddedRows, epochs: Ints, seed: int, vocabulary: Vocabulary
    ) -> SentenceRuns[NDArray[Any]]:
        """Split rows at their symbols into sentences."""
        column = np.arange(rows.ids.shape[1])[None, :]
        real = column < rows.lengths[:, None]
        symbol = (rows.ids == vocabulary.end) & real
        # Where the sentence of each position begins: behind the last symbol before it.
        after = np.maximum.accumulate(np.where(symbol, column + 1, 0), axis=1)
        begin = np.pad(after, ((0, 0), (1, 0)))[:, :-1]
        closes = symbol & (column > begin)  # not the symbol between documents
        number = np.cumsum(closes, axis=1) - closes
        shape = (len(rows.ids), self.sentences)
        ids = np.zeros((*shape, self.sentence_length), dtype=np.int64)
        lengths, document = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        row, place = np.nonzero(real & ~symbol)
        ids[row, number[row, place], place - begin[row, place]] = rows.ids[row, place]
        row, place = np.nonzero(closes)
        lengths[row, number[row, place]] = place - begin[row, place]
        document[row, number[row, place]] = 1 + np.cumsum(symbol & ~closes, axis=1)[row, place]
        return SentenceRuns(ids, lengths, document)
