"""What the processes of `benchmarks/instances.py` do: one measurement each, alone in its process.

    python -m benchmarks.instance_workers NAME SETUP.json

prints one JSON object: `seconds` (CPU of this process, or `wall` where several take part), `tokens`
of text done in them, and what else a section wants; or as `missing` the package that a peer needs
and that is not installed. Caches cannot leak from one to the next, and
imports and the loading of vocabularies are outside the measured time.
"""

import hashlib
import json
import logging
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measuring import (
    BERT_ROLES,
    END,
    PEERS,
    Setup,
    instances_summary,
    list_rows,
    load_artifact,
    load_texts,
    make_stages,
    measured,
    tokenizer_summary,
)
from benchmarks.reading_workers import READ_ROWS, build_instances, masks, reader
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary

_BATCH = 1000  # texts in a call of a tokenizer


def _digest(ids: np.ndarray) -> str:
    return hashlib.blake2b(ids.astype("<u4").tobytes(), digest_size=8).hexdigest()


# The tokenizer alone


def rust(setup: Setup) -> dict[str, Any]:
    """`encode_batch_fast`, a thousand texts a call; Python lists of ids are made of what it gives.

    `unit` is document or sentence.
    """
    from rungwise.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(
        Folder(getattr(setup, setup.arguments.get("vocabulary", "wordpiece")))
    )
    texts = load_texts(setup, setup.arguments["unit"]).to_pylist()
    pieces: list[list[int]] = []
    result: dict[str, Any] = {}
    with measured(result):
        for begin in range(0, len(texts), _BATCH):
            batch = texts[begin : begin + _BATCH]
            pieces += [e.ids for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
    ids = np.fromiter((token for piece in pieces for token in piece), np.uint32)
    return result | {"tokens": len(ids), "digest": _digest(ids)}


def encoder(setup: Setup) -> dict[str, Any]:
    """Our encoder on the unseen text: `backend`, `unit`; with `warm` after the seen text."""
    from rungwise.tokenizer import load_tokenizer
    from rungwise.tokenizer.encoder import make_encoder

    arguments = setup.arguments
    tokenizer = load_tokenizer(Folder(getattr(setup, arguments.get("vocabulary", "wordpiece"))))
    texts = load_texts(setup, arguments["unit"])
    encoder = make_encoder(tokenizer, arguments["backend"])
    if arguments["warm"]:
        encoder.encode(load_texts(setup, arguments["unit"], split="train"))
    result: dict[str, Any] = {}
    with measured(result):
        ids = encoder.encode(texts).ids
    return result | {"tokens": len(ids), "digest": _digest(ids)}


# End to end


def ours(setup: Setup) -> dict[str, Any]:
    """Tokens and instances in this process: read a corpus file, tokenise, write; then build, check,
    write.

    `kind`, `backend`; `split` to build, which may be encoded before the clock starts; with `warm`
    the training split is built before; with `masks` every row is then read and masked once.
    """
    from rungwise.instances.reader import InstanceReader

    arguments = setup.arguments
    corpus = load_artifact(arguments.get("corpus", setup.corpus))
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        stages = make_stages(
            setup, corpus.folder, Folder(folder), arguments["kind"], arguments["backend"]
        )
        task = stages.instances
        files = list_rows(corpus, arguments["split"])[: arguments.get("shards")]
        if arguments["warm"]:
            stages.build(stages.encode(list_rows(corpus, "train")))
        encoded = stages.encode(files) if arguments.get("encoded") else None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result: dict[str, Any] = {}
        with measured(result):
            tokens = encoded or stages.encode(files)
            rows = stages.build(tokens)
            if arguments.get("masks"):
                summary = instances_summary(rows, task.vocab_size, task.special)
                record = {"config": task.config.model_dump(mode="json")}
                artifact = Artifact("instances", "", task.output, record)
                reader = InstanceReader(summary.replace_summary(artifact), rows[0]["split"])
                for begin in range(0, len(reader), READ_ROWS):
                    numbers = np.arange(begin, min(begin + READ_ROWS, len(reader)))
                    reader.batch(numbers, np.zeros_like(numbers), seed=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return result | {
        "tokens": tokens.tokens.total,
        "text_bytes": tokens.text_bytes.total,
        "peak_bytes": peak * 1024,
        "bytes_before": before * 1024,
    }


def google(setup: Setup) -> dict[str, Any]:
    """The plain-Python procedure, masks and all, once over the unseen text."""
    from benchmarks.baselines import google_bert

    vocabulary = google_bert.read_vocabulary(Path(setup.wordpiece) / "vocab.txt")
    tokenizer = google_bert.FullTokenizer(vocabulary, lowercase=True)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder, measured(result):
        output = Path(folder) / "records"
        google_bert.create([Path(setup.sentences)], output, tokenizer, google_bert.Settings())
    return result


def hugging_face(setup: Setup) -> dict[str, Any]:
    """`map`, `map` and Arrow files, for masked or causal blocks of the unseen text.

    With `masks` every block is then masked once by the collator, 64 at a time.
    """
    from benchmarks.baselines import hugging_face as peer

    causal = setup.arguments["kind"] == "causal"
    file = Path(setup.bpe if causal else setup.wordpiece) / "tokenizer.json"
    tokenizer = peer.fast_tokenizer(file, {"eos_token": END} if causal else BERT_ROLES)

    def work(documents: Path, cache: Path) -> None:
        if causal:
            peer.causal_blocks(documents, cache, tokenizer, 1024, END)
            return
        blocks = peer.masked_blocks(documents, cache, tokenizer, 128)
        if setup.arguments["masks"]:
            collate = peer.masking_collator(tokenizer, whole_words=False)
            for batch in blocks.iter(64):
                keys = list(batch)
                rows = zip(*(batch[key] for key in keys), strict=True)
                collate([dict(zip(keys, row, strict=True)) for row in rows])

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        few = Path(folder) / "few.parquet"
        pq.write_table(pq.read_table(setup.documents)[:20], few)
        work(few, Path(folder) / "few")  # what it imports when first used is not counted
        with measured(result):
            work(Path(setup.documents), Path(folder) / "all")
    return result


# On Ray


def stage(setup: Setup) -> dict[str, Any]:
    """The stages tokens and instances over `shards` files of the repeated text on a Ray of `cpus`,
    after its start."""
    import ray

    from rungwise.cluster.environment import set_environment
    from rungwise.core.configuration.overrides import ComputeConfig
    from rungwise.core.stages.stage import Context
    from rungwise.instances.summary import INSTANCES
    from rungwise.tokenizer.token_stage import TOKENS

    set_environment()
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        text = _with_held_out(setup, folder)
        stages = make_stages(setup, text.folder, Folder(folder), "masked_pairs", "nanotoken")
        encode, build = stages.tokens, stages.instances
        vocabulary = tokenizer_summary(build.vocab_size, build.special)
        words = Artifact("tokenizer", "", encode.tokenizer, {})
        inputs = {"corpus": text, "tokenizer": vocabulary.replace_summary(words)}
        ray.init(
            address="local",
            num_cpus=setup.arguments["cpus"],
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=512 << 20,
        )
        try:
            ray.get(ray.remote(_nothing).remote())  # starting a worker is not the stage's work
            result: dict[str, Any] = {}
            with measured(result):
                context = Context(compute=ComputeConfig())
                encoded = TOKENS.run(encode.config, inputs, encode.output, context)
                tokens = encoded.replace_summary(Artifact("tokens", "", encode.output, {}))
                summary = INSTANCES.run(build.config, {"tokens": tokens}, build.output, context)
        finally:
            ray.shutdown()
    return result | {"instances": summary.instances.total}


def loop(setup: Setup) -> dict[str, Any]:
    """The same files, one after the other in this process."""
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        text = _with_held_out(setup, folder)
        stages = make_stages(setup, text.folder, Folder(folder), "masked_pairs", "nanotoken")
        result: dict[str, Any] = {}
        with measured(result):
            rows = stages.build(stages.encode(CorpusSummary.of(text).files))
    return result | {"instances": sum(row["instances"] for row in rows)}


def _nothing() -> None:
    pass


def _with_held_out(setup: Setup, folder: str) -> Artifact:
    """A corpus in `folder` of links to `shards` files of the repeated text, and to a held-out one
    of the English, for the stage wants both splits."""
    english, repeated = load_artifact(setup.corpus), load_artifact(setup.repeated)
    text = CorpusSummary.of(repeated)
    files = text.files[: setup.arguments["shards"]]
    held_out = list_rows(english, "validation")[0]
    target = Path(folder) / "corpus"
    target.mkdir()
    for source, row in ((english, held_out), *((repeated, row) for row in files)):
        (target / row.file).symlink_to(source.folder.local(row.file))
    summary = text.model_copy(update={"files": (*files, held_out)})
    return summary.replace_summary(Artifact("corpus", "", Folder(str(target)), {}))


_WORKERS = (
    *(rust, encoder, ours, google, hugging_face, masks, reader, stage, loop, build_instances),
)
WORKERS: dict[str, Callable[[Setup], dict[str, Any]]] = {each.__name__: each for each in _WORKERS}


def main() -> None:
    name, path = sys.argv[1:]
    setup = Setup(**json.loads(Path(path).read_text()))
    try:
        result = WORKERS[name](setup)
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        result = {"missing": error.name}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
