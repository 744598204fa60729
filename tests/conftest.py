"""What tests share: small corpora and recipes, commands, buckets, real data if present."""

import contextlib
import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import yaml

from rungwise.cluster.environment import set_environment
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import SpecialIds
from rungwise.core.tracking.store import make_store
from rungwise.instances.shards import Shard, write_shard
from rungwise.instances.summary import InstancesSummary, ShardFile
from rungwise.tokenizer.token_text import TokenisedText

# Ray's workers are not to wait for the other tests, as its default has it.
os.environ.setdefault("RAY_worker_niceness", "0")
set_environment()
# Tests start a hundred processes, which would each compile the same modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's shell has what it starts with & ignore Ctrl-C, and so would what tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# An example's time is that of the machine. `make test` draws the same examples each time, so that
# a failure is of the change; `make test-all` draws others (--hypothesis-profile=search).
hypothesis.settings.register_profile("search", deadline=None, derandomize=False)
hypothesis.settings.register_profile("rungwise", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rungwise")
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Two processes that compile at once have been seen to read each other's files half written.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/inductor-{worker}")
# Of tokenizers trained here: [PAD] [UNK] [CLS] [SEP] [MASK], and what ends a document.
SPECIAL_IDS = SpecialIds(0, 1, 2, 3, 4, end=3, ids=(0, 1, 2, 3, 4))
REPOSITORY = Path(__file__).resolve().parents[1]
# What the fixture `cli` gives.
Cli = Callable[..., str]
# Else those of few tests come last, and one process ends long after the others.
_LONGEST = {
    f"tests/{folder}/test_{name}.py"
    for folder, names in {
        "ray": "ladder workflow one_worker",
        "unit/core": "tracking lease",
        "unit/models": "families",
        "unit/repository": "docs_commands",
        "unit/training": "carried_state checkpoint_attempts gpu_step mixed_objectives "
        "training_parallel",
    }.items()
    for name in names.split()
}

# What sentences of made-up English are made of: subjects, verbs, objects, ends.
_PARTS = [
    part.split(",")
    for part in (
        "the parser,a worker,the cluster,an array,the model,each thread,the cache,a query",
        "returns,reads,writes,splits,joins,keeps,drops,sorts,masks,counts",
        "a value,the rows,every token,the index,a list,its input,two columns,the last step",
        "at once,in order,on error,by name,for each call,when asked,in place,without a copy",
    )
]


@pytest.fixture(autouse=True)
def one_thread_and_a_seed() -> None:
    """Begin every test of PyTorch with one thread and the same random numbers."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        torch.manual_seed(20)


@pytest.fixture(autouse=True)
def no_tracking_address() -> Iterator[None]:
    """Forget the address that a run gave MLflow, which keeps it here and in the environment."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    yield
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if "mlflow" in sys.modules:
        import mlflow  # which waits for a thread that has begun to import it

        mlflow.set_tracking_uri(None)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process; what it printed, or its message if it is to fail."""

    def run(*arguments: str, status: int = 0) -> str:
        from rungwise.__main__ import main

        capsys.readouterr()
        ended = main([*arguments])
        out, err = capsys.readouterr()
        assert ended == status, err
        return err if status else out

    return run


def pytest_collection_finish() -> None:
    """Leave imports out of searches for garbage, with one of which each fine-tuning ends."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run tests/ray, which mostly waits, in the first process, and the longest files first."""
    from xdist.scheduler import LoadFileScheduling

    class RayInOneProcess(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            first = node is self.nodes[0]
            files = [file for file in self.workqueue if file.startswith("tests/ray/") == first]
            if files:
                file = min(files, key=lambda each: each not in _LONGEST)
                self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    return RayInOneProcess(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora and tasks; skips where it does not lie beside the repository."""
    places = [os.environ.get("RUNGWISE_DATA"), REPOSITORY.parent / "shared" / "data"]
    for place in places:
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("no real data: set RUNGWISE_DATA or put it at ../shared/data")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of an MLflow store without runs, to copy: MLflow takes a second to make one."""
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    make_store(f"sqlite:///{database}")
    return database


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    """A store of a test's own."""
    return f"sqlite:///{shutil.copy(empty_store, tmp_path)}"


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """The address of a moto server on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextlib.contextmanager
def bucket_at(address: str, name: str) -> Iterator[str]:
    """A bucket of the server there, reached as any S3 is: through the environment."""
    import s3fs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(name)
        yield f"s3://{name}"
        s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def s3_bucket(name: str) -> Iterator[str]:
    """A bucket of a moto server on loopback."""
    with moto_server() as address, bucket_at(address, name) as uri:
        yield uri


@pytest.fixture(scope="module")
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """A bucket of a moto server on loopback, reached as any S3 is."""
    # moto keeps the buckets of a server that has stopped, so each module has its own.
    with s3_bucket(request.module.__name__.rpartition(".")[2].replace("_", "-")) as uri:
        yield uri


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A folder that does not exist yet, on a disk and in a bucket."""
    if request.param == "local":
        return Folder.at(tmp_path / "root")
    bucket = request.getfixturevalue("bucket")
    return Folder.at(f"{bucket}/{request.node.name.replace('[', '-').rstrip(']')}")


def made_up_sentences(seed: int, count: int) -> list[str]:
    """Sentences of made-up English."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(part) for part in _PARTS) + f" {seed}." for _ in range(count)]


def text_of_words(texts: Sequence[Sequence[Sequence[int]]], **fields: Any) -> TokenisedText:
    """Texts of sentences of words, a document each, with these other `fields`."""
    sentences = [sentence for text in texts for sentence in text]
    return TokenisedText(
        ids=np.array([word for sentence in sentences for word in sentence], np.uint16),
        starts=np.cumsum([0, *map(len, sentences)]),
        first_sentence=np.cumsum([0, *map(len, texts)]),
        **{"documents": np.arange(len(texts), dtype=np.uint64), **fields},
    )


def write_corpus(folder: Path, documents: int, seed: int = 0, sentences: int = 30) -> Path:
    """Documents of made-up English, one a file, that a model can learn something from."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        lines = []
        for index in range(sentences):
            words = " ".join(rng.choice(part) for part in _PARTS)
            lines.append(f"{words[0].upper()}{words[1:]} {number} {rng.randrange(50)}.")
            if index % 5 == 4:
                lines.append("")
        (folder / f"library{number % 3}-{number:04d}.txt").write_text("\n".join(lines))
    return folder


_RECIPE = """
name: small
tokenizer: {kind: wordpiece, vocab_size: 200, min_frequency: 1}
instances: {kind: masked_pairs, sequence_length: 32}
model:
  kind: bert
  num_layers: 1
  num_heads: 2
  hidden_size: 32
  intermediate_size: 64
  max_position_embeddings: 32
pretrain:
  steps: 40
  global_batch_size: 16
  optimizer: {kind: adamw, learning_rate: 0.003}
  precision: float32
  validation_every_steps: 20
  validation_instances: 64
  log_every_steps: 5
compute: {num_workers: 2, micro_batch_size: 8}
"""


def small_recipe(root: Path, corpus: Path, **changes: Any) -> dict[str, Any]:
    """A whole recipe that trains in seconds; `changes` replaces top-level blocks."""
    recipe: dict[str, Any] = yaml.safe_load(_RECIPE) | {"root": str(root)}
    source = {"kind": "text", "paths": [str(corpus)]}
    recipe["corpus"] = {"sources": [source], "held_out_fraction": 0.2}
    recipe["compute"] |= {"checkpoint_every_steps": 10, "object_store_megabytes": 200}
    return recipe | changes


def small_gpt(**keys: Any) -> dict[str, Any]:
    """The blocks of a small recipe that make its model a GPT."""
    model = yaml.safe_load(_RECIPE)["model"] | {"kind": "gpt"}
    return {"instances": {"kind": "causal", "sequence_length": 32}, "model": model | keys}


def write_shards(
    folder: Path,
    shards: dict[str, Shard],
    vocab_size: int,
    sources: Mapping[str, str] | None = None,
    **fields: Any,
) -> InstancesSummary:
    """Write these shards, by file name; the summary of instances of them, with these `fields`.

    `sources` names the source of a file where it is not "all".
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, shard in shards.items():
        write_shard(shard, folder / name)
        files.append(
            ShardFile(
                file=name,
                split=name.split("-")[0],
                source=(sources or {}).get(name, "all"),
                sha256=file_digest(folder / name),
                bytes=(folder / name).stat().st_size,
                documents=1,
                instances=len(shard),
                tokens=len(shard.ids),
            )
        )
    counts = {
        split: sum(row.instances for row in files if row.split == split)
        for split in ("train", "validation")
    }
    known: dict[str, Any] = {
        "kind": "masked_pairs",
        "sequence_length": 128,
        "files": files,
        "vocab_size": vocab_size,
        "special": SPECIAL_IDS,
        "instances": counts,
        "tokens": sum(row.tokens for row in files),
        "text_bytes": {"train": 1000, "validation": 1000},
        "statistics": {},
        "unigram_loss": 4.0,
        "headline": "instances",
    }
    return InstancesSummary.model_validate(known | fields)


def write_recipe(path: Path, recipe: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def find_ports(count: int) -> list[int]:
    """So many ports of loopback that nothing listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def find_port() -> int:
    """A port of loopback that nothing listens on."""
    return find_ports(1)[0]


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that nothing listens on."""
    return find_port()


@contextlib.contextmanager
def mounted_disk(place: Path, size: str) -> Iterator[Path]:
    """A real file system of this size; skips where none can be mounted."""
    place.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        # Lazily, because a file on it may still be mapped.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Instances of a made-up language, as `make_instances` builds them by default."""
    from tests.training_runs import make_instances

    return make_instances(tmp_path_factory.mktemp("instances"))
