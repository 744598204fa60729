"""An S3 that stumbles loses and doubles nothing; one that is gone is named in one line."""

import gzip
import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.retries.standard
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError, UserError
from rungwise.core.storage import folder as folders
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import find_files
from rungwise.corpus.building.range_builder import read_range
from rungwise.corpus.config import CorpusConfig, input_digests, list_ranges
from rungwise.corpus.document import RawDocument
from tests.faults.s3_faults import OF_BODIES, OF_EVERY_REQUEST, OF_UPLOADS, FaultyS3, faulty_moto
from tests.ray.kills import printed_by, start

BUCKET = "rungwise-faults"


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyS3]:
    with pytest.MonkeyPatch.context() as patch:
        # The pauses between attempts are botocore's and need no test here.
        patch.setattr(botocore.retries.standard.ExponentialBackoff, "delay_amount", lambda *_: 0.01)
        with faulty_moto(BUCKET) as found:
            yield found


@pytest.fixture(autouse=True)
def _sound_again(proxy: FaultyS3) -> Iterator[None]:
    yield
    proxy.plan(0.0)


def folder(request: pytest.FixtureRequest) -> Folder:
    return Folder.at(f"s3://{BUCKET}/{hashlib.md5(request.node.name.encode()).hexdigest()}")


def test_what_is_written_through_faults_is_read_back_through_faults(
    proxy: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(folders, "_RANGE_BYTES", 40_000)
    rng = random.Random(0)
    files = {f"{n % 3}/{n}": rng.randbytes(rng.choice((0, 1, 900, 200_000))) for n in range(8)}
    place = folder(request)
    proxy.plan(0.5)
    for name, data in files.items():
        place.write_bytes(name, data)
    assert place.names() == sorted(files)
    assert place.subfolders() == ["0", "1", "2"]
    for name, data in files.items():
        assert place.exists(name)
        assert place.size(name) == len(data)
        assert place.read_bytes(name) == data
        assert place.sha256(name) == hashlib.sha256(data).hexdigest()
        assert place.local(name, tmp_path).read_bytes() == data
    listed = find_files(place.uri)
    assert [file.name for file in listed] == sorted(files)
    for file in listed:
        with file.open() as stream:
            pieces = iter(lambda: stream.read(70_001), b"")
            assert b"".join(pieces) == files[file.name]
    assert set(proxy.faults) == {*OF_EVERY_REQUEST, *OF_BODIES, *OF_UPLOADS}
    place.remove("0/0")
    assert place.names() == sorted(set(files) - {"0/0"})
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


def test_an_upload_in_parts_comes_whole(
    proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: 5 << 20)
    data = random.Random(0).randbytes(11 << 20)
    place = folder(request)
    proxy.plan(0.6)
    place.write_bytes("large", data)
    assert proxy.faults.total() > 0
    proxy.plan(0.0)
    assert place.names() == ["large"]
    assert place.read_bytes("large") == data


def test_a_failed_upload(proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: 5 << 20)
    monkeypatch.setattr(s3fs.core.S3FileSystem, "retries", 2)

    def never(exchange: Any, upload: bool) -> str:
        return "slow down" if "partNumber=2" in exchange.path else ""

    monkeypatch.setattr(proxy, "fault", never)
    place = folder(request)
    before = s3fs.S3FileSystem().list_multipart_uploads(BUCKET)
    with pytest.raises(UserError, match="SlowDown"):
        place.write_bytes("large", bytes(11 << 20))
    assert place.names() == []
    assert s3fs.S3FileSystem().list_multipart_uploads(BUCKET) == before


def test_an_upload_whose_completion_is_not_heard_of_is_made_again(
    proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: 5 << 20)
    completions: list[str] = []

    def unheard(exchange: Any, upload: bool) -> str:
        if exchange.command == "POST" and "uploadId" in exchange.path:
            completions.append(exchange.path)
        return "reset after" if len(completions) == 1 and upload else ""

    monkeypatch.setattr(proxy, "fault", unheard)
    data = random.Random(1).randbytes(11 << 20)
    place = folder(request)
    place.write_bytes("large", data)
    assert len(completions) > 1
    assert place.names() == ["large"]
    assert place.read_bytes("large") == data


def test_a_body_that_is_always_short_is_refused_and_counts_for_nothing(
    proxy: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    # Of a whole object S3 also sends a checksum, of a range it has none.
    monkeypatch.setattr(folders, "_RANGE_BYTES", 400)
    place = folder(request)
    place.write_bytes("x", b"0123456789" * 100)

    def short(exchange: Any, upload: bool) -> str:
        return "shortened" if exchange.headers.get("Range") else ""

    monkeypatch.setattr(proxy, "fault", short)
    message = r"asked 3 times for [24]00 bytes, the store sent [12]00"
    with pytest.raises(DataError, match=message):
        place.local("x", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(DataError, match=message):
        place.read_bytes("x")
    monkeypatch.setattr(folders, "_RANGE_BYTES", 4000)
    with pytest.raises(UserError, match=r"cannot use rungwise-faults .Expected checksum"):
        place.read_bytes("x")


def test_an_object_replaced_while_it_is_read_is_never_mixed(
    proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(folders, "_RANGE_BYTES", 1000)
    place = folder(request)
    place.write_bytes("x", b"a" * 5000)
    (listed,) = find_files(place.path("x"))
    with listed.open() as stream:
        assert stream.read(1000) == b"a" * 1000
        place.write_bytes("x", b"b" * 5000)
        with pytest.raises(OSError, match=r"Etag .* no longer exists"):
            stream.read()
    with pytest.raises(DataError, match="has changed since it was listed"):
        listed.open()


def test_the_digest_of_many_objects_is_one_listing(proxy: FaultyS3, request: Any) -> None:
    place = folder(request)
    for number in range(30):
        place.write_bytes(f"{number}.txt", b"words %d" % number)
    config = validate(CorpusConfig, {"sources": [{"kind": "text", "paths": [place.uri]}]})
    proxy.plan(0.0)
    first = input_digests(config)
    assert first["sources.0"]["files"] == 30
    assert proxy.requests.total() < 6
    place.write_bytes("3.txt", b"worse 3")
    assert input_digests(config) != first


@pytest.mark.parametrize("kind", ["jsonl", "text", "parquet"])
def test_of_a_large_object_each_range_fetches_its_own_bytes(
    proxy: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, request: Any
) -> None:
    rng = random.Random(5)
    texts = [rng.randbytes(rng.randrange(1000, 9000)).hex() for _ in range(500)]
    match kind:
        case "jsonl":
            data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        case "text":
            data = "\n\n".join(texts).encode()
        case _:
            table = pa.table({"text": texts, "unread": texts[::-1]})
            pq.write_table(table, tmp_path / "x", row_group_size=50, compression="none")
            data = (tmp_path / "x").read_bytes()
    place = folder(request)
    place.write_bytes("x", data)
    (tmp_path / "x").write_bytes(data)
    block = {"kind": kind} | ({"documents": "blank_line"} if kind == "text" else {})
    fetched: list[int] = []

    def look(exchange: Any, upload: bool) -> str:
        if exchange.command == "GET" and "?" not in exchange.path:
            first, last = exchange.headers["Range"].removeprefix("bytes=").split("-")
            fetched.append(int(last) - int(first) + 1)
        return ""

    monkeypatch.setattr(proxy, "fault", look)
    read: list[list[RawDocument]] = []
    for where in (str(tmp_path / "x"), place.path("x")):
        source = block | {"paths": [where], "name": "one"}
        config = validate(CorpusConfig, {"sources": [source], "shard_megabytes": 2.0})
        ranges = list_ranges(config)
        assert len(ranges) > 1
        assert not fetched
        documents = []
        for one in ranges:
            before = sum(fetched)
            documents += list(read_range(one, config))
            assert sum(fetched) - before < one.num_bytes + 300_000
        read.append(documents)
    assert read[0] == read[1]
    assert [document.paragraphs[0] for document in read[0]] == texts
    # Of Parquet the column of the texts, and the footer for each range.
    assert sum(map(len, texts)) < sum(fetched) < sum(map(len, texts)) + len(ranges) * 140_000


@pytest.mark.parametrize("at", ["connection", "answer"])
def test_a_store_that_is_gone_is_named_with_the_key_to_change(
    at: str, proxy: FaultyS3, unused_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = f"s3://{BUCKET}/gone"
    Folder.at(gone).write_bytes("x", b"1")
    if at == "connection":
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
        s3fs.S3FileSystem.clear_instance_cache()
    else:
        monkeypatch.setattr(proxy, "fault", lambda *_, **__: "slow down")
        monkeypatch.setattr(s3fs.core.S3FileSystem, "retries", 2)
    calls = {
        "exists": lambda: Folder.at(gone).exists("x"),
        "names": lambda: Folder.at(gone).names(),
        "read": lambda: Folder.at(gone).read_bytes("x"),
        "local": lambda: Folder.at(gone).local("x", tmp_path),
        "write": lambda: Folder.at(gone).write_bytes("y", b"2"),
        "writable": lambda: Folder.at(gone).check_writable("root"),
    }
    started = time.monotonic()
    for name, call in calls.items():
        with pytest.raises(UserError, match=rf"cannot use {BUCKET} .*change root") as caught:
            call()
        assert "\n" not in str(caught.value), name
    config = validate(CorpusConfig, {"sources": [{"kind": "text", "paths": [f"{gone}/*"]}]})
    with pytest.raises(UserError, match=rf"cannot use {BUCKET} .*change corpus\.sources\.0\.paths"):
        input_digests(config)
    # No more than the pauses above allow; the test's own limit is far off.
    assert time.monotonic() - started < 60
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_bucket_that_is_not_there_is_said_to_be_so(proxy: FaultyS3) -> None:
    with pytest.raises(UserError, match=r"cannot use rungwise-none .*NoSuchBucket"):
        Folder.at("s3://rungwise-none/x").write_bytes("y", b"1")


@pytest.mark.slow
def test_a_corpus_built_through_faults_is_the_same(proxy: FaultyS3, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    bucket = Folder.at(f"s3://{BUCKET}/in")
    for number in range(12):
        text = "".join(
            f"Text {number} line {n}. It is a line of some fifty characters.\n\n"
            for n in range(400)
        )
        data = text.encode() if number % 2 else gzip.compress(text.encode())
        name = f"{number}.txt" if number % 2 else f"{number}.txt.gz"
        (source / name).write_bytes(data)
        bucket.write_bytes(name, data)
    places = [(str(source), str(tmp_path / "out")), (bucket.uri, f"s3://{BUCKET}/out")]
    proxy.plan(0.15, seed=1)
    written = []
    for paths, output in places:
        block = {"kind": "text", "documents": "blank_line", "paths": [paths]}
        config = {"sources": [block], "shard_megabytes": 0.02}
        job = start(tmp_path, stage="corpus", config=config, inputs={}, output=output, cpus=2)
        written.append(printed_by(job))
    assert len(written[0]) > 4
    assert written[0] == written[1]
    assert proxy.faults.total() > 5
    proxy.plan(0.0)
    for _, output in places:
        assert {name: Folder.at(output).sha256(name) for name in written[0]} == written[0]
