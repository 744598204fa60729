"""What tests of the report and of exports share: small artifacts without a run, a page as a browser
takes it, its tables."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from rungwise import artifact as artifacts
from rungwise.artifact import Artifact
from rungwise.evaluation.statistics import estimate, paired_difference
from rungwise.instances.causal import CausalConfig
from rungwise.instances.kinds import KINDS
from rungwise.instances.masked_blocks import MaskedBlocksConfig
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.sentence_order import SentenceOrderConfig
from rungwise.instances.text import TokenisedText
from rungwise.models.config import ObjectiveKind
from rungwise.objectives import ObjectiveConfig, build_objective
from rungwise.report import style, sweep_plots, tables
from rungwise.storage import Folder
from rungwise.tokenizer import ByteBpeConfig, WordPieceConfig, train
from rungwise.training.checkpoint import save_tensors
from rungwise.training.loop import PretrainConfig
from rungwise.training.throughput import COUNTING_RULE
from tests.conftest import SPECIAL_IDS, made_up_sentences, write_shards
from tests.small_models import shaken, small_config, small_model

LENGTH = 24
INSTANCES: dict[str, Any] = {
    "mlm_nsp": MaskedPairsConfig,
    "mlm": MaskedBlocksConfig,
    "sentence_order": SentenceOrderConfig,
}
STEPS = 20


def speed_summary(steps: int, **changes: Any) -> dict[str, Any]:
    """What the summary of a pretrain stage says about time, of a run that went smoothly."""
    rows = [
        {
            "step": step,
            "seconds": 1.0,
            "step_seconds": 0.1,
            "tokens_per_second": 9000.0 + step,
            "data_wait_share": 0.01,
            "checkpoint_stall_share": 0.002,
            "mfu": 0.4,
        }
        for step in range(steps // 2, steps + 1, steps // 2)
    ]
    return {
        "flops_per_token": 1e6,
        "flops_rule": COUNTING_RULE,
        "tokens_per_second": 1e4,
        "timings": rows,
        "throughput": {
            "tokens_per_second": 1e4,
            "step_seconds": 0.1,
            "seconds": 2.5,
            "data_wait_share": 0.0123,
            "checkpoint_stall_share": 0.002,
            "matmul_flops_per_second": 2.5e10,
            "mfu": 0.4,
            "checkpoint_save_seconds": 0.25,
            "checkpoint_stall_seconds": 0.005,
            "checkpoints_failed": 0,
        },
        "attempts": [{"step": 0, "workers": 2}],
        "skipped_steps": [],
        "spikes": [],
        "stopped_early": False,
        "data_hash": "0123456789abcdef0123456789abcdef",
        "parallel": "ddp",
        "device": "CPU, 1 thread",
        "bfloat16": False,
        **changes,
    }


class Page(HTMLParser):
    """What a browser would load, the ids, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = [""]
        self.styles = ""
        self.words = ""
        self.feed(text)
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids |= {found["id"]} if "id" in found else set()
        self.loads += [found[name] for name in ("src", "srcset", "data", "poster") if name in found]
        self.loads += [found["href"]] if tag == "link" else []
        self.links += [found["href"]] if tag == "a" else []
        self.styles += found.get("style", "")
        assert not any(name.startswith("on") for name in found), f"{tag} has a handler"

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "style":
            self.styles += data
        else:
            self.words += data


def text_of(tokenizer: Tokenizer, seed: int) -> TokenisedText:
    """Ten documents of four sentences."""
    encoded = [
        tokenizer.encode(sentence, add_special_tokens=False).ids
        for document in range(10)
        for sentence in made_up_sentences(10 * seed + document, 4)
    ]
    return TokenisedText(
        ids=np.array([token for ids in encoded for token in ids], np.uint16),
        starts=np.cumsum([0, *map(len, encoded)]),
        first_sentence=np.arange(0, len(encoded) + 1, 4),
        documents=[f"{seed}-{number}" for number in range(10)],
    )


def built(
    objective: ObjectiveKind, root: Path, shape: dict[str, Any] | None = None, **summary: Any
) -> dict[str, Artifact]:
    """The artifacts of a pretrain workflow with this objective, the model only shaken.

    `shape` are keys of the model block, `summary` of the summary of the pretrain stage.
    """
    made: dict[str, Artifact] = {}

    def add(stage: str, config: dict[str, Any], found: dict[str, Any]) -> Artifact:
        fingerprint = f"{len(made):012x}"
        folder = Folder.at(root / stage / f"small-{fingerprint}")
        record = {
            "stage": stage,
            "fingerprint": fingerprint,
            "inputs": {
                name: {"stage": name, "fingerprint": one.fingerprint} for name, one in made.items()
            },
            "label": "small",
            "config": config,
            "facts": {"outside": {}},
            "summary": {"headline": stage, **found},
            "finished": "2026-01-02T03:04:05+00:00",
            "seconds": 1.0,
            "mlflow_run_id": None,
            "made_by": {
                "commit": None,
                "python": "3.11",
                "packages": {},
                "machine": {"system": "Linux", "cpus": 2},
            },
        }
        made[stage] = Artifact(stage, fingerprint, folder, record)
        return made[stage]

    masks = ObjectiveConfig(kind=objective).masks
    units = ("documents", "sentences", "words", "characters")
    corpus = {unit: {"train": 10, "validation": 10} for unit in units}
    corpus |= {"labels": {"made up": 20}, "dropped": {}, "dropped_examples": {}}
    corpus |= {"characters_removed": 0, "characters_replaced": 0}
    add("corpus", {"sources": [{"kind": "text", "paths": ["a.txt"]}]}, corpus)
    settings: Any = WordPieceConfig if masks else ByteBpeConfig
    config = settings(vocab_size=300, min_frequency=1)
    tokenizer = train(config, [s for seed in range(30) for s in made_up_sentences(seed, 4)])
    vocab_size = tokenizer.get_vocab_size()
    found = add("tokenizer", config.model_dump(), {"kind": config.kind, "vocab_size": vocab_size})
    with found.folder.staged("tokenizer.json") as path:
        tokenizer.save(str(path))

    read = INSTANCES.get(objective, CausalConfig)(sequence_length=LENGTH)
    kind = KINDS[read.kind]
    rng = np.random.Generator(np.random.Philox(0))
    shards = {
        f"{split}-00000.arrow": kind.build(text_of(tokenizer, seed), read, SPECIAL_IDS, rng).shard
        for seed, split in enumerate(("train", "validation"))
    }
    found = add("instances", read.model_dump(mode="json"), {})
    shares = ("selected", "mask", "random", "kept", "is_next", "in_order", "truncated")
    found.record["summary"] |= {
        **write_shards(Path(found.folder.uri), shards, vocab_size),
        "kind": read.kind,
        "sequence_length": LENGTH,
        "tokens": 1000,
        "unigram_entropy": 4.5,
        "statistics": {f"{name}_share": 0.5 for name in shares}
        | {"fill": 0.9, "length_histogram": list(range(16))},
    }

    torch.manual_seed(1)
    changes = {"max_position_embeddings": LENGTH} | (shape or {})
    model_config = small_config(objective, **changes)
    model = shaken(small_model(objective, vocab_size, **changes), 0.2)
    parts = build_objective(ObjectiveConfig(kind=objective)).parts
    rows = [
        {
            "step": step,
            "tokens": 100 * step,
            "loss": 5.0,
            "perplexity": 123.4,
            **{f"{part}_loss": 5.678 - 0.01 * step for part in parts},
            **{f"{part}_accuracy": 0.234 for part in parts},
            **({} if masks else {"bits_per_byte": 2.345}),
        }
        for step in (0, STEPS // 2, STEPS)
    ]
    pretrain = PretrainConfig(
        steps=STEPS, validation_instances=40, objective=ObjectiveConfig(kind=objective)
    )
    found = add(
        "pretrain",
        {"model": model_config.model_dump(), "pretrain": pretrain.model_dump()},
        {
            "steps": STEPS,
            "tokens": 100 * STEPS,
            "epochs": 1.5,
            "history": [{"learning_rate": 1e-3, **row} for row in rows[1:]],
            "validation": rows,
            "final": rows[-1],
            "parameters": 12345,
            "vocab_size": vocab_size,
            "model": model_config.model_dump(),
            **speed_summary(STEPS),
            **summary,
        },
    )
    save_tensors(found.folder, "model.safetensors", model.state_dict())
    return {name: artifacts.finish(one.folder, one.record, {}) for name, one in made.items()}


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
    kind's: {budget, None for all examples: {system: a score for each seed}}."""

    kind: str
    scores: dict[int | None, dict[str, list[float]]]
    labels: tuple[str, ...] = ("no", "yes")
    baselines: tuple[str, ...] = ("majority",)
    mix: dict[str, int] = field(default_factory=dict)  # system: layers that it mixes


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

    def systems(self, names: Sequence[str], untrained: Sequence[str] = ()) -> None:
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

    def _sweep(self, task: str, system: str, metric: str) -> Artifact:
        trials = [
            {
                "name": f"trial-{number:03d}",
                "finetune": _settings(system) | {"learning_rate": rate},
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
            f"sweep/{task}/{system}",
            {"finetune": _settings(system), "sweep": {"seed": 0, "trials": 3}},
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
                "system": system,
                "seed": 1000 + number,
                "curve": [score],
                # Other metrics lie below the judged one, so that each is told from it.
                "test": {m: score - 0.02 * p for p, m in enumerate(metrics)} | {"loss": 1.1},
                "validation": {m: score + 0.01 - 0.02 * p for p, m in enumerate(metrics)}
                | {"loss": 1.0},
                "mix": _weights(made.mix[system], number) if system in made.mix else None,
                "seconds": 3.0,
            }
            for system, each in scores.items()
            for number, score in enumerate(each)
        ]
        first = [row for row in rows if row["system"] == next(iter(scores))]
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
        systems = {
            system: {
                "estimates": {
                    metric: asdict(
                        estimate([r["test"][metric] for r in rows if r["system"] == system])
                    )
                    for metric in (*metrics, "loss")
                },
                "finetune": _settings(system),
                "selection": {"score": 0.9, "trial": "trial-000", "seed": 0} if sweeps else None,
                "pretraining": self._cost(system),
            }
            for system in scores
        }
        settings = {"num_seeds": len(first), "first_seed": 1000, "published": None}
        self.add(
            f"evaluate/{name}" if budget is None else f"evaluate/{name}/{budget}",
            {
                "task": name,
                "budget": budget,
                "systems": {system: _settings(system) for system in scores},
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
                "systems": systems,
                "differences": found,
                "baselines": data.summary["baselines"],
                "beats_baselines": True,
                "chosen": first[0],
                "headline": f"test {metrics[0]}",
            },
            {
                "task": data,
                **{f"pretrain/{system}": self._trained[system] for system in scores},
                **{f"sweep/{system}": found for system, found in sweeps.items()},
            },
        )

    def _cost(self, system: str) -> dict[str, Any] | None:
        if system in self._untrained:
            return None
        summary = self._trained[system].summary
        return {
            "objective": "mlm_nsp",
            "steps": summary["steps"],
            "tokens": summary["tokens"],
            "flops": summary["flops_per_token"] * summary["tokens"],
            "parameters": summary["parameters"],
            "fingerprint": self._trained[system].fingerprint,
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
        """The table; `published` are differences in points by system and task."""
        evaluated = [
            found.summary
            for found in self.made.values()
            if found.stage == "evaluate" and found.summary["budget"] is None
        ]
        scores, steps = [], []
        for found in evaluated:
            name, metric = found["task"], found["metric"]
            seeds = {
                system: [r["test"][metric] for r in found["rows"] if r["system"] == system]
                for system in found["systems"]
            }
            for system, each in found["systems"].items():
                scores.append(
                    {
                        "task": name,
                        "system": system,
                        "metric": metric,
                        **each["estimates"][metric],
                        "baseline": "majority",
                        "baseline_score": 0.5,
                    }
                )
            for above, system in itertools.pairwise(seeds):
                ours = paired_difference(seeds[system], seeds[above])
                points = (published or {}).get((system, name))
                sign = None
                if points:
                    apart = ours.low > 0 or ours.high < 0
                    same = (ours.mean > 0) == (points > 0)
                    sign = ("agrees" if same else "disagrees") if apart else "unresolved"
                row = {"task": name, "system": system, "minus": above, **asdict(ours)}
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


def _settings(system: str) -> dict[str, Any]:
    return {
        "initialisation": "random" if system == "random" else "pretrained",
        "learning_rate": 1e-3,
        "batch_size": 8,
        "epochs": 3,
        "use": {"kind": "full"},
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
        monkeypatch.setattr(sweep_plots, name, picture, raising=False)

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
    """One task and two systems, the second from random weights, `gap` apart."""
    made = Experiment(before)
    made.systems(["pretrained", "random"], untrained=["random"])
    random = [0.60, 0.61, 0.605, 0.60, 0.62]
    scores = [value + gap + 0.004 * number for number, value in enumerate(random)]
    both = {"pretrained": scores, "random": random}
    made.task("libraries", MadeTask("classification", {None: both}))
    made.register("libraries")
    made.table()
    return made.made


def whole(before: dict[str, Artifact]) -> dict[str, Artifact]:
    """Four systems, five tasks of all kinds, three budgets besides all examples, published rows."""
    systems = ("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm")
    made = Experiment(before)
    made.systems(systems)
    rng = np.random.Generator(np.random.Philox(7))
    published = {}
    for place, (name, kind) in enumerate(
        zip(("sst-2", "sts-b", "conll-2003", "squad", "swag"), METRICS, strict=True)
    ):
        scores = {
            budget: {
                system: (
                    0.58
                    + 0.03 * place
                    + 0.07 * step
                    - (0.008 + 0.01 * place) * number
                    + 0.012 * rng.standard_normal(5)
                ).tolist()
                for number, system in enumerate(systems)
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
        published |= {(system, name): -0.5 * n for n, system in enumerate(systems) if n and place}
    made.table(published)
    return made.made


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
