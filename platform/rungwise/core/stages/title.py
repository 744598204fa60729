"""Titles distinguish stages of one name in a run, and inputs of one kind of a stage.

    str(Title("pretrain", variant="no_nsp", number=1))      pretrain/no_nsp@1
    str(Title("evaluate", task="sst-2", budget=100))        evaluate/sst-2/100
    str(Title("pretrain", variant="gpt", seed=2))           pretrain/gpt/seed-2
    str(Title("pretrain", variant="gpt", trial=7))          pretrain/gpt/trial-007

A title is for people, like the label, and names an input; no code parses its text.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Title:
    """A stage and what it is for. `step` is a named step of training, `budget` a number of
    labelled examples, `number` an index into the upstream values that a sweep tries, `seed` one
    into the pretrainings of a variant, `trial` the number of a trial of a search and `part` which
    of its pretrainings."""

    stage: str
    step: str | None = None
    task: str | None = None
    variant: str | None = None
    budget: int | None = None
    number: int | None = None
    seed: int | None = None
    trial: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        seed = None if self.seed is None else f"seed-{self.seed}"
        trial = None if self.trial is None else f"trial-{self.trial:03d}"
        parts = (
            self.stage,
            self.step,
            self.task,
            self.variant,
            self.budget,
            trial,
            self.part,
            seed,
        )
        text = "/".join(str(part) for part in parts if part is not None)
        return text if self.number is None else f"{text}@{self.number}"
