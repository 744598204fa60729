"""How files that recipes read are made of what is published: of archives, marks and tags.

A rule takes the paths of the downloads and yields text in pieces. The same downloads give the same
bytes.
"""

import html
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rungwise.core.public.sets import Rule

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


RULES: dict[Rule, Callable[[Sequence[Path]], Iterator[str]]] = {
    "abstracts": abstracts,
    "brown": brown,
    "imdb_test": partial(imdb, split="test"),
    "imdb_train": partial(imdb, split="train"),
    "imdb_unsup": partial(imdb, split="unsup"),
    "msra": msra,
    "reuters": reuters,
}
