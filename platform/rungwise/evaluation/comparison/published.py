"""Published results, shown as reference beside ours and never in the same column.

The published models are a hundred to ten thousand times larger and use the full data sets, so only
the signs of differences are comparable. Shares are in percent, as printed. Sources: T2 is table 1
of Peters et al. 2018 (arXiv:1802.05365); T6, T7, T8, T9 and T10 are tables 1, 5, 7, 4 and 2 of
Devlin et al. 2019 (arXiv:1810.04805). GPT's STS-B is 80.0 here and 82.0 in its own paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config

TableName = Literal["T2", "T6", "T7", "T8", "T9", "T10"]


@dataclass(frozen=True)
class Published:
    """A table; rows have one value per column, None where none was published."""

    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]

    def value(self, row: str, column: str) -> float | None:
        return self.rows[row][self.columns.index(column)]


_PAPER = "Devlin et al. 2019, arXiv:1810.04805"

TABLES: Mapping[TableName, Published] = {
    "T2": Published(
        "Peters et al. 2018, arXiv:1802.05365, table 1: test; SQuAD, SRL, coreference and NER F1",
        ("SQuAD", "SNLI", "SRL", "Coref", "NER", "SST-5"),
        {
            "previous best": (84.4, 88.6, 81.7, 67.2, 91.93, 53.7),
            "baseline": (81.1, 88.0, 81.4, 67.2, 90.15, 51.4),
            "+ELMo": (85.8, 88.7, 84.6, 70.4, 92.22, 54.7),
        },
    ),
    "T6": Published(
        f"{_PAPER}, table 1: GLUE test; MRPC and QQP F1, STS-B Spearman, CoLA Matthews",
        ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE"),
        {
            "pre-OpenAI": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7),
            "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.9, 90.4, 36.0, 73.3, 84.9, 56.8),
            "GPT": (82.1, 81.4, 70.3, 88.1, 91.3, 45.4, 80.0, 82.3, 56.0),
            "BERT base": (84.6, 83.4, 71.2, 90.1, 93.5, 52.1, 85.8, 88.9, 66.4),
            "BERT large": (86.7, 85.9, 72.1, 91.1, 94.9, 60.5, 86.5, 89.3, 70.1),
        },
    ),
    "T7": Published(
        f"{_PAPER}, table 5: ablation, dev; SQuAD is F1",
        ("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD"),
        {
            "base": (84.4, 88.4, 86.7, 92.7, 88.5),
            "no_nsp": (83.9, 84.9, 86.5, 92.6, 87.9),
            "ltr_no_nsp": (82.1, 84.3, 77.5, 92.1, 77.8),
            "ltr_no_nsp_bilstm": (82.1, 84.1, 75.7, 91.6, 84.9),
        },
    ),
    "T8": Published(
        f"{_PAPER}, table 7: CoNLL-2003 entity F1, mean of 5 random restarts",
        ("dev", "test"),
        {
            "ELMo+BiLSTM+CRF": (95.7, 92.2),
            "CVT+Multi": (None, 92.6),
            "BERT base": (96.4, 92.4),
            "BERT large": (96.6, 92.8),
        },
    ),
    "T9": Published(
        f"{_PAPER}, table 4: SWAG accuracy",
        ("dev", "test"),
        {
            "ESIM+GloVe": (51.9, 52.7),
            "ESIM+ELMo": (59.1, 59.2),
            "BERT base": (81.6, None),
            "BERT large": (86.6, 86.3),
        },
    ),
    "T10": Published(
        f"{_PAPER}, table 2: SQuAD 1.1",
        ("dev EM", "dev F1", "test EM", "test F1"),
        {
            "human": (None, None, 82.3, 91.2),
            "nlnet (ensemble)": (None, None, 86.0, 91.7),
            "QANet (ensemble)": (None, None, 84.5, 90.5),
            "nlnet": (None, None, 83.5, 90.1),
            "QANet": (None, None, 82.5, 89.3),
            "BiDAF+ELMo": (None, 85.8, None, None),
            "R.M.Reader": (78.9, 86.3, 79.5, 86.6),
            "R.M.Reader (ensemble)": (81.2, 87.9, 82.3, 88.5),
            "BERT base": (80.8, 88.5, None, None),
            "BERT large": (84.1, 90.9, None, None),
            "BERT large (ensemble of 7)": (85.8, 91.8, None, None),
            "BERT large +TriviaQA": (84.2, 91.1, 85.1, 91.8),
            "BERT large (ensemble) +TriviaQA": (86.2, 92.2, 87.4, 93.2),
        },
    ),
}

# T1, not tied to a task: perplexity and number of parameters by n-gram order.
ORDERS = Published(
    "38 million words of the Wall Street Journal, Jurafsky & Martin, Speech and Language "
    "Processing; order 4 and the parameters",
    ("1", "2", "3", "4"),
    {"perplexity": (962, 170, 109, 99), "parameters": (2e5, 4e10, 8e15, 1.6e21)},
)

# T11: the words nearest to this one in GloVe, Peters et al. 2018, table 4.
GLOVE_WORD = "play"
GLOVE_NEIGHBOURS = (
    *("playing", "game", "games", "played", "players", "plays", "player", "Play", "football"),
    "multiplayer",
)

# The models in BLiMP's file of published accuracies (Warstadt et al. 2020), in its order, and
# individual human accuracy.
BLIMP_MODELS = ("5-gram", "LSTM", "Transformer-XL", "GPT-2")
BLIMP_HUMAN: Mapping[str, float] = {
    "anaphor_agreement": 0.975,
    "argument_structure": 0.900,
    "binding": 0.873,
    "control_raising": 0.839,
    "determiner_noun_agreement": 0.922,
    "ellipsis": 0.850,
    "filler_gap_dependency": 0.869,
    "irregular_forms": 0.970,
    "island_effects": 0.849,
    "npi_licensing": 0.881,
    "quantifiers": 0.866,
    "subject_verb_agreement": 0.909,
}


class PublishedConfig(Config):
    """The published table to show beside ours.

    Its column for a task is the key `published` of the task.
    """

    table: TableName  # as numbered in evaluation/comparison/published.py
    rows: dict[str, str] = Field(min_length=1)  # by variant: the row to show beside it

    @model_validator(mode="after")
    def _check_rows(self) -> PublishedConfig:
        names = TABLES[self.table].rows
        for variant, row in self.rows.items():
            if row not in names:
                raise ValueError(
                    f"rows.{variant} is {row!r}, which {self.table} lacks; it has: "
                    f"{', '.join(names)}"
                )
        return self
