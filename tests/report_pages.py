"""Small artifacts without a run, a page as a browser takes it, and its tables."""

import csv
import io
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from tokenizers import Tokenizer

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import SCHEMA
from rungwise.corpus.summary import CorpusSummary
from rungwise.instances.masking import MaskingConfig
from rungwise.instances.pairs import MaskedBlocksConfig, MaskedPairsConfig, SentenceOrderConfig
from rungwise.instances.texts import CausalAndMaskedConfig, CausalConfig, DenoisedSpansConfig
from rungwise.report.run import write_report
from rungwise.report.stage import ReportConfig, ReportSummary
from rungwise.tokenizer import TokenizerSummary
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig, WordPieceConfig
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.config import GradientConfig
from rungwise.training.summary import GradientRun, PretrainSummary
from rungwise.training.tensor_files import save_tensors
from rungwise.training.throughput import COUNTING_RULE
from tests.conftest import SPECIAL_IDS, made_up_sentences, text_of_words, write_shards
from tests.small_models import objective_of, shaken, small_config, small_model
from tests.summaries import made_of

LENGTH = 24
INSTANCES: dict[str, Any] = {
    "mlm_nsp": MaskedPairsConfig,
    "mlm": MaskedBlocksConfig,
    "sentence_order": SentenceOrderConfig,
    "modern_bert": MaskedBlocksConfig,
    "replaced_tokens": MaskedBlocksConfig,
    "causal_and_masked": CausalAndMaskedConfig,
    "permuted": MaskedBlocksConfig,
    "span_denoising": partial(DenoisedSpansConfig, masking=MaskingConfig(max_predictions=5)),
}
STEPS = 20


def gradient_run(rows: list[dict[str, Any]], **changes: Any) -> GradientRun:
    """A run with these validations that went smoothly."""
    steps = rows[-1]["step"]
    shares = {"step_seconds": 0.1, "checkpoint_stall_share": 0.002, "mfu": 0.4}
    timing = shares | {"seconds": 1.0, "data_wait_share": 0.01}
    fields: dict[str, Any] = {
        "steps": steps,
        "history": tuple({"learning_rate": 1e-3, **row} for row in rows[1:]),
        "validation": tuple(rows),
        "timings": tuple(
            timing | {"step": step, "tokens_per_second": 9000.0 + step}
            for step in range(steps // 2, steps + 1, steps // 2)
        ),
        "data": (),
        "data_hash": "0123456789abcdef0123456789abcdef",
        "skipped_steps": (),
        "attempts": ({"step": 0, "workers": 2},),
        "stopped_early": False,
        "device": "CPU, 1 thread",
        "bfloat16": False,
        "parallel": "ddp",
        "lengths": (),
        "flops_per_token": 1e6,
        "flops_rule": COUNTING_RULE,
        "throughput": shares
        | {"tokens_per_second": 1e4, "seconds": 2.5, "data_wait_share": 0.0123}
        | {"matmul_flops_per_second": 2.5e10, "checkpoint_save_seconds": 0.25}
        | {"checkpoint_stall_seconds": 0.005, "checkpoints_failed": 0},
    }
    return GradientRun.model_validate(fields | changes)


def pretrain_summary(
    model: Any, objective: str, final: dict[str, Any], run: GradientRun | None
) -> PretrainSummary:
    """What a pretraining by gradient leaves."""
    return PretrainSummary(
        fitting="gradient",
        model=model,
        objective=objective,
        parameters=12345,
        vocab_size=300,
        tokens=100 * STEPS,
        epochs=1.5,
        unigram_loss=4.5,
        final=final,
        seconds=2.5,
        gradient=run,
        headline="pretrain <done>",
    )


def changed_run(pretrain: Artifact, **changes: Any) -> Artifact:
    """The artifact with other fields of its gradient run."""
    summary = PretrainSummary.of(pretrain)
    assert summary.gradient is not None
    run = GradientRun.model_validate(summary.gradient.model_dump() | changes)
    last = {"gradient": run, "final": run.validation[-1]}
    return summary.model_copy(update=last).replace_summary(pretrain)


def facts_of(stage: str, number: int, inputs: dict[str, Artifact]) -> dict[str, Any]:
    """What the fingerprint of stage `number` rests on, as far as anybody reads it."""
    made_of = {name: one.fingerprint for name, one in inputs.items()}
    return {"stage": stage, "version": number, "outside": {}, "inputs": made_of}


def record_stage(
    root: Folder,
    facts: dict[str, Any],
    config: dict[str, Any],
    summary: Summary,
    inputs: dict[str, Artifact],
) -> Artifact:
    """An artifact below the root, as its stage would leave it."""
    stage, key = facts["stage"], fingerprint(facts)
    made_by = {"commit": "abc123", "python": "3.11", "packages": {"torch": "2"}}
    record = {
        "stage": stage,
        "fingerprint": key,
        "inputs": made_of(**inputs),
        "label": "small",
        "config": config,
        "facts": facts,
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 1.5 + facts["version"] % 1000,
        "mlflow_run_id": f"run{facts['version']}",
        "made_by": made_by | {"machine": {"system": "Linux", "cpus": 2}},
    }
    return summary.replace_summary(Artifact(stage, key, root / stage / f"small-{key}", record))


class Recorder:
    """Artifacts of a workflow, as its stages would leave them."""

    def __init__(self, root: Folder) -> None:
        self.made: dict[str, Artifact] = {}
        self._root = root

    def folder(self, stage: str) -> Folder:
        """Where the next stage writes."""
        facts = facts_of(stage, len(self.made), self.made)
        return self._root / stage / f"small-{fingerprint(facts)}"

    def add(
        self, stage: str, config: dict[str, Any], summary: Summary, outside: Any = None
    ) -> Artifact:
        """One more stage, which read all those before it."""
        facts = facts_of(stage, len(self.made), self.made) | {"outside": outside or {}}
        self.made[stage] = record_stage(self._root, facts, config, summary, dict(self.made))
        return self.made[stage]


def corpus_summary(**fields: Any) -> CorpusSummary:
    """A corpus of ten documents in each split."""
    even = {"train": 10, "validation": 10}
    units = ("documents", "sentences", "words", "characters", "bytes")
    none = ("skipped_parts", "skipped_bytes", "characters_removed", "characters_replaced")
    known: dict[str, Any] = {**dict.fromkeys(units, even), **dict.fromkeys(none, 0)}
    known |= {
        "files": [
            {"file": f"{split}.parquet", "split": split, "source": "text"}
            | dict.fromkeys(units, 10)
            for split in even
        ],
        "labels": {"made up": 20},
        "skipped": (),
        "headline": "corpus <done>",
    }
    known |= {"dropped": {}, "dropped_samples": {}}
    return CorpusSummary.model_validate(known | fields)


def tokenizer_summary(tokenizer: Tokenizer, kind: str) -> TokenizerSummary:
    """A tokenizer that was measured on nothing."""
    return TokenizerSummary(
        kind=kind,
        vocab_size=tokenizer.get_vocab_size(),
        special=SPECIAL_IDS,
        sample_characters=1000,
        unknown_rate=0.0,
        tokens_per_word=1.0,
        characters_per_token=4.0,
        headline="tokenizer <done>",
    )


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
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids |= {values["id"]} if "id" in values else set()
        self.loads += [
            values[name] for name in ("src", "srcset", "data", "poster") if name in values
        ]
        self.loads += [values["href"]] if tag == "link" else []
        self.links += [values["href"]] if tag == "a" else []
        self.styles += values.get("style", "")
        assert not any(name.startswith("on") for name in values), f"{tag} has a handler"

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "style":
            self.styles += data
        else:
            self.words += data


def written_page(
    made: dict[str, Artifact], folder: Path, **config: Any
) -> tuple[Page, ReportSummary]:
    """The page that the stage writes of these artifacts below `folder`."""
    summary = write_report(ReportConfig(**config), made, Folder.at(folder), Context())
    return Page((folder / "report.html").read_text("utf-8")), summary


def text_of(tokenizer: Tokenizer, seed: int) -> TokenisedText:
    """Ten documents of four sentences."""
    texts = [made_up_sentences(10 * seed + document, 4) for document in range(10)]
    return text_of_words(
        [[tokenizer.encode(each, add_special_tokens=False).ids for each in text] for text in texts]
    )


def built(
    objective: str,
    root: Path,
    shape: dict[str, Any] | None = None,
    corpus: CorpusSummary | None = None,
    **run: Any,
) -> dict[str, Artifact]:
    """The artifacts of a pretrain workflow with this objective, the model only shaken.

    `shape` are keys of the model block, `run` fields of the gradient run.
    """
    recorder = Recorder(Folder.at(root))
    masks, trained_on = objective_of(objective).masks, objective_of(objective).name
    sentences = [s for seed in range(30) for s in made_up_sentences(seed, 4)]
    sources = {"sources": [{"kind": "text", "paths": ["a.txt"]}]}
    made = recorder.add("corpus", sources, corpus or corpus_summary())
    texts = [made_up_sentences(10 + document, 4) for document in range(10)]  # as in text_of
    rows = [{"id": "d", "label": "l", "sentences": text, "paragraph_starts": [0]} for text in texts]
    with made.folder.staged("validation.parquet") as path:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    settings: Any = WordPieceConfig if masks else ByteBpeConfig
    config = settings(vocab_size=300, min_frequency=1)
    tokenizer = train(config, sentences)
    vocab_size = tokenizer.get_vocab_size()
    made = recorder.add("tokenizer", config.model_dump(), tokenizer_summary(tokenizer, config.kind))
    with made.folder.staged("tokenizer.json") as path:
        tokenizer.save(str(path))

    recorder.add("tokens", {}, TokensSummary.model_construct(headline="tokens"))

    read = INSTANCES.get(objective, CausalConfig)(sequence_length=LENGTH)
    rng = np.random.Generator(np.random.Philox(0))
    shards = {
        f"{split}-00000.arrow": read.build(text_of(tokenizer, seed), SPECIAL_IDS, rng).shard
        for seed, split in enumerate(("train", "validation"))
    }
    shares = ("selected", "mask", "random", "kept", "is_next", "in_order", "unused")
    summary = write_shards(
        Path(recorder.folder("instances").uri),
        shards,
        vocab_size,
        kind=read.kind,
        sequence_length=LENGTH,
        unigram_loss=4.5,
        statistics={f"{name}_share": 0.5 for name in shares} | {"fill": 0.9},
    )
    recorder.add("instances", read.model_dump(mode="json"), summary)

    torch.manual_seed(1)
    changes = {"max_position_embeddings": LENGTH} | (shape or {})
    model_config: Any = small_config(objective, **changes)
    model = shaken(small_model(objective, vocab_size, **changes), 0.2)
    parts = objective_of(objective).parts
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
    pretrain = GradientConfig(steps=STEPS, validation_instances=40, objective=trained_on)
    made = recorder.add(
        "pretrain",
        {"model": model_config.model_dump(), "pretrain": pretrain.model_dump(mode="json")},
        pretrain_summary(model_config, trained_on, rows[-1], gradient_run(rows, **run)).model_copy(
            update={"vocab_size": vocab_size}
        ),
    )
    save_tensors(made.folder, "model.safetensors", model.state_dict())
    return {
        name: artifacts.finish(one.folder, one.record, {}) for name, one in recorder.made.items()
    }


def check_self_contained(page: Page) -> None:
    """A page loads nothing from anywhere, runs nothing, and its links lead within it."""
    assert page.loads
    assert all(load.startswith("data:") for load in page.loads)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not {"script", "iframe"} & set(page.tags)
    assert "url(" not in page.styles
    assert "@import" not in page.styles


def check_pictures(summary: ReportSummary, folder: Path) -> list[str]:
    """The names of a page's pictures, large (3.7 inches for telephones) and not blank."""
    names = [name for name in summary.show if name.endswith(".png")]
    for name in names:
        with Image.open(folder / name) as picture:
            assert picture.width >= (590 if "-narrow" in name else 800)
            colours = picture.convert("RGB").getcolors(1 << 24) or []
            assert len(colours) > 10, f"{name} is blank"
    return names


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
