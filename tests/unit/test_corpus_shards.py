"""Rows and shards: what is kept, dropped and held out depends on the texts alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage import Folder
from rungwise.corpus import Document, build, read_documents, shards
from rungwise.corpus.document import RawDocument, digest_of


def rows(drafts: list[RawDocument], minimum_characters: int = 1) -> pa.Table:
    return pa.concat_tables(build.tables(drafts, minimum_characters))


def drafts(count: int) -> list[RawDocument]:
    return [
        RawDocument(
            f"id{number}", f"label{number % 3}", [f"Text {number} is here. It ends.", "Second."]
        )
        for number in range(count)
    ]


def write(table: pa.Table, folder: Path, **changes: Any) -> dict[str, Any]:
    keys = {"deduplicate": True, "held_out_fraction": 0.25, "seed": 0} | changes
    return shards.write_shard(table, 7, Folder.at(folder), **keys)


def test_a_row_has_sentences_paragraphs_and_counts() -> None:
    (row,) = rows(
        [RawDocument("a", "b", ["One\x00 here. Two\u00a0here.", " \n ", "Caf\u00e9."])]
    ).to_pylist()
    assert row["sentences"] == ["One here.", "Two here.", "Caf\u00e9."]
    assert row["paragraph_starts"] == [0, 2]
    assert row["digest"] == digest_of(row["sentences"])
    assert (row["bytes"], row["removed"]) == (len(b"One here. Two here. Caf__."), 1)
    assert row["reason"] == ""


def test_sentences_given_are_left_alone() -> None:
    (row,) = rows([RawDocument("a", "b", ["No. 1 . No\n 2 ? Yes"], segmented=True)]).to_pylist()
    assert row["sentences"] == ["No. 1 . No", "2 ? Yes"]


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (RawDocument("a", "", ["Just ten."]), "too short"),
        (RawDocument("a", "", ["Just ten!!"]), ""),
        (RawDocument("a", "", [" \u200b "]), "no text"),
        (RawDocument("a", "", [], reason="empty file"), "empty file"),
    ],
)
def test_why_a_document_is_dropped(draft: RawDocument, reason: str) -> None:
    (row,) = rows([draft], minimum_characters=10).to_pylist()
    assert row["reason"] == reason
    assert bool(row["sentences"]) == (reason == "")


def test_ids_that_utf8_cannot_hold_are_cleaned() -> None:
    (row,) = rows([RawDocument("a\ud800b", "c\udcff", ["Some words."])]).to_pylist()
    assert (row["id"], row["label"]) == ("ab", "c")


def test_many_rows_make_many_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_TABLE_BYTES", 1000)
    tables = list(build.tables(drafts(50), 1))
    assert len(tables) > 5
    assert pa.concat_tables(tables)["id"].to_pylist() == [f"id{number}" for number in range(50)]


def test_files_read_back_as_documents(tmp_path: Path) -> None:
    report = write(rows(drafts(200)), tmp_path)
    assert [file["file"] for file in report["files"]] == [
        "train-00007.parquet",
        "validation-00007.parquet",
    ]
    folder = Folder.at(tmp_path)
    documents = [doc for name in folder.names() for doc in read_documents(folder, name)]
    assert sorted(doc.id for doc in documents) == sorted(f"id{number}" for number in range(200))
    one = next(doc for doc in documents if doc.id == "id5")
    assert one == Document("id5", "label2", ("Text 5 is here.", "It ends.", "Second."), (0, 2))
    assert list(one.paragraphs()) == [("Text 5 is here.", "It ends."), ("Second.",)]
    for file in report["files"]:
        texts = [" ".join(doc.sentences) for doc in read_documents(folder, file["file"])]
        assert file["documents"] == len(texts)
        assert file["sentences"] == 3 * len(texts)
        assert file["words"] == sum(len(text.split()) for text in texts)
        assert file["characters"] == sum(map(len, texts)) == file["bytes"]
    assert report["labels"] == {"label0": 67, "label1": 67, "label2": 66}


def test_a_file_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-00000.parquet").write_bytes(b"not Parquet")
    with pytest.raises(DataError, match=r"train-00000\.parquet as a corpus file"):
        next(read_documents(Folder.at(tmp_path), "train-00000.parquet"))


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    ordered = [*drafts(100), RawDocument("a duplicate", "z", drafts(1)[0].paragraphs)]
    shuffled = random.Random(3).sample(ordered, len(ordered))
    reports = [
        write(rows(some), tmp_path / name) for name, some in (("a", ordered), ("b", shuffled))
    ]
    assert reports[0] == reports[1]
    for file in reports[0]["files"]:
        first, second = (Folder.at(tmp_path / name).sha256(file["file"]) for name in "ab")
        assert first == second


def test_duplicates_keep_the_smallest_id(tmp_path: Path) -> None:
    same = ["The same text.", "Twice."]
    table = rows(
        [RawDocument(name, "x", same) for name in "cab"]
        + [RawDocument("d", "x", ["Another text."])]
    )
    # A break between paragraphs is no difference of text.
    table = pa.concat_tables([table, rows([RawDocument("e", "x", [" ".join(same)])])])
    report = write(table, tmp_path / "kept once")
    assert report["dropped"] == {"duplicate": 3}
    samples = report["dropped_samples"]["duplicate"]
    assert [one["id"] for one in samples] == ["b", "c", "e"]
    assert {one["text"] for one in samples} == {"The same text. Twice."}
    folder = Folder.at(tmp_path / "kept once")
    kept = {doc.id for name in folder.names() for doc in read_documents(folder, name)}
    assert kept == {"a", "d"}
    everything = write(table, tmp_path / "all", deduplicate=False)
    assert sum(file["documents"] for file in everything["files"]) == 5


def test_a_copy_travels_without_its_text_and_changes_nothing(tmp_path: Path) -> None:
    # The smallest id comes last, and its paragraphs are its own.
    same = [RawDocument(f"c{n}", "x", ["The same text.", "Twice."]) for n in range(1000)]
    same.append(RawDocument("a", "x", ["The same text. Twice."]))
    light, heavy = rows(same), pa.concat_tables(rows([draft]) for draft in same)
    assert sum(len(sentences) for sentences in light["sentences"].to_pylist()) == 2
    assert sum(light["bytes"].to_pylist()) == sum(heavy["bytes"].to_pylist())
    reports = [
        write(table, tmp_path / name) for name, table in (("light", light), ("heavy", heavy))
    ]
    assert reports[0] == reports[1]
    (file,) = reports[0]["files"]
    assert file["documents"] == 1
    first, second = (Folder.at(tmp_path / name).sha256(file["file"]) for name in ("light", "heavy"))
    assert first == second
    (document,) = read_documents(Folder.at(tmp_path / "light"), file["file"])
    assert document == Document("a", "x", ("The same text.", "Twice."), (0,))


def test_ids_that_repeat_leave_the_order_of_rows_without_effect(tmp_path: Path) -> None:
    several = [
        RawDocument("a", "x", ["One two.", "Three."]),
        RawDocument("a", "x", ["One two. Three."]),
        RawDocument("a", "x", ["Another one."]),
        RawDocument("a", "x", ["Yes."]),
        RawDocument("a", "x", ["No!"]),
    ]
    found = []
    for number, order in enumerate((several, several[::-1])):
        table = pa.concat_tables(rows([draft], 5) for draft in order)
        report = write(table, tmp_path / str(number))
        files = [Folder.at(tmp_path / str(number)).sha256(row["file"]) for row in report["files"]]
        found.append((report, files))
    assert found[0] == found[1]


def test_marked_documents_are_dropped_with_their_copies(tmp_path: Path) -> None:
    table = rows(
        [RawDocument("a", "x", ["One text."]), *drafts(1), RawDocument("b", "x", ["One text."])]
    )
    digest = table["digest"][0].as_py()
    marks = pa.concat_tables(build.mark_table({digest: other}) for other in ("f" * 32, "0" * 32))
    report = write(pa.concat_tables([marks, table]), tmp_path)
    assert report["dropped"] == {"near-duplicate": 1, "duplicate": 1}
    assert report["dropped_samples"]["near-duplicate"] == [{"id": "a", "text": "One text."}]
    assert [file["documents"] for file in report["files"]] == [1]


def test_files_that_cannot_be_read_are_listed_in_order(tmp_path: Path) -> None:
    several = [
        RawDocument(f"{n}.gz", "x", [], reason="unsound .gz", unreadable=json.dumps(told))
        for n in range(30)
        if (told := {"file": f"/in/{n:02}.gz", "reason": "an unsound .gz"})
    ]
    total = shards.merged(
        [write(rows(several[start::3]), tmp_path / str(start)) for start in range(3)]
    )
    assert total["unreadable_files"] == 30
    assert [one["file"] for one in total["unreadable"]] == [f"/in/{n:02}.gz" for n in range(20)]


def test_spans_are_stored_with_their_sentences(tmp_path: Path) -> None:
    text = "A  big dog ran. It saw a cat.\nAll."
    spans = [(3, 10), (25, 28), (0, 99)]
    table = rows([RawDocument("a", "x", text.split("\n"), text=text, spans=spans), *drafts(1)])
    report = write(table, tmp_path, held_out_fraction=1e-9)
    assert (report["files"][0]["spans"], report["spans_dropped"]) == (2, 1)
    documents = {d.id: d for d in read_documents(Folder.at(tmp_path), "train-00007.parquet")}
    assert documents["a"].spans == ((2, 9), (9, 12), ())
    assert documents["id0"].spans == ()
    plain = rows([RawDocument("a", "x", text.split("\n"))])
    assert plain["digest"][0] == table["digest"][0]


def test_split_is_of_the_asked_size_and_independent_of_the_rest() -> None:
    digests = [digest_of([str(number)]) for number in range(20_000)]
    for fraction in (0.05, 0.3):
        held_out = sum(shards.is_held_out(digest, fraction, 0) for digest in digests)
        # Five standard deviations of a binomial.
        margin = 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
        assert abs(held_out - 20_000 * fraction) < margin
    smaller = {digest for digest in digests if shards.is_held_out(digest, 0.05, 0)}
    assert smaller <= {digest for digest in digests if shards.is_held_out(digest, 0.3, 0)}
    assert smaller != {digest for digest in digests if shards.is_held_out(digest, 0.05, 1)}
    counts = [0] * 8
    for digest in smaller:
        counts[shards.shard_of(digest, 8)] += 1
    assert min(counts) > 0.6 * len(smaller) / 8


def test_reports_add_up(tmp_path: Path) -> None:
    drafts_of = {
        name: [RawDocument(f"{name}{n}", name, ["x" * n]) for n in range(9)] for name in "ab"
    }
    reports = [write(rows(some, 5), tmp_path / name) for name, some in drafts_of.items()]
    total = shards.merged(reports)
    assert total["dropped"] == {"no text": 2, "too short": 8}
    assert total["dropped_samples"] == {
        "no text": [{"id": name, "text": ""} for name in ("a0", "b0")],
        "too short": [{"id": f"a{n}", "text": "x" * n} for n in (1, 2, 3)],
    }
    assert total["labels"] == {"a": 4, "b": 4}


@pytest.mark.parametrize("error", [ConfigError("a key"), DataError("a file")])
def test_errors_pass_between_processes_unchanged(error: Exception) -> None:
    text = build.failure(error)["error"][0].as_py()
    with pytest.raises(type(error)) as caught:
        build.raise_failure(text)
    assert str(caught.value) == str(error)
