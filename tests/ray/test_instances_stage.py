"""The instances stage: the same bytes with any number of workers, killed and resumed, on S3."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.instances import building
from rungwise.instances.building import ShardTask
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.instances.reader import InstanceReader
from rungwise.tokenizer.config import WordPieceConfig
from rungwise.tokenizer.token_stage import TokensSummary
from tests.conftest import SPECIAL_IDS
from tests.corpora import made_up_documents, text_and_tokenizer
from tests.ray.kills import printed_by, start
from tests.summaries import finished, tokens_of
from tests.waiting import wait_until

SHARDS = 12
CONFIG = MaskedPairsConfig(sequence_length=32)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("inputs")
    drafts = made_up_documents(800, 40)  # more than is built without tasks
    ranges = [drafts[shard::SHARDS] for shard in range(SHARDS)]
    settings = WordPieceConfig(vocab_size=300, min_frequency=1)
    corpus, tokenizer = text_and_tokenizer(root, ranges, settings, held_out_fraction=0.2)
    return {"tokens": tokens_of(root / "tokens", corpus, tokenizer)}


@pytest.fixture(scope="module")
def one_process(inputs: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The digests of all shards, built one after the other in this process, without Ray."""
    output = Folder.at(tmp_path_factory.mktemp("one"))
    task = ShardTask(CONFIG, inputs["tokens"].folder, output, 300, SPECIAL_IDS)
    orders = building.list_orders(CONFIG, TokensSummary.of(inputs["tokens"]).files)
    assert len(orders) == 2 * SHARDS
    return {order.file: task(order)["sha256"] for order in orders}


def start_job(
    tmp_path: Path, inputs: dict[str, str], output: str, cpus: int
) -> subprocess.Popen[str]:
    wanted = {"stage": "instances", "config": CONFIG.model_dump(mode="json"), "inputs": inputs}
    return start(tmp_path, output=output, cpus=cpus, **wanted)


def on_disk(inputs: dict[str, Artifact]) -> dict[str, str]:
    return {name: found.folder.uri for name, found in inputs.items()}


def test_two_workers_make_the_bytes_of_one_process_and_say_what_is_in_them(
    inputs: dict[str, Artifact], one_process: dict[str, str], tmp_path: Path, ray_session: None
) -> None:
    output = Folder.at(tmp_path)
    summary = building.build_instances(CONFIG, inputs, output, Context())
    assert summary.sha256 == one_process
    assert set(output.names()) == {*one_process}
    assert summary.statistics["selected_share"] == pytest.approx(0.15, abs=0.003)
    assert summary.statistics["most_predictions"] <= 20
    found = finished("instances", output, summary, config=CONFIG.model_dump(mode="json"))
    for split in ("train", "validation"):
        reader = InstanceReader(found, split)
        assert len(reader) == getattr(summary.instances, split)
        rows = reader.rows(np.arange(0, len(reader), 97))
        assert (rows.ids[:, 0] == 2).all()


@pytest.mark.parametrize("cpus", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_with_no_or_four_workers_and_resumed_with_two_the_bytes_are_the_same(
    inputs: dict[str, Artifact],
    one_process: dict[str, str],
    tmp_path: Path,
    ray_session: None,
    cpus: int,
) -> None:
    output = tmp_path / "out"
    process = start_job(tmp_path, on_disk(inputs), str(output), cpus)
    markers = "markers/*.json"
    if cpus:
        wait_until(
            markers, lambda: len(list(output.glob(markers))) >= 3, code=process.poll, pause=0.001
        )
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = {path.name.removesuffix(".json") for path in output.glob("markers/*.json")}
    assert 3 <= len(done) < len(one_process)
    before = {name: (output / name).stat().st_mtime_ns for name in done}
    resumed = building.build_instances(CONFIG, inputs, Folder.at(output), Context())
    assert resumed.sha256 == one_process
    # What was done is not done again, and nothing half-written is left.
    assert {name: (output / name).stat().st_mtime_ns for name in done} == before
    names = {path.name for path in output.iterdir()}
    assert {name for name in names if not name.startswith(".")} == {*one_process}


@pytest.mark.slow
def test_from_s3_to_s3_the_bytes_are_the_same_and_are_read_from_there(
    inputs: dict[str, Artifact], one_process: dict[str, str], tmp_path: Path, bucket: str
) -> None:
    tokens, folder = inputs["tokens"].folder, Folder.at(f"{bucket}/tokens")
    for file in tokens.names():
        folder.copy_file(tokens.local(file), file)
    remote = {"tokens": folder.uri}
    output = Folder.at(f"{bucket}/out")
    assert printed_by(start_job(tmp_path, remote, output.uri, cpus=2)) == one_process
    assert set(output.names()) == {*one_process}
    for name, expected in one_process.items():
        assert output.sha256(name) == expected
    summary = building.build_instances(CONFIG, inputs, Folder.at(tmp_path / "here"), Context())
    found = finished("instances", output, summary, config=CONFIG.model_dump(mode="json"))
    reader = InstanceReader(found, "train", cache_folder=tmp_path / "cache")
    rows = reader.rows(np.arange(200))
    assert (rows.ids[:, 0] == 2).all()


def test_what_stops_a_task_reaches_the_user_as_one_error(
    inputs: dict[str, Artifact], tmp_path: Path, ray_session: None
) -> None:
    """A tokenizer without [MASK] cannot make masked instances: found in a task, said in a line."""
    summary = TokensSummary.of(inputs["tokens"])
    without = summary.model_copy(update={"special": replace(SPECIAL_IDS, mask=None)})
    changed = {"tokens": without.replace_summary(inputs["tokens"])}
    output = Folder.at(tmp_path / "out")
    with pytest.raises(DataError, match="no special token for 'mask'"):
        building.build_instances(CONFIG, changed, output, Context())
    assert not [name for name in output.names() if name.endswith(".arrow")]
