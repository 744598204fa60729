"""What fine-tuning adds to a run, as its stages would leave it: any variants, tasks and budgets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from rungwise.core.artifact import Artifact
from rungwise.core.storage import Folder
from rungwise.evaluation.statistics import estimate, paired_difference
from rungwise.report import style, sweep_plots, tables

METRICS = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman", "mean_squared_error"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "span": ("f1", "exact_match", "answerable_f1", "unanswerable_accuracy"),
    "choice": ("accuracy",),
}


@dataclass(frozen=True)
class MadeTask:
    """A task that nobody trained on. `scores` are those of the judged metric, the first of the
    kind's: {budget, None for all examples: {variant: a score for each seed}}."""

    kind: str
    scores: dict[int | None, dict[str, list[float]]]
    labels: tuple[str, ...] = ("no", "yes")
    baselines: tuple[str, ...] = ("majority",)
    mix: dict[str, int] = field(default_factory=dict)  # variant: layers that it mixes


class Experiment:
    """Artifacts of what fine-tuning adds to a run, as its stages would leave them."""

    def __init__(self, before: dict[str, Artifact]) -> None:
        self.made = dict(before)
        self._trained: dict[str, Artifact] = {}

    def add(
        self,
        title: str,
        config: dict[str, Any],
        summary: dict[str, Any],
        inputs: dict[str, Artifact] | None = None,
    ) -> Artifact:
        """One more stage, after those that are there."""
        stage, fingerprint = title.partition("/")[0], f"{1000 + len(self.made):012x}"
        first = next(iter(self.made.values()))
        record = {
            **first.record,
            "stage": stage,
            "fingerprint": fingerprint,
            "inputs": {
                name: {"stage": one.stage, "fingerprint": one.fingerprint}
                for name, one in (inputs or {}).items()
            },
            "config": config,
            "facts": {"outside": {}},
            "summary": {"headline": f"{title} <done>", **summary},
            "seconds": 2.0 + len(self.made),
            "mlflow_run_id": None,
        }
        root = first.folder.uri.rsplit("/", 2)[0]
        folder = Folder.at(f"{root}/{stage}/small-{fingerprint}")
        self.made[title] = Artifact(stage, fingerprint, folder, record)
        return self.made[title]

    def variants(self, names: Sequence[str], untrained: Sequence[str] = ()) -> None:
        """One pretraining for each, the first that of the run; `untrained` take its, unused."""
        of_run = self.made["pretrain"]
        for place, name in enumerate(names):
            if not place or name in untrained:
                self._trained[name] = of_run
                continue
            config, summary = of_run.record["config"], dict(of_run.summary)
            summary["tokens"] *= place + 1
            read = {"instances": self.made["instances"]}
            self._trained[name] = self.add(f"pretrain/{name}", config, summary, read)
        self._untrained = set(untrained)

    def task(self, name: str, made: MadeTask, *, swept: bool = True) -> None:
        """The task at every budget, its sweeps and its evaluations."""
        metric = METRICS[made.kind][0]
        info = {
            "kind": made.kind,
            "labels": list(made.labels),
            "pair": made.kind == "regression",
            "metric": metric,
            "overlap": {"validation": 0, "test": 3},
        }
        sweeps: dict[str, Artifact] = {}
        for budget in sorted(made.scores, key=lambda each: each is not None):
            where = name if budget is None else f"{name}/{budget}"
            examples = {"train": budget or 2000, "validation": 200, "test": 500}
            trivial = {
                each: dict.fromkeys(METRICS[made.kind], 0.5 - 0.04 * place)
                for place, each in enumerate(made.baselines)
            }
            data = self.add(
                f"task/{where}",
                {"kind": "files", "train_examples": budget},
                {**info, "examples": examples, "baselines": trivial},
            )
            if budget is None and swept:
                sweeps = {each: self._sweep(name, each, metric) for each in made.scores[None]}
            self._evaluate(name, budget, made, data, sweeps)

    def _sweep(self, task: str, variant: str, metric: str) -> Artifact:
        trials = [
            {
                "name": f"trial-{number:03d}",
                "finetune": _settings(variant) | {"learning_rate": rate},
                "epochs_run": 3 - number,
                "epochs_asked": 3,
                "stopped_early": number == 1,
                "seconds": 2.0,
                "score": 0.9 - 0.1 * number,
                "loss": 1.0,
                "curve": [0.3, 0.4, 0.5][: 3 - number],
            }
            for number, rate in enumerate((1e-3, 1e-4))
        ]
        failed = {**trials[1], "name": "trial-002", "epochs_run": 0, "score": "", "loss": ""}
        return self.add(
            f"sweep/{task}/{variant}",
            {"finetune": _settings(variant), "sweep": {"seed": 0, "trials": 3}},
            {
                "trials": [*trials, failed],
                "best": trials[0],
                "metric": metric,
                "stopped_early": 1,
                "epochs_run": 5,
                "epochs_asked": 9,
                "grid_epochs": 27,
                "seconds": 6.0,
            },
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
        rows = [
            {
                "variant": variant,
                "seed": 1000 + number,
                "curve": [score],
                # Other metrics lie below the judged one, so that each is told from it.
                "test": {m: score - 0.02 * p for p, m in enumerate(metrics)} | {"loss": 1.1},
                "validation": {m: score + 0.01 - 0.02 * p for p, m in enumerate(metrics)}
                | {"loss": 1.0},
                "mix": _weights(made.mix[variant], number) if variant in made.mix else None,
                "seconds": 3.0,
            }
            for variant, each in scores.items()
            for number, score in enumerate(each)
        ]
        first = [row for row in rows if row["variant"] == next(iter(scores))]
        found = [
            {
                "first": a,
                "second": b,
                "seeds": asdict(paired_difference(scores[a], scores[b])),
                "bootstrap": _wider(scores[a], scores[b]),
                "error_reduction": (fmean(scores[a]) - fmean(scores[b])) / (1 - fmean(scores[b])),
            }
            for a, b in itertools.combinations(scores, 2)
        ]
        variants = {
            variant: {
                "estimates": {
                    metric: asdict(
                        estimate([r["test"][metric] for r in rows if r["variant"] == variant])
                    )
                    for metric in (*metrics, "loss")
                },
                "finetune": _settings(variant),
                "selection": {"score": 0.9, "trial": "trial-000", "seed": 0} if sweeps else None,
                "pretraining": self._cost(variant),
            }
            for variant in scores
        }
        settings = {"num_seeds": len(first), "first_seed": 1000, "published": None}
        self.add(
            f"evaluate/{name}" if budget is None else f"evaluate/{name}/{budget}",
            {
                "task": name,
                "budget": budget,
                "variants": {variant: _settings(variant) for variant in scores},
                "evaluate": settings,
            },
            {
                "task": name,
                "budget": budget,
                "kind": made.kind,
                "metric": metrics[0],
                "seeds": [row["seed"] for row in first],
                "examples": data.summary["examples"],
                "rows": rows,
                "variants": variants,
                "differences": found,
                "baselines": data.summary["baselines"],
                "beats_baselines": True,
                "chosen": first[0],
                "headline": f"test {metrics[0]}",
            },
            {
                "task": data,
                **{f"pretrain/{variant}": self._trained[variant] for variant in scores},
                **{f"sweep/{variant}": found for variant, found in sweeps.items()},
            },
        )

    def _cost(self, variant: str) -> dict[str, Any] | None:
        if variant in self._untrained:
            return None
        summary = self._trained[variant].summary
        return {
            "objective": "mlm_nsp",
            "steps": summary["steps"],
            "tokens": summary["tokens"],
            "flops": summary["flops_per_token"] * summary["tokens"],
            "parameters": summary["parameters"],
            "fingerprint": self._trained[variant].fingerprint,
        }

    def register(self, task: str) -> None:
        """The model of a task in the registry."""
        self.add(
            f"register/{task}",
            {"name": f"small-{task}", "alias": "champion"},
            {"model_uri": f"models:/small-{task}/1", "alias": None},
            {"evaluate": self.made[f"evaluate/{task}"]},
        )

    def table(self, published: dict[tuple[str, str], float] | None = None) -> None:
        """The table; `published` are differences in points by variant and task."""
        evaluated = [
            found.summary
            for found in self.made.values()
            if found.stage == "evaluate" and found.summary["budget"] is None
        ]
        scores, steps = [], []
        for found in evaluated:
            name, metric = found["task"], found["metric"]
            seeds = {
                variant: [r["test"][metric] for r in found["rows"] if r["variant"] == variant]
                for variant in found["variants"]
            }
            for variant, each in found["variants"].items():
                scores.append(
                    {
                        "task": name,
                        "variant": variant,
                        "metric": metric,
                        **each["estimates"][metric],
                        "baseline": "majority",
                        "baseline_score": 0.5,
                    }
                )
            for above, variant in itertools.pairwise(seeds):
                ours = paired_difference(seeds[variant], seeds[above])
                points = (published or {}).get((variant, name))
                sign = None
                if points:
                    apart = ours.low > 0 or ours.high < 0
                    same = (ours.mean > 0) == (points > 0)
                    sign = ("agrees" if same else "disagrees") if apart else "unresolved"
                row = {"task": name, "variant": variant, "minus": above, **asdict(ours)}
                row |= {"bootstrap_low": ours.low, "bootstrap_high": ours.high, "p": 0.04}
                steps.append({**row, "published_points": points, "sign": sign})
        self.add(
            "table",
            {"published": None, "columns": {found["task"]: None for found in evaluated}},
            {
                "scores": scores,
                "differences": steps,
                "budgets": [],
                "pretraining": {},
                "published": {"table": "T7", "source": "Devlin et al. 2019, table 5"}
                if published
                else None,
            },
        )


def _settings(variant: str) -> dict[str, Any]:
    return {
        "initialisation": "random" if variant == "random" else "pretrained",
        "learning_rate": 1e-3,
        "batch_size": 8,
        "epochs": 3,
        "adaptation": {"kind": "full"},
        "top": {"kind": "linear"},
    }


def _weights(layers: int, seed: int) -> list[float]:
    weights = np.exp(np.linspace(0, 1, layers) + 0.1 * seed * np.arange(layers) % 1)
    return (weights / weights.sum()).tolist()


def _wider(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """An interval about the mean difference, somewhat wider than that over seeds."""
    found = paired_difference(first, second)
    half = 1.3 * (found.high - found.low) / 2 + 0.005
    low, high = found.mean - half, found.mean + half
    return {"low": low, "high": high, "p": 0.2 if low < 0 < high else 0.0004}


def stub_sweep_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots of sweeps are tested where they are made; here each is a picture of two colours."""

    def picture(sweeps: dict[str, Artifact]) -> bytes:
        drawn = style.figure(style.WIDE)
        axes = drawn.subplots()
        axes.bar(list(sweeps), [found.summary["best"]["score"] for found in sweeps.values()])
        return style.png(drawn)

    for name in ("scatter", "parallel", "curves"):
        monkeypatch.setattr(sweep_plots, name, picture)
    monkeypatch.setattr(sweep_plots, "schedules", lambda sweeps: None)

    def trials(sweeps: dict[str, Artifact]) -> list[dict[str, Any]]:
        return [
            {
                "trial": trial["name"],
                "title": title,
                "finetune.learning_rate": trial["finetune"]["learning_rate"],
                **{
                    key: trial[key]
                    for key in ("epochs_run", "epochs_asked", "stopped_early", "score", "loss")
                },
                "seconds": trial["seconds"],
                "winner": trial["name"] == found.summary["best"]["name"],
            }
            for title, found in sweeps.items()
            for trial in found.summary["trials"]
        ]

    monkeypatch.setattr(tables, "trials", trials)


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
    """Four variants, five tasks of all kinds, three budgets and all examples, published rows."""
    variants = ("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm")
    made = Experiment(before)
    made.variants(variants)
    rng = np.random.Generator(np.random.Philox(7))
    published = {}
    for place, (name, kind) in enumerate(
        zip(("sst-2", "sts-b", "conll-2003", "squad", "swag"), METRICS, strict=True)
    ):
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
