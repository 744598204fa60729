"""Skips steps that stand out: one batch of noise, or one gradient far too large.

A step is an outlier if its loss exceeds `loss_factor` times the median loss of the hundred steps
before it, or its gradient norm before clipping exceeds `norm_factor` times theirs. The first twenty
steps never are. An outlier changes neither weights nor moments; it is counted, reported and enters
the medians like any other step, so a lasting change of level soon becomes the median. (Chowdhery et
al. 2022, arXiv:2204.02311, section 5.1, rewound and skipped batches by hand.)

All workers decide the same from the same sums, on the device: no step waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rungwise.core.configuration.config import Config
from rungwise.training.progress import ENOUGH, WINDOW


class OutlierConfig(Config):
    """Which steps to leave out. They are compared with the medians of the hundred steps before."""

    # multiple of the median loss that stands out; null: ignore the loss
    loss_factor: float | None = Field(default=1.5, gt=1)
    # multiple of the median gradient norm that stands out; null: ignore the norm
    norm_factor: float | None = Field(default=4.0, gt=1)

    @model_validator(mode="after")
    def _compares_something(self) -> OutlierConfig:
        if self.loss_factor is None and self.norm_factor is None:
            raise ValueError(
                "loss_factor and norm_factor are both null, so no step could stand out; give one, "
                "or set skip_outliers to null"
            )
        return self


class Outliers:
    """The rule, with the loss and norm of each previous step."""

    def __init__(
        self, config: OutlierConfig, before: Sequence[Sequence[float]], device: torch.device
    ) -> None:
        """`before` are rows of [loss, norm], oldest first."""
        factors = [factor or math.inf for factor in (config.loss_factor, config.norm_factor)]
        self._factors_2 = torch.tensor(factors, dtype=torch.float64, device=device)
        rows = [[math.nan] * 2] * (WINDOW - len(before)) + [list(row) for row in before]
        self._before = torch.tensor(rows, dtype=torch.float64, device=device)  # (WINDOW, 2)

    def stands_out(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step is an outlier, (); if finite, it enters the medians of the next."""
        values_2 = torch.stack((loss.double(), norm.double()))
        median_2 = torch.nanquantile(self._before, 0.5, dim=0)
        enough = self._before[-ENOUGH].isfinite().all()
        above = (values_2 > self._factors_2 * median_2).any()
        finite = values_2.isfinite().all()
        moved = torch.cat((self._before[1:], values_2[None]))
        self._before = torch.where(finite, moved, self._before)
        return above & enough & finite
