"""How the page names what an objective predicts, so that one template serves every objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rungwise.models.config import ObjectiveKind


@dataclass(frozen=True)
class Pair:
    """A second task over pairs of segments; `key` is its part of the objective."""

    key: str
    name: str
    right: str  # what the share of right answers counts


@dataclass(frozen=True)
class Terms:
    """Words for the part of an objective that is over tokens, `key`, and for its pair task."""

    key: str
    model: str
    loss: str
    token: str  # a loss is in nats a ...
    right: str
    pair: Pair | None = None
    bits_per_byte: bool = False  # whether the loss is a code length of the text

    @property
    def loss_key(self) -> str:
        return f"{self.key}_loss"

    @property
    def accuracy_key(self) -> str:
        return f"{self.key}_accuracy"


_MASKED = ("mlm", "BERT", "MLM loss", "masked token", "Masked tokens guessed right")
_NEXT = ("lm", "next-token loss", "token", "Next tokens guessed right")

_TERMS: Mapping[ObjectiveKind, Terms] = {
    "mlm_nsp": Terms(*_MASKED, Pair("nsp", "NSP", "Next sentence recognised")),
    "mlm": Terms(*_MASKED),
    "sentence_order": Terms(*_MASKED, Pair("sop", "SOP", "Order of the halves recognised")),
    "causal": Terms(_NEXT[0], "GPT", *_NEXT[1:], bits_per_byte=True),
    "left_to_right": Terms(_NEXT[0], "left-to-right BERT", *_NEXT[1:], bits_per_byte=True),
    "bidirectional": Terms(
        "bidirectional",
        "two-direction Transformer",
        "two-direction loss",
        "token, given all others",
        "Tokens guessed right from all others",
    ),
}


def terms_of(objective: ObjectiveKind) -> Terms:
    """The words for this objective."""
    return _TERMS[objective]
