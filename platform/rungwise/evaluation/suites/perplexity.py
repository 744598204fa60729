"""Perplexity and bits per byte of held-out text.

All rungs predict the same tokens of the same documents, each document's end included. Of a model
that reads both sides the values are pseudo-perplexities (Salazar et al. 2020, arXiv:1910.14659):
they have a part of their own, because they bound nothing and compare with their like only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.items import Items
from rungwise.evaluation.suites.base import Measured, Rung, Suite
from rungwise.instances.order import evenly
from rungwise.models.capabilities import LanguageModel
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokensFile, closed_documents, document_hash

PSEUDO = "pseudo"  # the part of models that read both sides


class PerplexitySuite(Suite):
    """The documents of the held-out split, or `documents` of them evenly spread over it."""

    needs: ClassVar[str] = "probabilities of a text"

    kind: Literal["perplexity"] = "perplexity"
    documents: int | None = Field(default=None, ge=1)

    def serves(self, rung: Rung) -> bool:
        return isinstance(rung.model, LanguageModel)

    def measure(self, rung: Rung, name: str) -> Measured:
        (end,) = rung.special.require("end")
        texts = dict(_held_out(rung, end))
        sizes = _sizes(rung)
        known = sorted(texts.keys() & sizes.keys())
        chosen = (
            known
            if self.documents is None
            else [known[index] for index in evenly(len(known), self.documents)]
        )
        scores = rung.model.log_probabilities([texts[document] for document in chosen])
        nats = [-float(row.sum()) for row in scores]
        of_tokens = [
            [each, len(texts[document])] for each, document in zip(nats, chosen, strict=True)
        ]
        of_bytes = [[each, sizes[document]] for each, document in zip(nats, chosen, strict=True)]
        names, groups = [f"{document:016x}" for document in chosen], [""] * len(chosen)
        part = "" if rung.model.is_exact else PSEUDO
        return Measured(
            [
                Items(name, "perplexity", names, groups, np.array(of_tokens), part),
                Items(name, "bits_per_byte", names, groups, np.array(of_bytes), part),
            ]
        )


def _held_out(rung: Rung, end: int) -> Iterator[tuple[int, list[int]]]:
    """The hash of each held-out document, and its ids with the end symbol."""
    for row in TokensSummary.of(rung.tokens).files_of("validation"):
        text = TokensFile(rung.tokens.folder.local(row.file)).text()
        ids, starts = closed_documents(text, end)
        flat = ids.tolist()
        for number, document in enumerate(text.documents.tolist()):
            yield document, flat[starts[number] : starts[number + 1]]


def _sizes(rung: Rung) -> dict[int, int]:
    """The bytes in UTF-8 of each held-out document, sentences joined by a blank."""
    sizes = {}
    for row in CorpusSummary.of(rung.corpus).files:
        if row.split != "validation":
            continue
        for document in read_documents(rung.corpus.folder, row.file):
            text = " ".join(document.sentences)
            sizes[document_hash(f"{row.source}\0{document.id}")] = len(text.encode("utf-8"))
    return sizes
