"""Ranges and their files: what is kept, dropped and held out, and in which order."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import range_builder as build
from rungwise.corpus.building.range_builder import RangeBuilder
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning import duplicates
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import (
    Document,
    DocumentDamage,
    RawDocument,
    read_documents,
    text_digest,
)
from rungwise.corpus.summary import CorpusSummary, RangeReport


def rules_of(**rules: Any) -> DocumentRules:
    return validate(DocumentRules, {"minimum_characters": 1} | rules)


def built(drafts: list[RawDocument], **rules: Any) -> tuple[list[dict[str, Any]], RangeReport]:
    """The rows that are kept, and the report."""
    builder = RangeBuilder(rules_of(**rules), "x")
    rows = [row for table in builder.tables(drafts) for row in table.to_pylist()]
    return rows, builder.report


def drafts(count: int) -> list[RawDocument]:
    return [
        RawDocument(
            f"id{number}", f"label{number % 3}", [f"Text {number} is here. It ends.", "Second."]
        )
        for number in range(count)
    ]


def damage(file: str, num_bytes: int, reason: str) -> DocumentDamage:
    return DocumentDamage(
        file=file, place="", bytes=num_bytes, reason=reason, detail="cut", key="k"
    )


def write(ranges: list[list[RawDocument]], folder: Path, **rules: Any) -> CorpusSummary:
    chosen = rules_of(**{"held_out_fraction": 0.25} | rules)
    return write_corpus(ranges, chosen, "x", Folder.at(folder))


def documents_in(folder: Path, files: list[str] | None = None) -> list[Document]:
    place = Folder.at(folder)
    return [doc for name in files or place.names() for doc in read_documents(place, name)]


def test_a_row_has_sentences_paragraphs_and_counts() -> None:
    rows, report = built(
        [
            RawDocument("a", "b", ["One\x00 here. Two\u00a0here.", " \n ", "Café."]),
            RawDocument("c", "b", ["Three\x01\x02."]),
        ]
    )
    row = rows[0]
    assert row["sentences"] == ["One here.", "Two here.", "Café."]
    assert row["paragraph_starts"] == [0, 2]
    assert row["digest"] == text_digest(row["sentences"])
    assert row["bytes"] == len(b"One here. Two here. Caf__.")
    assert rows[1]["sentences"] == ["Three."]
    assert report.characters_removed == 3


def test_what_a_source_fixed_stays_and_what_utf8_cannot_hold_goes() -> None:
    ((row,), _) = built([RawDocument("a", "b", ["No. 1 . No\n 2 ? Yes", "3."], segmented=True)])
    assert row["sentences"] == ["No. 1 . No", "2 ? Yes", "3."]
    assert row["paragraph_starts"] == [0, 2]
    ((row,), _) = built([RawDocument("a\ud800b", "c\udcff", ["Some words."])])
    assert (row["id"], row["label"]) == ("ab", "c")


@pytest.mark.parametrize(
    ("draft", "reason", "sample"),
    [
        (RawDocument("a", "", ["Just ten."]), "too short", "Just ten."),
        # A character of Chinese is a word or half of one.
        (RawDocument("a", "", ["你"]), "too short", "你"),
        (RawDocument("a", "", [" \u200b "]), "no text", ""),
        (RawDocument("a", "", [], damage=damage("a", 0, "empty file")), "empty file", ""),
    ],
)
def test_why_a_document_is_dropped(draft: RawDocument, reason: str, sample: str) -> None:
    rows, report = built([draft], minimum_characters=10)
    assert rows == []
    assert report.dropped == {reason: 1}
    assert report.samples == {reason: [{"id": "a", "text": sample}]}
    for text in ("Just ten!!", "你好", "ねこ"):
        assert len(built([RawDocument("a", "", [text])], minimum_characters=10)[0]) == 1


PARAGRAPHS = st.lists(
    st.text(st.sampled_from("aB.\n \t\u00a0\u00e9\x00\x01\x02\u3002")), max_size=4
)


@given(st.lists(st.tuples(PARAGRAPHS, st.booleans()), max_size=5))
def test_a_document_is_the_same_among_others(several: list[tuple[list[str], bool]]) -> None:
    raw = [RawDocument(str(at), "l", some, flag) for at, (some, flag) in enumerate(several)]
    alone = [row for draft in raw for row in built([draft])[0]]
    assert built(raw)[0] == alone


def test_many_rows_make_many_tables_of_one_content(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = built(drafts(50))
    monkeypatch.setattr(build, "_TABLE_BYTES", 1000)
    monkeypatch.setattr(build, "_CHARACTERS_AT_ONCE", 100)
    builder = RangeBuilder(DocumentRules(minimum_characters=1), "x")
    assert len(list(builder.tables(drafts(50)))) > 1
    assert builder.keys.num_rows == 50
    assert built(drafts(50)) == whole


def test_files_read_back_as_documents_in_order(tmp_path: Path) -> None:
    summary = write([drafts(200)], tmp_path)
    assert [file.file for file in summary.files] == [
        "train-00000.parquet",
        "validation-00000.parquet",
    ]
    folder = Folder.at(tmp_path)
    documents = documents_in(tmp_path)
    assert sorted(doc.id for doc in documents) == sorted(f"id{number}" for number in range(200))
    one = next(doc for doc in documents if doc.id == "id5")
    assert one == Document("id5", "label2", ("Text 5 is here.", "It ends.", "Second."), (0, 2))
    assert list(one.paragraphs()) == [("Text 5 is here.", "It ends."), ("Second.",)]
    for file in summary.files:
        several = list(read_documents(folder, file.file))
        numbers = [int(doc.id[2:]) for doc in several]
        assert numbers == sorted(numbers)
        texts = [" ".join(doc.sentences) for doc in several]
        assert file.documents == len(texts)
        assert file.sentences == 3 * len(texts)
        assert file.words == sum(len(text.split()) for text in texts)
        assert file.characters == sum(map(len, texts)) == file.bytes
        assert summary.sha256[file.file] == folder.sha256(file.file)
    assert summary.labels == {"label0": 67, "label1": 67, "label2": 66}


def test_a_file_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-00000.parquet").write_bytes(b"not Parquet")
    with pytest.raises(DataError, match=r"train-00000\.parquet as a corpus file"):
        next(read_documents(Folder.at(tmp_path), "train-00000.parquet"))


def test_a_range_of_much_text_has_several_files(tmp_path: Path) -> None:
    some = [*drafts(100), RawDocument("long", "x", ["Long. " * 400]), *drafts(103)[100:]]
    rules = {"shard_megabytes": 0.001, "held_out_fraction": 0.01}
    summary = write([some, drafts(106)[103:]], tmp_path, **rules)
    train = [file for file in summary.files if file.split == "train"]
    assert [file.file for file in train[:2]] == ["train-00000-00.parquet", "train-00000-01.parquet"]
    assert train[-1].file == "train-00001.parquet"
    assert all(file.bytes <= 1000 or file.documents == 1 for file in summary.files)
    assert max(file.bytes for file in summary.files) == 2399
    ids = [doc.id for doc in documents_in(tmp_path, [file.file for file in train])]
    kept = set(ids)
    assert ids == [raw.id for raw in (*some, *drafts(106)[103:]) if raw.id in kept]
    assert sum(file.documents for file in summary.files) == 107


def test_duplicates_keep_the_first_by_range_and_place(tmp_path: Path) -> None:
    same = ["The same text.", "Twice."]
    other = RawDocument("d", "x", ["Another text."])
    # A break between paragraphs is no difference of text.
    ranges = [
        [other, *(RawDocument(name, "x", same) for name in "cab")],
        [RawDocument("e", "x", [" ".join(same)]), *drafts(3)],
    ]
    summary = write(ranges, tmp_path / "kept once")
    assert summary.dropped == {"duplicate": 3}
    samples = summary.dropped_samples["duplicate"]
    assert [one["id"] for one in samples] == ["a", "b", "e"]
    assert {one["text"] for one in samples} == {"The same text. Twice."}
    kept = {doc.id: doc for doc in documents_in(tmp_path / "kept once")}
    assert set(kept) == {"c", "d", "id0", "id1", "id2"}
    assert kept["c"].paragraph_starts == (0, 1)
    assert write(ranges, tmp_path / "all", deduplicate=False).documents.total == 8


def test_a_doubled_id_is_an_error_unless_its_documents_are_copies(tmp_path: Path) -> None:
    one, again = RawDocument("a", "x", ["One."]), RawDocument("a", "x", ["Two."])
    assert write([[one, *drafts(3)], [one]], tmp_path / "copy").dropped == {"duplicate": 1}
    with pytest.raises(DataError, match="two documents of x have the id 'a'"):
        write([[one, *drafts(3)], [again]], tmp_path / "two")
    with pytest.raises(DataError, match="two documents of x have the id 'a'"):
        write([[one, *drafts(3)], [one]], tmp_path / "kept", deduplicate=False)


def test_a_smaller_share_is_a_part_of_a_larger_one() -> None:
    everything = [*drafts(2000), RawDocument("broken", "x", (), damage=damage("f", 9, "cut off"))]
    names: dict[float, list[str]] = {}
    for share in (0.01, 0.3, 0.31, 1.0):
        builder = RangeBuilder(rules_of(), "x", share=share)
        names[share] = [
            row["id"] for table in builder.tables(everything) for row in table.to_pylist()
        ]
        missing = builder.report.dropped
        assert missing["not drawn (share)"] == 2000 - len(names[share])
        assert missing["cut off"] == 1  # what cannot be read is never out of sight
        assert abs(len(names[share]) - 2000 * share) <= 5 * (2000 * share * (1 - share)) ** 0.5
    assert {*names[0.01]} < {*names[0.3]} < {*names[0.31]} < {*names[1.0]}
    other = RangeBuilder(rules_of(), "y", share=0.3)
    ids = [row["id"] for table in other.tables(everything) for row in table.to_pylist()]
    assert 0.2 < len({*ids} & {*names[0.3]}) / len(ids) < 0.4  # another source, another draw


@pytest.mark.parametrize("num_partitions", [1, 5])
@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_verdict_is_that_of_a_plain_loop(num_partitions: int, deduplicate: bool) -> None:
    rng = random.Random(num_partitions)
    texts = [[str(rng.randrange(60)) for _ in range(rng.randrange(20))] for _ in range(8)]
    keys = []
    for number, some in enumerate(texts):
        builder = RangeBuilder(DocumentRules(minimum_characters=1), "x")
        list(builder.tables(RawDocument(f"{number}-{at}", "", [t]) for at, t in enumerate(some)))
        keys.append(builder.keys)
    marks = {bytes.fromhex(text_digest([str(number)])) for number in range(0, 60, 7)}
    rows = pa.concat_tables(
        [
            *(duplicates.key_rows(each, at, num_partitions) for at, each in enumerate(keys)),
            duplicates.mark_rows(marks, num_partitions),
        ]
    )
    lost, documents, size, held_out = [], 0, 0, 0
    for part in range(num_partitions):
        of_part = rows.filter(pa.array(rows["partition"].to_numpy() == part))
        verdict = duplicates.decide(
            of_part.take(rng.sample(range(len(of_part)), len(of_part))), deduplicate, 1 << 62
        )
        assert verdict.same_name == []
        lost += verdict.duplicates.tolist()
        documents += verdict.documents
        size += verdict.bytes
        held_out += verdict.held_out_bytes
    expected, seen = [], set()
    for number, some in enumerate(texts):
        for row, text in enumerate(some):
            if deduplicate and text in seen:
                expected.append([number, row, 0])
            elif int(text) % 7 == 0:
                expected.append([number, row, 1])
            seen.add(text)
    assert sorted(lost) == expected
    dropped = {(number, row) for number, row, _ in expected}
    sizes = {
        (number, row): len(text)
        for number, some in enumerate(texts)
        for row, text in enumerate(some)
        if (number, row) not in dropped
    }
    assert (documents, size) == (len(sizes), sum(sizes.values()))
    assert held_out == sum(
        sizes[number, row] * (key <= 1 << 62)
        for number, each in enumerate(keys)
        for row, key in enumerate(each["split"].to_pylist())
        if (number, row) not in dropped
    )


def test_near_duplicates_are_dropped_with_their_copies(tmp_path: Path) -> None:
    text = " ".join(f"Word {number} of a text." for number in range(60))
    pair = [RawDocument("a", "x", [text]), RawDocument("b", "x", [text + " End."])]
    copies = [RawDocument(f"copy of {one.id}", "x", one.paragraphs) for one in pair]
    summary = write([pair, [*copies, *drafts(3)]], tmp_path, near_duplicates=True)
    assert summary.dropped == {"near-duplicate": 1, "duplicate": 2}
    kept = {doc.id.partition("#")[0] for doc in documents_in(tmp_path)}  # long ones are cut
    assert kept == {"a", "id0", "id1", "id2"}


def test_damage_is_counted_and_the_first_is_listed() -> None:
    several = [
        RawDocument(f"{n}.gz", "x", [], damage=damage(f"{n}.gz", 5, "unsound")) for n in range(30)
    ]
    _, report = built(several)
    assert (report.skipped_parts, report.skipped_bytes) == (30, 150)
    assert [one.file for one in report.skipped] == [f"{n}.gz" for n in range(20)]


def test_reports_add_up(tmp_path: Path) -> None:
    ranges = [[RawDocument(f"{name}{n}", name, [name * n]) for n in range(9)] for name in "ab"]
    total = write(ranges, tmp_path, minimum_characters=5)
    assert total.dropped == {"no text": 2, "too short": 8}
    assert total.dropped_samples == {
        "no text": [{"id": "a0", "text": ""}, {"id": "b0", "text": ""}],
        "too short": [{"id": f"a{n}", "text": "a" * n} for n in (1, 2, 3)],
    }
    assert total.labels == {"a": 4, "b": 4}
