"""Folders, local and on a server that speaks S3: whole files or none."""

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import find_files, list_matching_files
from tests.conftest import mounted_disk
from tests.file_server import FileServer, Reply, serving


def test_what_is_written_is_read_listed_and_removed(folder: Folder) -> None:
    assert folder.names() == []
    assert not folder.exists("a/b.txt")
    folder.write_bytes("a/b.txt", b"one")
    folder.write_bytes("c.txt", b"two")
    folder.write_bytes("c.txt", b"three")
    assert folder.names() == ["a/b.txt", "c.txt"]
    assert folder.subfolders() == ["a"]
    assert (folder / "a").read_bytes("b.txt") == b"one"
    assert folder.size("c.txt") == 5
    assert folder.sha256("c.txt") == (
        "8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f"
    )
    assert folder.local("c.txt").read_bytes() == b"three"
    folder.remove("c.txt")
    folder.remove("c.txt")
    assert folder.names() == ["a/b.txt"]
    folder.remove()
    assert folder.names() == []


def test_a_folder_that_empties_under_a_reader_is_empty(folder: Folder) -> None:
    """As the folder of a lease does: in a store a prefix goes with its last object."""
    emptied = threading.Event()

    def fill_and_empty() -> None:
        while not emptied.is_set():
            with contextlib.suppress(FileNotFoundError):  # the reader removed it meanwhile
                folder.write_bytes("x/y", b"")
            folder.remove()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(fill_and_empty)
        try:
            for _ in range(20):
                folder.names()
                assert set(folder.subfolders()) <= {"x"}
                assert folder.files() == []
                folder.remove()
        finally:
            emptied.set()
        writer.result(60)


class Refusing(FileServer):
    def reply(self, path: str, headers: dict[str, str]) -> Reply:
        return 403, {}, b""


def test_a_server_of_files_that_refuses_is_named_in_one_line() -> None:
    with serving(Refusing(lambda path: None)) as server:
        for name in ("x.txt", "x.txt.gz", "texts/", "x.zip"):
            place = f"{server.url}/{name}"
            with pytest.raises(UserError) as caught:
                list_matching_files([place], "corpus.sources.0.path")
            message = str(caught.value)
            assert "(403 Forbidden)" in message
            assert message.endswith(f"change corpus.sources.0.path (now {place})")


class Tagging(FileServer):
    def reply(self, path: str, headers: dict[str, str]) -> Reply:
        status, more, data = super().reply(path, headers)
        return status, more | {"ETag": '"1"'}, data


def test_a_file_of_a_server_with_etags_is_read() -> None:
    with serving(Tagging({"/x.txt": b"text"}.get)) as server:
        [file] = find_files(f"{server.url}/x.txt")
        assert file.open().read() == b"text"


def test_an_error_while_writing_leaves_the_old_file(folder: Folder) -> None:
    folder.write_bytes("x", b"old")

    def fail() -> None:
        with folder.staged("x") as path:
            path.write_bytes(b"half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    assert folder.read_bytes("x") == b"old"
    assert folder.names() == ["x"]


def test_a_download_follows_the_bytes(bucket: str, tmp_path: Path) -> None:
    folder = Folder.at(f"{bucket}/downloads")
    folder.write_bytes("x", b"1111")
    assert folder.local("x", tmp_path).read_bytes() == b"1111"
    folder.write_bytes("x", b"2222")
    assert folder.local("x", tmp_path).read_bytes() == b"2222"


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(UserError, match=r"^~nobody-here/a: there is no such user"):
        Folder.at("~nobody-here/a")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://", r"^s3://: expected a bucket, as in s3://BUCKET/FOLDER$"),
        ("s3:///", "expected a bucket"),
        ("nowhere://a/b", "^nowhere://a/b: Protocol not known: nowhere"),
    ],
)
def test_a_url_that_names_no_place_is_refused(uri: str, message: str) -> None:
    for read in (lambda: Folder.at(uri).subfolders(), lambda: find_files(uri)):
        with pytest.raises(UserError, match=message):
            read()


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "1m") as place:
        folder = Folder.at(place)
        with pytest.raises(UserError, match="no room left"):
            folder.write_bytes("big", b"x" * (4 << 20))
        assert list(place.iterdir()) == []


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    code = (
        "import os, sys; from rungwise.core.storage.folder import Folder\n"
        "with Folder.at(sys.argv[1]).staged('a/model.bin') as path:\n"
        "    path.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, folder.uri], check=False)
    for name in ("a/.state", "a/b.tmp"):
        folder.write_bytes(name, b"")
    assert len(folder.names()) == 3
    folder.remove_unfinished()
    assert folder.names() == ["a/.state", "a/b.tmp"]


def test_files_are_named_relative_to_their_source(tmp_path: Path) -> None:
    for name in ("a/1.txt", "a/.hidden", "b/2.txt", "b/3.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [f.name for f in find_files(str(tmp_path))] == ["a/1.txt", "b/2.txt", "b/3.md"]
    assert [f.name for f in find_files(f"{tmp_path}/*/*.txt")] == ["a/1.txt", "b/2.txt"]
    assert [f.name for f in find_files(f"{tmp_path}/a/1.txt")] == ["1.txt"]
    assert find_files(f"{tmp_path}/none*") == []


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    """Caches of downloads, such as Hugging Face's, are folders of links."""
    (tmp_path / "blob").write_text("four")
    folder = tmp_path / "snapshot"
    (folder / "empty").mkdir(parents=True)
    for name, target in {"a.txt": "blob", "b.txt": "gone", "c": "snapshot/empty"}.items():
        (folder / name).symlink_to(tmp_path / target)
    for pattern in (folder, f"{folder}/*"):
        assert [(f.name, f.size_bytes) for f in find_files(str(pattern))] == [("a.txt", 4)]
