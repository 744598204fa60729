"""What fine-tuning adds to a run, as its stages would leave it: any variants, tasks and budgets."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context, Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import (
    EvaluateSummary,
    Overlap,
    PairedDifference,
    PretrainingCost,
    Reference,
    RivalResult,
    RowDifference,
    SeedRow,
    Selection,
    TableConfig,
    VariantResult,
    build_table,
    input_name,
)
from rungwise.evaluation.statistics import (
    Difference,
    Estimate,
    estimate,
    paired_difference,
    sign_agreement,
)
from rungwise.finetune import FinetuneConfig
from rungwise.serving.stage import RegisterSummary
from rungwise.tasks.kinds.examples import ExampleCounts, Kind, TaskInfo, TaskSummary
from rungwise.training.summary import PretrainSummary
from rungwise.tuning.trials import Epoch, SweepSummary, SweepTrial
from tests.report_pages import facts_of, record_stage

RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-2}
METRICS = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "regression": ("pearson", "spearman", "mean_squared_error"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "span": ("f1", "exact_match"),
    "choice": ("accuracy",),
}


@dataclass(frozen=True)
class MadeTask:
    """A task that nobody trained on; `scores` of the judged metric by budget and variant."""

    kind: Kind
    scores: dict[int | None, dict[str, list[float]]]
    labels: tuple[str, ...] = ("no", "yes")
    baselines: tuple[str, ...] = ("majority",)
    mix: dict[str, int] = field(default_factory=dict)  # variant: layers that it mixes
    rivals: dict[str, float] = field(default_factory=dict)  # by short name: the score


class Experiment:
    """Artifacts of what fine-tuning adds to a run, as its stages would leave them."""

    def __init__(self, before: dict[str, Artifact]) -> None:
        self.made = dict(before)
        self._trained: dict[str, Artifact] = {}

    def add(
        self,
        title: Title,
        config: dict[str, Any],
        summary: Summary,
        inputs: dict[str, Artifact] | None = None,
    ) -> Artifact:
        """One more stage, after those that are there."""
        facts = facts_of(title.stage, 1000 + len(self.made), inputs or {})
        root = Folder.at(next(iter(self.made.values())).folder.uri.rsplit("/", 2)[0])
        self.made[str(title)] = record_stage(root, facts, config, summary, inputs or {})
        return self.made[str(title)]

    def variants(self, names: Sequence[str], untrained: Sequence[str] = ()) -> None:
        """One pretraining for each, the first that of the run; `untrained` take its, unused."""
        of_run = self.made["pretrain"]
        for place, name in enumerate(names):
            if not place or name in untrained:
                self._trained[name] = of_run
                continue
            config, summary = of_run.record["config"], PretrainSummary.of(of_run)
            summary = summary.model_copy(update={"tokens": summary.tokens * (place + 1)})
            read = {"instances": self.made["instances"]}
            title = Title("pretrain", variant=name)
            self._trained[name] = self.add(title, config, summary, read)
        self._untrained = set(untrained)

    def task(self, name: str, made: MadeTask, *, swept: bool = True) -> None:
        """The task at every budget, its sweeps and its evaluations."""
        metric = METRICS[made.kind][0]
        info = TaskInfo(made.kind, made.labels, made.kind == "regression", metric)
        sweeps: dict[str, Artifact] = {}
        for budget in sorted(made.scores, key=lambda each: each is not None):
            trivial = {
                each: dict.fromkeys(METRICS[made.kind], 0.5 - 0.04 * place)
                for place, each in enumerate(made.baselines)
            }
            summary = TaskSummary(
                info=info,
                examples=ExampleCounts(train=budget or 2000, validation=200, test=500),
                baselines=trivial,
                overlap={"validation": 0, "test": 3} if made.kind == "classification" else {},
                irregular={},
                headline="task <done>",
            )
            title = Title("task", task=name, budget=budget)
            data = self.add(title, {"kind": "files", "train_examples": budget}, summary)
            if budget is None and swept:
                sweeps = {each: self._sweep(name, each, metric) for each in made.scores[None]}
            self._evaluate(name, budget, made, data, sweeps)

    def _sweep(self, task: str, variant: str, metric: str) -> Artifact:
        trials = [
            SweepTrial(
                number=number,
                values={"finetune.learning_rate": rate},
                finetune=_settings(variant).model_copy(update={"learning_rate": rate}),
                seed=0,
                state="stopped_early" if number else "finished",
                history=tuple(_epoch(number) for number in range(1, 4 - number)),
                seconds=2.0,
                error="",
                score=0.9 - 0.1 * number,
                loss=1.0,
            )
            for number, rate in enumerate((1e-3, 1e-4))
        ]
        broken = {"number": 2, "state": "failed", "history": (), "error": "it broke"}
        fields = trials[1].model_dump() | {"score": None, "loss": None}
        return self.add(
            Title("sweep", task=task, variant=variant),
            {"sweep": {"space": {"finetune.learning_rate": RATES}, "trials": 3}},
            SweepSummary.model_validate(
                {"stopped_early": 1, "failed": 1, "epochs_run": 5, "epochs_asked": 9}
                | {"seconds": 6.0, "headline": "sweep <done>", "metric": metric}
                | {"best": trials[0], "trials": (*trials, fields | broken)}
            ),
        )

    def _evaluate(
        self,
        name: str,
        budget: int | None,
        made: MadeTask,
        data: Artifact,
        sweeps: dict[str, Artifact],
    ) -> None:
        metrics, scores = METRICS[made.kind], made.scores[budget]
        rows = tuple(
            SeedRow(
                variant=variant,
                seed=1000 + number,
                epoch=1 + number,
                # Other metrics lie below the judged one, so that each is told from it.
                test={m: score - 0.02 * p for p, m in enumerate(metrics)} | {"loss": 1.1},
                validation={m: score + 0.01 - 0.02 * p for p, m in enumerate(metrics)}
                | {"loss": 1.0},
                mix=_weights(made.mix[variant], number) if variant in made.mix else None,
                seconds=3.0,
            )
            for variant, each in scores.items()
            for number, score in enumerate(each)
        )
        first = [row for row in rows if row.variant == next(iter(scores))]
        beside = {rival: [value] * len(first) for rival, value in made.rivals.items()}
        pairs = [*itertools.combinations(scores, 2), *itertools.product(scores, beside)]
        by_name = scores | beside
        differences = tuple(_pair(a, b, by_name[a], by_name[b]) for a, b in pairs)
        chosen = Selection(score=0.9, trial="trial-000", seed=0) if sweeps else None
        variants = {
            variant: VariantResult(
                estimates={
                    metric: estimate([r.test[metric] for r in rows if r.variant == variant])
                    for metric in (*metrics, "loss")
                },
                finetune=_settings(variant),
                selection=chosen,
                pretraining=self._cost(variant),
                cut={"train": 0.75, "test": 0.0, "validation": 0.375},
                overlap=Overlap(training=3, pretraining=1234, score=0.5)
                if variant == "plain" and made.kind == "classification"
                else Overlap(training=0, pretraining=None),
            )
            for variant in scores
        }
        task = TaskSummary.of(data)
        self.add(
            Title("evaluate", task=name, budget=budget),
            {"task": name, "budget": budget},
            EvaluateSummary(
                task=name,
                budget=budget,
                kind=made.kind,
                metric=metrics[0],
                seeds=tuple(row.seed for row in first),
                examples=task.examples,
                rows=rows,
                variants=variants,
                differences=differences,
                baselines=task.baselines,
                beats_baselines=True,
                chosen=first[0],
                rivals={
                    rival: _rival(rival, metrics, value) for rival, value in made.rivals.items()
                },
                headline=f"test {metrics[0]}",
            ),
            {
                "task": data,
                **{input_name("pretrain", name): self._trained[name] for name in scores},
                **{input_name("sweep", name): sweep for name, sweep in sweeps.items()},
            },
        )

    def _cost(self, variant: str) -> PretrainingCost | None:
        if variant in self._untrained:
            return None
        summary = PretrainSummary.of(self._trained[variant])
        return PretrainingCost(
            objective="mlm_nsp",
            steps=20,
            tokens=summary.tokens,
            flops=summary.flops,
            parameters=summary.parameters,
            fingerprint=self._trained[variant].fingerprint,
        )

    def register(self, task: str) -> None:
        """The model of a task in the registry."""
        name = f"small-{task}"
        fields = {"name": name, "version": "1", "alias": None, "model_uri": f"models:/{name}/1"}
        summary = RegisterSummary.model_validate(
            fields | {"tags": {}, "headline": "register <done>"}
        )
        evaluate = {"evaluate": self.made[str(Title("evaluate", task=task))]}
        self.add(
            Title("register", task=task), {"name": name, "alias": "champion"}, summary, evaluate
        )

    def table(self, published: dict[tuple[str, str], float] | None = None) -> None:
        """The table; `published` are differences in points by variant and task."""
        inputs = {t: made for t, made in self.made.items() if made.stage == "evaluate"}
        config = TableConfig(published=None, columns={})
        with TemporaryDirectory() as folder:
            summary = build_table(config, inputs, Folder.at(folder), Context())
        if published:
            reference = Reference(table="T7", source="Devlin et al. 2019, table 5")
            steps = tuple(
                step.model_copy(update=_beside(step, published.get((step.variant, step.task))))
                for step in summary.differences
            )
            summary = summary.model_copy(update={"differences": steps, "published": reference})
        self.add(Title("table"), config.model_dump(mode="json"), summary)


def _beside(step: RowDifference, points: float | None) -> dict[str, Any]:
    ours = Estimate(step.mean, step.low, step.high, step.count)
    sign = sign_agreement(points, ours) if points else None
    return {"published_points": points, "sign": sign}


def _settings(variant: str) -> FinetuneConfig:
    initialisation = "random" if variant == "random" else "pretrained"
    usual = FinetuneConfig(
        initialisation=initialisation, learning_rate=1e-3, batch_size=8, epochs=3
    )
    return usual.model_copy(update={"best_epoch": variant == "no_nsp"})


def _rival(name: str, metrics: Sequence[str], value: float) -> RivalResult:
    scores, interval = dict.fromkeys(metrics, value), (value - 0.03, value + 0.03)
    known: dict[str, Any] = {"strength": 10.0, "noise": {}, "seconds": 1.0}
    return RivalResult(
        name=f"{name} by its whole name",
        validation=scores,
        test=scores,
        estimate=Estimate(value, *interval, 500),
        **known,
    )


def _epoch(number: int) -> Epoch:
    return Epoch(epoch=number, score=0.2 + 0.1 * number, loss=1.0, seconds=1.0, metrics={})


def _weights(layers: int, seed: int) -> tuple[float, ...]:
    weights = np.exp(np.linspace(0, 1, layers) + 0.1 * seed * np.arange(layers) % 1)
    return tuple((weights / weights.sum()).tolist())


def _pair(
    first: str, second: str, ours: Sequence[float], theirs: Sequence[float]
) -> PairedDifference:
    """The difference of two variants, over test examples somewhat wider than over seeds."""
    gap = paired_difference(ours, theirs)
    half = 1.3 * (gap.high - gap.low) / 2 + 0.005
    low, high = gap.mean - half, gap.mean + half
    return PairedDifference(
        first=first,
        second=second,
        seeds=gap,
        bootstrap=Difference(gap.mean, low, high, 0.2 if low < 0 < high else 0.0004),
        error_reduction=(fmean(ours) - fmean(theirs)) / (1 - fmean(theirs)),
    )


def quickstart(before: dict[str, Artifact], gap: float = 0.1) -> dict[str, Artifact]:
    """One task and two variants, the second from random weights, `gap` apart."""
    made = Experiment(before)
    made.variants(["pretrained", "random"], untrained=["random"])
    random = [0.60, 0.61, 0.605, 0.60, 0.62]
    scores = [value + gap + 0.004 * number for number, value in enumerate(random)]
    both = {"pretrained": scores, "random": random}
    made.task("libraries", MadeTask("classification", {None: both}))
    made.register("libraries")
    made.table()
    return made.made


def whole(before: dict[str, Artifact]) -> dict[str, Artifact]:
    """Four variants, five tasks of as many kinds, three budgets, all examples, published rows."""
    variants = ("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm")
    made = Experiment(before)
    made.variants(variants)
    rng = np.random.Generator(np.random.Philox(7))
    published = {}
    kinds: dict[str, Kind] = {
        "sst-2": "classification",
        "sts-b": "regression",
        "conll-2003": "tagging",
        "squad": "span",
        "swag": "choice",
    }
    for place, (name, kind) in enumerate(kinds.items()):
        scores = {
            budget: {
                variant: (
                    0.58
                    + 0.03 * place
                    + 0.07 * step
                    - (0.008 + 0.01 * place) * number
                    + 0.012 * rng.standard_normal(5)
                ).tolist()
                for number, variant in enumerate(variants)
            }
            for step, budget in enumerate((10, 100, 1000, None))
        }
        made.task(
            name,
            MadeTask(
                kind,
                scores,
                labels={"classification": ("no", "yes"), "tagging": ("O", "B-PER")}.get(kind, ()),
                baselines=("majority", "first_sentence") if kind == "span" else ("majority",),
                mix={"base": 5, "no_nsp": 5} if place < 3 else {},
            ),
        )
        made.register(name)
        published |= {(each, name): -0.5 * n for n, each in enumerate(variants) if n and place}
    made.table(published)
    return made.made
