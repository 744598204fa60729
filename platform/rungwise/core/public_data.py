"""Public data that recipes name: the list of sets (public_sets.yaml), and their download, which is
checked and put in place whole."""

import fnmatch
import functools
import gzip
import html
import json
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

import yaml
from pydantic import Field

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import DataError, UserError, explain_store_errors
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.storage.hub import fetch

_FILE = "public_sets.yaml"
FOLDER = "data"  # where recipes look for public data, below the working folder


class Download(Config):
    """A file of another server, and what it must be."""

    url: str
    bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class PublicFile(Config):
    """A file below `data/`: a copy of its only part, or what `rule` makes of its parts."""

    parts: tuple[Download, ...] = Field(min_length=1)
    rule: str | None = None  # of RULES, or `member`
    member: str = ""  # of the archive, for the rule `member`


class PublicSet(Config):
    """A data set; `files` are by path below `data/`."""

    title: str
    licence: str
    consent: bool
    note: str = ""
    files: dict[str, PublicFile]

    @property
    def downloads(self) -> dict[str, Download]:
        """The different downloads by address."""
        return {part.url: part for file in self.files.values() for part in file.parts}

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.downloads.values())


@functools.cache
def public_sets() -> dict[str, PublicSet]:
    """Return the sets by name."""
    entries = yaml.safe_load((resources.files("rungwise.core") / _FILE).read_text("utf-8"))
    return {
        name: validate(PublicSet, _with_parts(entry), f"{_FILE}: {name}")
        for name, entry in entries.items()
    }


def _with_parts(entry: dict[str, Any]) -> dict[str, Any]:
    """Give each file of an entry its parts, and each part its whole address."""
    base, files = entry.pop("base"), {}
    for path, file in entry["files"].items():
        member = file.get("member", "")
        parts = [
            {"url": urljoin(base, each["from"]), "bytes": each["bytes"], "sha256": each["sha256"]}
            for each in file.get("parts", [file])
        ]
        rule = file.get("rule") or ("member" if member else None)
        files[path] = {"parts": parts, "rule": rule, "member": member}
    return entry | {"files": files}


def find_sets(pattern: str) -> list[str]:
    """Return the names of the sets with a file that a path, folder, glob or member of an archive
    below `data/` names."""
    path = os.path.normpath(pattern)
    if not path.startswith(f"{FOLDER}{os.sep}"):
        return []
    inside = path.removeprefix(f"{FOLDER}{os.sep}")
    sets = public_sets().items()
    return [name for name, public in sets if any(_names(inside, file) for file in public.files)]


def _names(pattern: str, file: str) -> bool:
    """Whether `pattern` is the file, a folder above it, a glob of it, or inside of the archive."""
    beside = file.startswith(f"{pattern}/") or pattern.startswith(f"{file}/")
    return beside or fnmatch.fnmatchcase(file, pattern)


def how_to_get(pattern: str) -> str:
    """Return the advice for a pattern that matches no file, to end a message with; "" if the list
    has no such file."""
    names = find_sets(pattern)
    return f"; get it with: rungwise data get {' '.join(names)}" if names else ""


_REUTERS_BODY = re.compile(r"<BODY>(.*?)</BODY>", re.DOTALL)
_IMDB_REVIEW = re.compile(r"[^/]+/((?:train|test)/(neg|pos|unsup)/(\d+)_(\d+))\.txt")


def brown(parts: Sequence[Path]) -> Iterator[str]:
    """Sentences of `word/tag` without tags, one a line; a blank line between documents."""
    with zipfile.ZipFile(parts[0]) as archive:
        names = sorted(n for n in archive.namelist() if re.fullmatch(r"brown/c[a-r]\d\d", n))
        for number, name in enumerate(names):
            yield "\n" if number else ""
            for line in archive.read(name).decode().splitlines():
                if words := line.split():
                    yield " ".join(word.rpartition("/")[0] for word in words) + "\n"


def reuters(parts: Sequence[Path]) -> Iterator[str]:
    """Bodies of news, a paragraph (indented by four blanks) a line, a blank line between two; each
    text once, without the agency's name as its last paragraph."""
    texts: dict[str, None] = {}
    for part in parts:
        for body in _REUTERS_BODY.findall(part.read_text("latin-1")):
            plain = html.unescape(re.sub(r"&#\d+;", "", body))
            paragraphs = [" ".join(each.split()) for each in re.split(r"\n(?= {4})", plain)]
            paragraphs = [each for each in paragraphs if each]
            if paragraphs and paragraphs[-1].upper() == "REUTER":
                paragraphs.pop()
            if paragraphs:
                texts["\n".join(paragraphs) + "\n"] = None
    yield "\n".join(texts)


def abstracts(parts: Sequence[Path]) -> Iterator[str]:
    """The abstracts of CSL and CSLDCP (JSON Lines), one a line, each once."""
    texts: dict[str, None] = {}
    for part in parts:
        for line in part.read_text("utf-8").split("\n"):
            if line.strip():
                record = json.loads(line)
                text = record["abst"] if "abst" in record else record["content"]
                texts[text.strip()] = None
    yield from (f"{text}\n" for text in texts)


def msra(parts: Sequence[Path]) -> Iterator[str]:
    """The sentences of the published file, without those of the test file, which it also holds."""

    def sentences(text: str) -> list[str]:
        return [each for each in re.split(r"\n\s*\n", text.strip("\n")) if each.strip()]

    def characters(sentence: str) -> str:
        return "".join(line.split("\t")[0] for line in sentence.split("\n"))

    with zipfile.ZipFile(parts[0]) as archive:
        published = archive.read("dh_msra.txt").decode()
    tested = {characters(each) for each in sentences(parts[1].read_text("utf-8"))}
    for sentence in sentences(published):
        if characters(sentence) not in tested:
            yield sentence.rstrip("\n") + "\n\n"


def imdb(parts: Sequence[Path], split: str) -> Iterator[str]:
    """Reviews as JSON Lines, in the order of sentiment and number: `id`, `label` and `rating` if
    there are any, `text`."""
    reviews: list[tuple[str, int, dict[str, str | int]]] = []
    with tarfile.open(parts[0]) as archive:
        for entry in archive:
            name = _IMDB_REVIEW.fullmatch(entry.name)
            if name is None or split != ("unsup" if name[2] == "unsup" else name[1].split("/")[0]):
                continue
            opened = archive.extractfile(entry)
            assert opened is not None, "a review is a file"
            labels = {} if split == "unsup" else {"label": name[2], "rating": int(name[4])}
            record = {"id": name[1], **labels, "text": opened.read().decode()}
            reviews.append((name[2], int(name[3]), record))
    for _, _, record in sorted(reviews, key=lambda review: review[:2]):
        yield json.dumps(record, ensure_ascii=False) + "\n"


RULES: dict[str, Callable[[Sequence[Path]], Iterator[str]]] = {
    "abstracts": abstracts,
    "brown": brown,
    "imdb_test": partial(imdb, split="test"),
    "imdb_train": partial(imdb, split="train"),
    "imdb_unsup": partial(imdb, split="unsup"),
    "msra": msra,
    "reuters": reuters,
}


Say = Callable[[str], None]


def missing_files(public: PublicSet, folder: Path) -> list[str]:
    """Return the paths of the set's files that are not there yet. A file that is there is whole."""
    return [name for name in public.files if not (folder / name).exists()]


def fetch_set(public: PublicSet, folder: Path, mirror: str, say: Say) -> None:
    """Put the missing files of a set below `folder`. `mirror`, unless empty, takes the place of
    https:// in addresses. Raises UserError if the network or the disk fails, DataError if a
    download is not what the list says."""
    arrived: dict[str, Path] = {}
    with explain_store_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".downloads-", dir=folder) as scratch:
            for name in missing_files(public, folder):
                file = public.files[name]
                for part in file.parts:
                    if part.url not in arrived:
                        arrived[part.url] = download(part, Path(scratch), mirror, say)
                with Folder(str(folder)).staged(name) as path, path.open("wb") as target:
                    _write(file, [arrived[part.url] for part in file.parts], name, target)
                say(f"wrote {folder / name}")


def download(part: Download, folder: Path, mirror: str, say: Say) -> Path:
    """Return the checked download, in a folder. Raises as `fetch_set`."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

    url = mirror.rstrip("/") + "/" + part.url.partition("://")[2] if mirror else part.url
    path = folder / part.sha256
    say(f"downloading {url}")
    try:
        with path.open("wb") as target:
            fetch(url, lambda: http_get(url, target), part.bytes)
    except (HfHubHTTPError, httpx2.RequestError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        fault = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, HfHubHTTPError):
            fault = f"the server answers {error.response.status_code}"
        raise UserError(
            f"{url} cannot be fetched ({fault}); try again; --mirror names a server with a copy"
        ) from error
    size, digest = path.stat().st_size, file_digest(path)
    if (size, digest) != (part.bytes, part.sha256):
        expected = f"{part.bytes:,} bytes with the SHA-256 {part.sha256}"
        change = "nothing was kept; try again, and if it stays so, somebody changed the file"
        raise DataError.at(part.url, expected, f"{size:,} with {digest}", change)
    return path


def _write(file: PublicFile, parts: list[Path], name: str, target: BinaryIO) -> None:
    """Write a file from its downloads; compressed, with the same bytes each time, if only the name
    of the file says so."""
    packs = name.endswith(".gz") and (file.rule or not file.parts[0].url.endswith(".gz"))
    stream = gzip.GzipFile("", "wb", 9, target, mtime=0) if packs else target
    try:
        if file.rule is None:
            with parts[0].open("rb") as source:
                shutil.copyfileobj(source, stream)
        elif file.rule == "member":
            with zipfile.ZipFile(parts[0]) as archive, archive.open(file.member) as source:
                shutil.copyfileobj(source, stream)
        else:
            for text in RULES[file.rule](parts):
                stream.write(text.encode())
    finally:
        if packs:
            stream.close()
