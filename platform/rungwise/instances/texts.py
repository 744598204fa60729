"""Text without masks, in packed blocks, documents, pairs and runs of sentences; and masked blocks
that are also read in another way.

Causal blocks are packed: the instances of GPT (Radford et al. 2018, 2019). Texts are documents, the
pairs of a task, or runs of consecutive sentences for models that predict a sentence's neighbours,
as Quick-thoughts (Logeswaran & Lee 2018, arXiv:1803.02893); what is shuffled is the run. Of masked
blocks some are read from left to right (GPT-BERT, Charpentier & Samuel 2024, arXiv:2410.24159), or
spans are taken out, and written (T5).

B batch, L tokens of a text, T sequence, M tokens that a row writes, R sentences of a run
"""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.arrays import Bools, Ints
from rungwise.core.errors import BlockError, DataError
from rungwise.core.randomness import uniform
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import (
    CausalAndMaskedBatch,
    CausalBatch,
    DocumentRows,
    LabelledPairs,
    MaskedBatch,
    SentenceRuns,
    TextPairs,
)
from rungwise.instances.kind import Built, Facts, Kind
from rungwise.instances.masking import MaskingConfig, Vocabulary
from rungwise.instances.pairs import MaskedBlocksConfig
from rungwise.instances.shards import PaddedRows, Shard, gather

_SHORTEST = 8  # tokens of a block


class TextsKind(Kind):
    """Rows of one text or two, each cut at the same length."""

    texts: ClassVar[str]  # what they are called in statistics
    per_row: ClassVar[int]

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most tokens of a text."""

    @property
    def length(self) -> int:
        return self.per_row * self.longest

    @abstractmethod
    def columns(self, text: TokenisedText, cut: Ints) -> dict[str, NDArray[Any]]:
        """Return the columns of rows whose texts have these lengths (B, `per_row`)."""

    def cut_texts(self, text: TokenisedText, starts: Ints) -> Built:
        """Build the rows of the texts that begin and end at `starts`."""
        begin = starts[:-1].reshape(-1, self.per_row)
        lengths = np.diff(starts).reshape(begin.shape)
        cut = np.minimum(lengths, self.longest)
        (ids,) = gather([text.ids], begin, cut)
        counts = {
            "text_tokens": int(lengths.sum()),
            "tokens_unused": int((lengths - cut).sum()),
            f"{self.texts}_cut": int((lengths > cut).sum()),
        }
        offsets = np.append(0, np.cumsum(cut.sum(axis=1)))
        return Built(Shard(ids, offsets, self.columns(text, cut)), counts)

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        return facts.check_rows(shard, self.length, {})

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        rows, cut = max(totals["instances"], 1), totals[f"{self.texts}_cut"]
        return {
            f"{self.texts}_cut": cut,
            "cut_share": cut / (self.per_row * rows),
            "fill": totals["tokens"] / (rows * self.length),
            **self.count_unused_tokens(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{statistics['cut_share']:.1%} of the {self.texts} cut at {self.longest} tokens  "
            f"{statistics['unused_share']:.2%} of the text unused"
        )


class DocumentRowsConfig(TextsKind):  # for sequence auto-encoders (Dai & Le 2015)
    """Whole documents, each a row."""

    texts = "documents"
    per_row = 1

    kind: Literal["document_rows"] = "document_rows"
    # tokens of a document; the rest is cut
    sequence_length: int = Field(default=512, ge=1, le=1 << 20)

    @property
    def longest(self) -> int:
        return self.sequence_length

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        return self.cut_texts(text, text.starts[text.first_sentence[: planned + 1]])

    def columns(self, text: TokenisedText, cut: Ints) -> dict[str, NDArray[Any]]:
        return {"document": text.documents[: len(cut)]}

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> DocumentRows:
        real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
        return DocumentRows(np.where(real, rows.ids, 0).astype(np.int64), rows.lengths)


class TextPairsKind(TextsKind):
    """The pairs of a task. A document of the text is a pair, its two sentences are the texts."""

    texts = "texts"
    per_row = 2
    labelled: ClassVar[bool] = True
    reads_labels: ClassVar[bool] = False  # of the task, and not texts to write

    sentence_length: int = Field(default=64, ge=1, le=4096)  # tokens of a text; the rest is cut

    @property
    def longest(self) -> int:
        return self.sentence_length

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        if (text.labels is None) == self.reads_labels:
            tasks = ["a text to write for each text", "one label for a pair of texts"]
            kinds, own = ["aligned_lines", "labelled_pairs"], int(self.reads_labels)
            raise DataError(
                f"{self.kind} need a task with {tasks[own]}, found one with {tasks[1 - own]}; name "
                f"another task in the step, or take {kinds[1 - own]}"
            )
        return self.cut_texts(text, text.starts[: 2 * planned + 1])

    def columns(self, text: TokenisedText, cut: Ints) -> dict[str, NDArray[Any]]:
        return {"first_length": cut[:, 0].astype(np.uint16)}

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        counts = super().check(shard, facts)
        first = shard.columns["first_length"].astype(np.int64)
        lengths = np.stack([first, shard.lengths - first])
        shortest, longest = int(lengths.min(initial=1)), int(lengths.max(initial=0))
        facts.check("tokens of a text", shortest, "at least", 1)
        facts.check("tokens of a text", longest, "at most", self.sentence_length)
        return counts

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> TextPairs:
        """Split rows into their two texts."""
        first = rows.columns["first_length"].astype(np.int64)
        row, column = np.nonzero(np.arange(rows.ids.shape[1]) < rows.lengths[:, None])
        second = (column >= first[row]).astype(np.int64)
        ids = np.zeros((len(first), 2, self.sentence_length), dtype=np.int64)
        ids[row, second, column - second * first[row]] = rows.ids[row, column]
        return TextPairs(ids, np.stack([first, rows.lengths - first], axis=1))


class AlignedLinesConfig(TextPairsKind):
    """Pairs of a text and the one to write for it, of a task."""

    kind: Literal["aligned_lines"] = "aligned_lines"


class LabelledPairsConfig(TextPairsKind):
    """Pairs of texts of a task, of which the label is predicted."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["labelled_pairs"] = "labelled_pairs"

    def columns(self, text: TokenisedText, cut: Ints) -> dict[str, NDArray[Any]]:
        assert text.labels is not None
        return {**super().columns(text, cut), "label": text.labels[: len(cut)]}

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        counts = super().check(shard, facts)
        label = shard.columns["label"].astype(np.int64)
        facts.check("largest label", int(label.max(initial=0)), "below", facts.labels)
        pairs_per_label = np.bincount(label, minlength=facts.labels).tolist()
        return counts | {f"label_{number}": count for number, count in enumerate(pairs_per_label)}

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        per_label = {key: count for key, count in totals.items() if key.startswith("label_")}
        return {
            "labels": len(per_label),
            **per_label,
            "largest_label_share": max(per_label.values()) / max(totals["instances"], 1),
            **super().statistics(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{statistics['labels']} labels, {statistics['largest_label_share']:.1%} have the most "
            f"frequent  {super().headline(totals, statistics)}"
        )

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> LabelledPairs:
        pairs = super().batch(rows, epochs, seed, vocab)
        return LabelledPairs(pairs.ids, pairs.lengths, rows.columns["label"].astype(np.int64))


class DenoisedSpansConfig(MaskedBlocksConfig):
    """Blocks of text with spans taken out, to be written after them."""

    kind: Literal["denoised_spans"] = "denoised_spans"  # pyright: ignore[reportIncompatibleVariableOverride]
    packed: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    # which tokens to take out; its other shares have no effect
    masking: MaskingConfig = Field(default=MaskingConfig(unit="span"))

    @model_validator(mode="after")
    def _room_for_spans(self) -> Self:
        if self._block < _SHORTEST:
            raise BlockError(
                f"sequence_length {self.sequence_length} must be at least {_SHORTEST} more than "
                f"twice masking.max_predictions {self.masking.max_predictions}, which it leaves "
                "room for",
                {"sequence_length": _SHORTEST + 2 * self.masking.max_predictions},
            )
        return self

    @property
    def _block(self) -> int:
        """The most tokens of a block as it is stored."""
        return self.sequence_length - 2 * self.masking.max_predictions

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        shorter = self.model_copy(update={"sequence_length": self._block})
        return MaskedBlocksConfig.make(shorter, text, special, rng, planned)

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> MaskedBatch:
        """Take the spans out, as T5 (Raffel et al. 2020, arXiv:1910.10683), in the form of one row,
        `[CLS] a [MASK] d [SEP] | [MASK] b c [SEP]` for a text of which b and c are masked. A single
        [MASK] stands for each span in both texts, as in BART (Lewis et al. 2020, arXiv:1910.13461).
        `masked_positions` are the places from which the tokens of the second text are predicted."""
        masked = super().batch(rows, epochs, seed, vocab)
        ids, hidden = masked.originals(), np.zeros(masked.ids.shape, dtype=bool)
        row, column = np.nonzero(masked.masked_weights)
        hidden[row, masked.masked_positions[row, column]] = True
        (end,) = vocab.special.require("sep")
        texts = [
            _take_out(ids[number, :length], hidden[number, :length], vocab.id_of("mask"), end)
            for number, length in enumerate(rows.lengths.tolist())
        ]
        first, second = (
            np.array([len(text) for text in part]) for part in zip(*texts, strict=True)
        )
        lengths, most = first + second - 1, self.masking.max_predictions  # the end is not read
        shape = (len(texts), self.length)
        ids_BT, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        places, targets = (np.zeros((len(texts), 2 * most + 1), np.int64) for _ in range(2))
        for number, (source, target) in enumerate(texts):
            ids_BT[number, : lengths[number]] = np.append(source, target[:-1])
            segments[number, first[number] : lengths[number]] = 1
            places[number, : len(target)] = first[number] - 1 + np.arange(len(target))
            targets[number, : len(target)] = target
        weights = (np.arange(places.shape[1]) < second[:, None]).astype(np.float32)
        label = np.ones(len(texts), np.int64)
        return MaskedBatch(ids_BT, segments, lengths, places, targets, weights, label)


def _take_out(ids: Ints, hidden: Bools, mask: int, end: int) -> tuple[Ints, Ints]:
    """The text without its spans, and the spans; [MASK] stands for, and before, each."""
    begins = hidden & ~np.append(False, hidden[:-1])
    source = np.where(begins, mask, ids)[~hidden | begins]
    target = np.insert(ids[hidden], np.flatnonzero(begins[hidden]), mask)
    return source, np.append(target, end)


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

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        # A row is `s1 [END] s2 [END] ... sn [END]`, with one more [END] between documents. Runs of
        # a document differ by at most one sentence; one without a neighbour is left out.
        (end_id,) = special.require("end")
        first = text.first_sentence
        sizes = np.diff(first[: planned + 1])  # sentences a document
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

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> SentenceRuns:
        """Split rows at their symbols into sentences."""
        column = np.arange(rows.ids.shape[1])[None, :]
        real = column < rows.lengths[:, None]
        symbol = (rows.ids == vocab.id_of("end")) & real
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


_DRAW = 0xCA05  # separates the choice of rows from other random numbers


class CausalConfig(Kind):
    """Blocks of text in which each token is predicted from those before."""

    kind: Literal["causal"] = "causal"
    sequence_length: int = Field(default=1024, ge=2, le=1 << 20)  # tokens predicted per block

    @property
    def length(self) -> int:
        return self.sequence_length

    @property
    def width(self) -> int:
        return self.sequence_length + 1

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        # One stream, `[END] d1 [END] d2 ... dn [END]`, cut into blocks of T + 1 tokens that overlap
        # by one: every token is predicted once, and none from another document.
        (end_id,) = special.require("end")
        begins = text.starts[text.first_sentence]  # documents + 1
        begins = begins[: planned + 1]
        tokens = int(begins[-1])
        stream = np.empty(tokens + planned + 1, dtype=text.ids.dtype)
        is_end = np.zeros(len(stream), dtype=bool)
        is_end[begins + np.arange(planned + 1)] = True
        stream[is_end] = end_id
        stream[~is_end] = text.ids[:tokens]
        block = self.sequence_length
        count = -(-(len(stream) - 1) // block)
        first = np.arange(count) * block
        lengths = np.minimum(first + block + 1, len(stream)) - first
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Each block but the first repeats the last token of the one before it.
        ids = np.insert(stream, first[1:], stream[first[1:]])
        counts = {"documents_joined": planned, "text_tokens": tokens}
        return Built(Shard(ids, offsets), counts)

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        (end_id,) = facts.special.require("end")
        ends = int((shard.ids == end_id).sum())
        counts = facts.check_rows(shard, self.sequence_length + 1, {end_id: ends})
        lengths = shard.lengths
        short = int((lengths != self.sequence_length + 1).sum())
        facts.check("blocks that are not full", short, "at most", facts.sections)
        last, first = shard.ids[shard.offsets[1:-1] - 1], shard.ids[shard.offsets[1:-1]]
        what = "blocks that do not begin with the last token of the one before"
        facts.check(what, int((last != first).sum()), "exactly", 0)
        framed = len(shard.ids) > 0 and shard.ids[0] == end_id and shard.ids[-1] == end_id
        facts.check("stream framed by end symbols", int(framed), "exactly", 1)
        return {
            **counts,
            "predicted": int((lengths - 1).sum()),
            "ends": ends - len(first[first == end_id]),
        }

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        # Every token and end symbol is predicted once, except the symbol that opens a section.
        unused = totals["text_tokens"] + totals["documents_joined"] - totals["predicted"]
        return {
            "fill": totals["predicted"] / (totals["instances"] * self.sequence_length),
            "tokens_unused": unused,
            "unused_share": unused / max(1, totals["text_tokens"] + totals["documents_joined"]),
        }

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> CausalBatch:
        """Split rows into inputs and targets, and derive documents and positions."""
        ids = rows.ids.astype(np.int64)
        inputs = ids[:, :-1]
        column = np.arange(inputs.shape[1])[None, :]
        opens = inputs == vocab.id_of("end")
        begin = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
        return CausalBatch(
            inputs,
            ids[:, 1:],
            (column < rows.lengths[:, None] - 1).astype(np.float32),
            np.cumsum(opens, axis=1),
            column - begin,
        )


class CorruptedWordsConfig(CausalConfig):
    """Blocks of text with a random word for each token."""

    kind: Literal["corrupted_words"] = "corrupted_words"  # pyright: ignore[reportIncompatibleVariableOverride]

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> CausalBatch:
        """Return the inputs, with the random words as targets (B, T)."""
        batch = super().batch(rows, epochs, seed, vocab)
        ordinary = np.setdiff1d(np.arange(vocab.size), vocab.special.ids)
        place_T = np.arange(batch.ids.shape[1])
        draws_BT = uniform(seed, epochs[:, None], rows.instances[:, None], place_T)
        noise_BT = ordinary[(draws_BT * len(ordinary)).astype(np.int64)]
        return dataclasses.replace(batch, targets=noise_BT)


class CausalAndMaskedConfig(MaskedBlocksConfig):
    """Blocks of text, some masked, some read from left to right."""

    kind: Literal["causal_and_masked"] = "causal_and_masked"  # pyright: ignore[reportIncompatibleVariableOverride]
    causal_share: float = Field(default=0.5, ge=0, le=1)  # of the rows

    @property
    def masked_per_row(self) -> float:
        """The mean number of tokens predicted in a full row."""
        share = self.causal_share
        return share * self.length + (1 - share) * super().masked_per_row

    def batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary
    ) -> CausalAndMaskedBatch:
        masked = super().batch(rows, epochs, seed, vocab)
        draws_B = uniform(seed, epochs, rows.instances, _DRAW)
        return CausalAndMaskedBatch(
            masked.originals(),
            rows.lengths,
            draws_B < self.causal_share,
            _next_tokens(masked),
            masked,
        )


def _next_tokens(masked: MaskedBatch[NDArray[Any]]) -> CausalBatch[NDArray[Any]]:
    """The rows unmasked, each token with the one after it; nothing is predicted across texts."""
    assert masked.lengths is not None
    ids, T = masked.originals(), masked.ids.shape[1]
    place_BT = np.broadcast_to(np.arange(T), ids.shape)
    targets, weights = np.roll(ids, -1, axis=1), place_BT < masked.lengths[:, None] - 1
    document, positions = masked.document, masked.positions
    if document is None or positions is None:
        document, positions = np.zeros_like(ids), place_BT
    else:
        weights = weights & (document == np.roll(document, -1, axis=1))
    return CausalBatch(ids, targets, weights.astype(np.float32), document, positions)
