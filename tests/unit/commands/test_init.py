"""`rungwise init`: what it sees in files of many kinds, and recipes that can be planned at once."""

import functools
import gzip
import json
import lzma
import os
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tokenizers import Tokenizer

from rungwise.commands.init import flow
from rungwise.core.configuration.config import union_members, validate
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_builder import read_range
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning.text import guess_language
from rungwise.corpus.config import (
    CorpusConfig,
    DocumentRules,
    FileSource,
    list_ranges,
    list_source_files,
)
from rungwise.corpus.description import FileGroup, describe_files
from rungwise.corpus.summary import format_amount
from rungwise.models.config import ModelConfig
from rungwise.pipeline.ladder import grow_past_gaps, ladder_stages
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_stages
from rungwise.pipeline.workflow import load_recipe, make_stages
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.data.files import load
from rungwise.tokenizer import TokenizerFileConfig
from rungwise.tokenizer.building import train
from tests.conftest import Cli

WORDS = [
    *("the", "sea", "of", "and", "ship", "to", "wind", "in", "sailor"),
    *("that", "harbour", "is", "storm", "a", "lantern", "it", "with", "old"),
]
KINDS = [each.model_fields["kind"].default for each in union_members(ModelConfig)]
CHINESE = "\u5b9d\u7389\u9053\uff1a\u4f60\u6765\u4e86\u3002\u4f17\u4eba\u90fd\u7b11\u4e86\u3002"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prose(seed: int, sentences: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choices(WORDS, k=rng.randint(6, 14))).capitalize() + "."
        for _ in range(sentences)
    ]


def chinese(seed: int, sentences: int) -> str:
    rng = random.Random(seed)
    letters = CHINESE.replace("。", "").replace("\uff1a", "")
    return "".join("".join(rng.choices(letters, k=12)) + "。" for _ in range(sentences))


@functools.cache
def wrapped(seed: int, paragraphs: int) -> str:
    """Paragraphs of lines of about seventy characters, with blank lines between them."""
    written = []
    for number in range(paragraphs):
        line, lines = "", []
        for word in " ".join(prose(seed * 1000 + number, 6)).split():
            if len(line) + len(word) > 70:
                lines.append(line)
                line = ""
            line = f"{line} {word}".strip()
        written.append("\n".join([*lines, line]))
    return "\n\n".join(written)


def train_on(recipe: Recipe) -> Tokenizer:
    """The tokenizer that the recipe asks for, of all text; a size that does not fit is an error."""
    config = recipe.corpus
    documents = [each for cut in list_ranges(config) for each in read_range(cut, config)]
    assert not isinstance(recipe.tokenizer, TokenizerFileConfig)
    return train(recipe.tokenizer, [line for each in documents for line in each.paragraphs])


def only(folder: Path) -> FileGroup:
    (seen,), others = describe_files([str(folder)])
    assert not others
    return seen


def books(folder: Path, count: int, paragraphs: int = 400) -> None:
    for number in range(count):
        (folder / f"{number}.txt").write_text(wrapped(number, paragraphs))


@pytest.mark.parametrize(
    ("sentence_break", "document_break", "source"),
    [
        ("\n", "\n\n", {"documents": "blank_line", "lines": "sentence"}),
        (" ", "\n", {"documents": "line", "lines": "paragraph"}),
    ],
)
def test_documents_of_one_packed_file(
    sentence_break: str, document_break: str, source: dict[str, str], tmp_path: Path
) -> None:
    documents = (sentence_break.join(prose(number, 8)) for number in range(100))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(document_break.join(documents).encode()))
    assert only(tmp_path).source == source


@pytest.mark.parametrize("suffix", ["jsonl", "txt", "parquet"])
def test_the_longest_field_of_records_is_the_text(tmp_path: Path, suffix: str) -> None:
    records = [
        {"id": number, "title": f"No. {number}", "body": " ".join(prose(number, 5))}
        for number in range(60)
    ]
    path = tmp_path / f"a.{suffix}"
    table = pa.Table.from_pylist(records)
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    seen = only(tmp_path)
    assert seen.kind == ("parquet" if suffix == "parquet" else "jsonl")
    assert seen.source == {"text_field": "body"}
    assert seen.documents == pytest.approx(60, abs=2)


def test_records_longer_than_a_page_are_seen(tmp_path: Path) -> None:
    text = " ".join(prose(0, 6000))
    assert len(text) > 200_000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    seen = only(tmp_path)
    assert (seen.language, seen.documents) == ("Latin letters", 3)  # its middle is held out


def test_parquet_files_without_rows_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    table = pa.table({"text": [" ".join(prose(number, 5)) for number in range(60)]})
    pq.write_table(table[:0], tmp_path / "0.parquet")
    pq.write_table(table, tmp_path / "1.parquet")
    assert only(tmp_path).documents == 60
    (tmp_path / "2.parquet").write_bytes(b"version https://git-lfs")
    with pytest.raises(DataError, match=r"cannot read .*2\.parquet as Parquet: .*; mend the file"):
        describe_files([str(tmp_path / "2.parquet")])


def test_one_damaged_parquet_file_or_row_hides_no_other(tmp_path: Path) -> None:
    texts = [" ".join(prose(number, 5)) for number in range(60)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 and no more")
    others = [" ".join(prose(100 + number, 5)).encode() for number in range(30)]
    odd = pa.array(others + [b"\xff\xfe"] * 30).view(pa.string())
    pq.write_table(pa.table({"text": odd}), tmp_path / "3.parquet")
    seen = only(tmp_path)
    assert seen.files == 3
    assert seen.documents > 80
    assert "1 part of the sample cannot be read" in seen.notes


def test_one_name_in_two_compressions_is_two_texts(tmp_path: Path) -> None:
    for seed, (suffix, pack) in enumerate({"gz": gzip.compress, "xz": lzma.compress}.items()):
        text = "\n\n".join(" ".join(prose(30 * seed + number, 9)) for number in range(30))
        (tmp_path / f"a.txt.{suffix}").write_bytes(pack(text.encode()))
    assert only(tmp_path).files == 2


def test_mixed_folders_name_what_is_text_and_what_is_not(tmp_path: Path) -> None:
    books(tmp_path, 5, 40)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": " ".join(prose(9, 9))}) + "\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "none.txt").touch()
    (tmp_path / "note.gz").write_bytes(b"not gzip")
    seen, others = describe_files([str(tmp_path)])
    assert [each.kind for each in seen] == ["text", "jsonl"]
    assert [each.files for each in seen] == [5, 1]
    damaged = (
        "1 file of a packed form by their names, and not by their content: fetch or rename them"
    )
    assert {*others} == {"1 binary .png", "1 empty", damaged}
    for each in seen:
        again, _ = describe_files(each.paths)
        assert sum(one.files for one in again) == each.files


@pytest.mark.parametrize("kind", ["text", "jsonl"])
@pytest.mark.parametrize(
    ("encoding", "lines_before"),
    [("latin-1", 0), ("latin-1", 8_000), ("utf-16", 0), ("utf-16-le", 0)],
)
def test_other_encodings_are_said(
    tmp_path: Path, encoding: str, lines_before: int, kind: str
) -> None:
    lines = ["Das Haus ist nicht mit den und der."] * lines_before
    lines.append("Die T\u00fcr ist nicht f\u00fcr den und das zu mit der Stra\u00dfe. " * 40)
    if kind == "jsonl":
        lines = [json.dumps({"text": line}, ensure_ascii=False) for line in lines]
    (tmp_path / "a.txt").write_bytes("\n".join(lines).encode(encoding))
    seen = only(tmp_path)
    assert (seen.kind, seen.source["encoding"], seen.language) == (kind, "detect", "Latin letters")
    assert seen.documents


def test_a_text_with_a_few_control_characters_is_text_and_they_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\0".join(" ".join(prose(n, 6)) for n in range(20)))
    seen = only(tmp_path)
    assert seen.kind == "text"
    assert "without 19 unreadable characters of the sample" in seen.notes


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_no_recipe_is_written_that_cannot_be_planned(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / os.fsdecode(b"caf\xe9.txt")).write_text("\n\n".join(prose(0, 120)))
    assert "is not UTF-8; rename it" in cli("init", "text", status=2)
    assert not [*tmp_path.glob("*.yaml")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "--name: expected letters") for name in (" ", "a b", "a/b", "../a", "_a", "a:b")),
        ("a" * 300, "cannot use a"),
    ],
)
def test_a_recipe_has_a_name_and_a_file_of_it(
    name: str, message: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "a.txt").write_text(" ".join(prose(0, 120)))
    assert message in cli("init", "a.txt", "--name", name, status=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]


def test_a_text_of_two_letters_has_a_recipe(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a.txt").write_text("".join(random.Random(0).choices("01", k=60_000)))
    cli("init", "a.txt")


RECORDS = [{"id": number, "text": " ".join(prose(number, 6))} for number in range(20)]
PAGE = f"<!DOCTYPE html>\n<html><body><p>{' '.join(prose(0, 20))}</p></body></html>\n"
LINES = prose(1, 60)
DIGEST = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
CHAT = {"id": 1, "messages": [{"role": "user", "content": line} for line in LINES[:3]]}
SPOKEN = list(enumerate(LINES, start=10))


def lines_of(pattern: str) -> str:
    return "".join(pattern.format(number, line) for number, line in SPOKEN)


# what it is: (name, content, the advice begins with)
NO_PROSE: dict[str, tuple[str, str, str]] = {
    "array of objects": ("a.json", json.dumps(RECORDS), "of JSON that is not one object a line"),
    "indented array": ("a.json", json.dumps(RECORDS, indent=2), "of JSON that is not"),
    "indented object": ("a.jsn", json.dumps(RECORDS[0], indent=2), "of JSON that is not"),
    "array of strings": ("a.json", json.dumps(LINES), "of JSON that is not"),
    "a string a line": ("a.jsonl", "\n".join(map(json.dumps, LINES)), "of JSON that is not"),
    "an array a line": ("a.txt", "\n".join(json.dumps([x]) for x in LINES), "of JSON that is not"),
    "a table in a text": ("a.txt", lines_of('{},"{}",good\n'), "of tables or of words"),
    "markup of wikis": ("a.txt", lines_of("''{}'' [[{}|a]] {{{{b}}}}\n"), "of HTML, XML or"),
    "Arrow": ("a.arrow", "of any content", "of Arrow: write a source"),
    "dictionaries of Python": ("a.txt", f"{{'text': {LINES[0]!r}}}\n" * 9, "of JSON that is not"),
    "chats": ("a.jsonl", (json.dumps(CHAT) + "\n") * 9, "of records whose text is inside of lists"),
    "turns": (
        "a.jsonl",
        json.dumps({"id": "x", "conversations": [{"from": "me", "value": LINES[0]}]}) + "\n",
        "of records whose text is inside",
    ),
    "HTML": ("a.html", PAGE, "of HTML, XML or other tagged text"),
    "HTML after a mark": ("a", "\ufeff\n" + PAGE.lower(), "of HTML, XML or"),
    "XML": ("a.xml", '<?xml version="1.0"?>\n<doc>words</doc>', "of HTML, XML or"),
    "TREC": ("a", lines_of("<DOC>\n<DOCNO> {} </DOCNO>\n{}\n</DOC>\n"), "of HTML, XML or"),
    "SGML": ("a.sgm", lines_of('<REUTERS ID="{}">\n{}\n</REUTERS>\n'), "of HTML, XML or"),
    "RTF": ("a.rtf", "{\\rtf1\\ansi " + " ".join(LINES), "of HTML, XML or"),
    "a table of tabs": ("a.txt", lines_of("{}\t{}\n"), "of tables or of words in columns"),
    "tagged words": ("a.txt", "He PRP B-NP\nruns VBZ B-VP\n\n" * 20, "of tables or of words"),
    "a pointer of Git LFS": (
        "a.txt",
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{DIGEST}\nsize 9\n",
        "that stand for data elsewhere",
    ),
    "a pointer of git-annex": ("a", f"/annex/objects/MD5E-s9--{DIGEST}.txt\n", "that stand for"),
    "a pointer of DVC": ("a.dvc", f"outs:\n- md5: {DIGEST}\n  path: a.txt\n", "that stand for"),
}


@pytest.mark.parametrize("case", NO_PROSE)
def test_what_is_text_but_no_prose_is_named_with_what_to_do(case: str, tmp_path: Path) -> None:
    name, content, advice = NO_PROSE[case]
    (tmp_path / name).write_text(content)
    groups, others = describe_files([str(tmp_path)])
    assert not groups
    (other,) = others
    assert other.startswith("1 file " + advice)
    (tmp_path / "book.text").write_text(wrapped(0, 10))
    (group,), _ = describe_files([str(tmp_path)])
    (again,), others = describe_files(group.paths)  # the recipe reads the book alone
    assert (again.files, others) == (1, [])


@pytest.mark.parametrize(
    ("names", "read", "said"),
    [
        (
            ["a.txt", "b.txt", "README.md", "LICENSE"],
            ["a.txt", "b.txt"],
            "2 files about the others",
        ),
        (["README.md"], ["README.md"], ""),
        (
            ["train-0.txt", "train-1.txt", "test-0.txt", "valid.txt"],
            ["train-0.txt", "train-1.txt"],
            "2 files named as validation or test",
        ),
        (["train/a.txt", "dev/a.txt"], ["train/a.txt"], "1 file named as validation or test"),
        (["a.test.txt", "b.test.txt"], ["a.test.txt", "b.test.txt"], ""),
    ],
)
def test_files_about_the_others_and_held_out_parts_are_said_and_left_out(
    names: list[str], read: list[str], said: str, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(wrapped(number, 40))
    (group,), others = describe_files([str(tmp_path)])
    assert [said] * bool(said) == [other[: len(said)] for other in others]
    source = validate(
        CorpusConfig, {"sources": [{"kind": "text", "paths": group.paths} | group.source]}
    ).sources[0]
    assert isinstance(source, FileSource)
    assert sorted(file.uri for file in list_source_files(source, 0)) == [
        str(tmp_path / name) for name in read
    ]


@pytest.mark.parametrize("form", ["books.gz", "lines.gz", "records", "many", "words"])
def test_counts_are_of_the_run(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part of the text, within a twentieth."""
    # A text without sentences is cut into documents at less even places.
    sample = 300_000 if form == "words" else 100_000
    monkeypatch.setattr("rungwise.corpus.description._SAMPLE_BYTES", sample)
    match form:
        case "books.gz":
            content = wrapped(0, 700).encode()
            (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
        case "lines.gz":
            text = "\n".join(" ".join(prose(n, 5)) for n in range(1000))
            (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
        case "records":
            rows = ({"text": " ".join(prose(n, 5))} for n in range(1000))
            (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "many":
            for n in range(120):
                (tmp_path / f"{n}.txt").write_text(" ".join(prose(n, 20)))
        case _:
            (tmp_path / "a.txt").write_text(" ".join(prose(0, 9000)).lower().replace(".", ""))
    seen = only(tmp_path)
    config = validate(
        CorpusConfig, {"sources": [{"kind": seen.kind, "paths": seen.paths, **seen.source}]}
    )
    ranges = [list(read_range(cut, config)) for cut in list_ranges(config)]
    whole = write_corpus(ranges, DocumentRules(), "all", Folder.at(tmp_path / "corpus"))
    assert seen.documents == pytest.approx(whole.documents.total, rel=0.05)
    assert seen.words == pytest.approx(whole.words.total, rel=0.05)
    assert seen.characters == pytest.approx(whole.characters.total, rel=0.05)


def test_text_that_was_decoded_wrongly_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join([*prose(0, 60), "caf\ufffd"]), encoding="utf-8")
    assert any("1 characters were lost before" in note for note in only(tmp_path).notes)


@pytest.mark.parametrize("count", [1, 3])
def test_a_licence_is_taken_out_of_few_books_that_are_cut(tmp_path: Path, count: int) -> None:
    for number in range(count):
        book = wrapped(number, 400)
        start, end = (
            f"*** {word} OF THE PROJECT GUTENBERG EBOOK X ***" for word in ("START", "END")
        )
        licence = "Project Gutenberg licence. " * 3
        (tmp_path / f"{number}.txt").write_text(
            f"{licence}\n\n{start}\n\n{book}\n\n{end}\n{licence}"
        )
    seen = only(tmp_path)
    assert seen.source["documents"] == "chunk"
    assert seen.source["boilerplate"] == "gutenberg"


def test_many_files_with_blank_lines_are_documents_each(tmp_path: Path) -> None:
    for number in range(60):
        blocks = ["\n".join(prose(100 * number + at, 4)) for at in range(6)]
        (tmp_path / f"{number}.txt").write_text(f"Speech {number}\n\n" + "\n\n".join(blocks))
    seen = only(tmp_path)
    assert (seen.documents, seen.source) == (60, {"lines": "sentence"})
    assert "a document is a file; `documents` of the source decides" in seen.notes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u5b9d\u7389\u9053\uff1a\u4f60\u6765\u4e86\u3002" * 9, "Chinese"),
        ("わたしはねこである。" * 9, "Japanese"),
        (
            "\u0432\u0441\u0435 \u0441\u0447\u0430\u0441\u0442\u043b\u0438\u0432\u044b\u0435 " * 9,
            "letters other than Latin",
        ),
        ("xqz wvk plt rrr", "Latin letters"),
    ],
)
def test_languages(text: str, expected: str) -> None:
    assert guess_language(text) == expected


def test_chinese_is_counted_by_characters(tmp_path: Path) -> None:
    lines = [chinese(number, 4) for number in range(300)]
    (tmp_path / "a.txt").write_text("".join(f"\u3000\u3000{line}\n" for line in lines))
    seen = only(tmp_path)
    assert seen.words < seen.characters == pytest.approx(sum(map(len, lines)), rel=0.1)
    assert format_amount([(9, seen.characters)]).endswith(" characters")
    assert format_amount([(5, 60), (1, 13), (2, 9)]) == "7 words and 13 characters"


@pytest.mark.parametrize("kind", ["books", "chinese", "mixed", "code", "one file", "records"])
def test_the_recipe_can_be_planned(tmp_path: Path, kind: str, cli: Cli) -> None:
    folder = tmp_path / "my texts"
    folder.mkdir()
    match kind:
        case "books":
            books(folder, 3, 100)
        case "chinese":
            (folder / "a.txt").write_text(
                "\n".join(f"\u3000\u3000{chinese(n, 4)}" for n in range(100))
            )
        case "mixed":
            books(folder, 3, 30)
            (folder / "a.txt").write_text(chinese(0, 300))
        case "code":
            for number in range(5):
                (folder / f"{number}.py").write_text(
                    "".join(f"def f{n}(x):\n    return x + {number}\n\n" for n in range(50))
                )
        case "one file":
            (folder / "a.txt").write_text(" ".join(prose(0, 120)))
        case _:
            rows = [{"text": " ".join(prose(number, 4))} for number in range(50)]
            (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "rungwise run pretrain my-texts.yaml" in cli("init", str(folder))
    recipe = load_recipe("my-texts.yaml")
    assert isinstance(recipe, Recipe)
    assert "pretrain" in pretrain_stages(recipe)
    assert recipe.model is not None
    assert recipe.model.kind == ("gpt" if kind == "code" else "modern_bert")
    built = train_on(recipe)
    assert built.get_vocab_size() <= getattr(recipe.tokenizer, "vocab_size", 0)
    assert "my-texts.yaml already exists" in cli("init", str(folder), status=2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.bin": "\0\1\2" * 9}, "no text below text; found: 1 binary .bin"),
        (
            {"a.txt": "PK\3\4" + "a line\n" * 500, "b.txt.gz": "a line\n" * 500, "c.txt": ""},
            "1 file of a packed form by their names, and not by their content: fetch or rename "
            "them, 1 file, a zip archive, or a file of an office program: unpack it, or save its "
            "text, 1 empty",
        ),
        (
            {"a.txt": "It was a dark night.\n", "t.csv": "text,label\n" + "a line,b\n" * 500},
            "1 file of tables or of words in columns: write the text alone, or give --labels to "
            "fine-tune on the labels in them, 1 file of text without a document of 50 characters",
        ),
        ({"one.txt": "the sea and the wind " * 40}, "about 839 characters of text below text"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(
    files: dict[str, str], message: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "text").mkdir()
    for name, content in files.items():
        (tmp_path / "text" / name).write_text(content)
    assert message in cli("init", "text", status=2)
    assert not [*tmp_path.glob("*.yaml")]


def test_labelled_rows_become_a_task(tmp_path: Path, cli: Cli) -> None:
    """The longest column is the text, that of the fewest values the label; an id is neither."""
    (tmp_path / "texts").mkdir()
    books(tmp_path / "texts", 20, paragraphs=4)
    rows = [
        f'{n},"{" ".join(prose(n, 2))}, said he",{("good", "bad")[n % 3 == 0]}' for n in range(90)
    ]
    (tmp_path / "my reviews.csv").write_text("number,said,verdict\n" + "\n".join(rows) + "\n")
    cli("init", "texts", "--labels", "my reviews.csv")
    recipe = load_recipe("texts.yaml")
    assert make_stages("finetune", recipe)
    data = recipe.tasks["my-reviews"].data
    assert isinstance(data, FilesTaskConfig)
    task = load(data)
    assert set(task.info.labels) == {"good", "bad"}
    assert sum(map(len, task.splits.values())) == 90
    assert len(task.splits["validation"]) < len(task.splits["test"]) < len(task.splits["train"])
    assert all(each.text.endswith("said he") for each in task.splits["train"])


def test_a_table_is_not_read_as_prose_and_one_without_labels_is_told(
    tmp_path: Path, cli: Cli
) -> None:
    books(tmp_path, 2, 40)
    (tmp_path / "a.tsv").write_text(
        "id\ttext\n" + "".join(f"{n}\tthe sea {n}\n" for n in range(30))
    )
    assert "1 file of tables or of words in columns" in cli("init", "a.tsv", status=2)
    assert "no format reads this" in cli("init", "0.txt", "--labels", "a.tsv", status=2)


def test_names_and_places_of_other_scripts_stay_readable(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "Mes Li\u0301vres (\u7ea2\u697c\u68a6)"
    folder.mkdir()
    books(folder, 2, 40)
    cli("init", str(folder))
    (recipe,) = tmp_path.glob("*.yaml")
    assert recipe.stem == "Mes-Livres-红楼梦"
    assert str(folder) in recipe.read_text()
    assert load_recipe(recipe.name).corpus.sources[0].kind == "text"
    assert "no file matches not/there" in cli("init", str(folder), "not/there", status=2)


@pytest.mark.parametrize(
    "text", ["No", "null", "12:30", "1_000", "0x1f", "2024-01-01", ".inf", "a: b"]
)
def test_flow_style_is_read_back_as_it_was(text: str) -> None:
    value = {"columns": [text, "plain"], "header": False, "fraction": 0.1}
    assert yaml.safe_load(flow(value)) == value


@pytest.mark.parametrize("name", ["notes [old]", "what?", "a*b"])
def test_wildcards_in_names(tmp_path: Path, name: str, cli: Cli) -> None:
    """The recipe reads the same files that were looked at, and no others."""
    for folder in (name, "notes o", "whats", "a-b"):
        (tmp_path / folder / "in").mkdir(parents=True)
        books(tmp_path / folder / "in", 2, 40)
    (tmp_path / name / "in" / "a.jsonl").write_text(json.dumps({"text": " ".join(prose(9, 9))}))
    cli("init", name, "--name", "recipe")
    recipe = load_recipe("recipe.yaml")
    assert isinstance(recipe, Recipe)
    uris: list[str] = []
    for number, source in enumerate(recipe.corpus.sources):
        assert isinstance(source, FileSource)
        uris += [file.uri for file in list_source_files(source, number)]
    assert sorted(Path(uri).name for uri in uris) == ["0.txt", "1.txt", "a.jsonl"]
    assert {Path(uri).parent for uri in uris} == {tmp_path / name / "in"}


@pytest.mark.parametrize(
    ("text", "tokenizer", "held_out"),
    # A tenth of little text gives its tasks too few test examples.
    [("little", "wordpiece", 0.25), ("chinese", "character", 0.1)],
)
def test_the_ladder_is_planned_on_a_text_of_ones_own(
    text: str, tokenizer: str, held_out: float, tmp_path: Path, cli: Cli
) -> None:
    content = "\n\n".join(chinese(n, 4) for n in range(1500))
    if text == "little":
        content = " ".join(prose(0, 2400))
    (tmp_path / f"{text}.txt").write_text(content, encoding="utf-8")
    assert f"rungwise run ladder {text}.yaml" in cli("init", "--ladder", f"{text}.txt")
    recipe, packaged = load_recipe(f"{text}.yaml"), load_recipe("ladder")
    assert (recipe.tokenizer.kind, recipe.corpus.held_out_fraction) == (tokenizer, held_out)
    assert [*recipe.variants] == [*packaged.variants]
    assert recipe.measure == packaged.measure
    assert {*packaged.tasks} - {*recipe.tasks} == {"library"}
    assert make_stages("ladder", recipe)
    refused = cli("init", "--ladder", f"{text}.txt", "--model", "gpt", status=2)
    assert "leave out --labels and --model" in refused


def test_what_a_text_cannot_fill_or_train_is_a_gap_of_the_ladder(tmp_path: Path) -> None:
    books(tmp_path, 1, 10)
    recipe = load_recipe("ladder", ["corpus={sources: [{kind: text, paths: [0.txt]}]}"])
    stages = make_ladder(recipe)
    # A task that is too small is known before training.
    names = [stage.display_name for stage in stages]
    assert names.index("task/capitals") < names.index("pretrain")
    grow = grow_past_gaps(recipe, make_ladder, stages)
    assert grow
    (task,) = (stage for stage in stages if stage.display_name == "task/capitals")
    known = grow({}, {task.fingerprint: "too few examples"})
    left = [stage.display_name for stage in known.stages if "capitals" in stage.display_name]
    assert (left, known.stages[-1].name) == ([], "ladder")
    assert getattr(known.stages[-1].config, "gaps", None) == {
        "the task capitals": "too few examples"
    }
    lost = {each.fingerprint for each in stages} - {each.fingerprint for each in known.stages}
    assert lost <= known.optional
    # A rung that cannot be trained is known once the others are measured; but the run fails.
    measured = {each.display_name: each.fingerprint for each in stages if each.name == "measure"}
    failed = {measured["measure/lsa"]: "too few documents"}
    assert grow({}, failed).stages == stages
    artifact = Artifact("measure", "", Folder.at(tmp_path), {})
    others = dict.fromkeys(set(measured.values()) - failed.keys(), artifact)
    known = grow(others, failed)
    assert getattr(known.stages[-1].config, "gaps", None) == {"LSA model": "too few documents"}
    names = {stage.display_name for stage in known.stages}
    assert {stage.display_name for stage in stages} - names == {"pretrain/lsa", "measure/lsa"}
    assert not known.optional & {*measured.values()}


def make_ladder(recipe: Recipe) -> list[Stage]:
    return list(ladder_stages(recipe).values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_a_recipe(kind: str, tmp_path: Path, cli: Cli) -> None:
    books(tmp_path, 2, 10)
    command = ["init", ".", "--name", "mine", "--model", kind]
    if kind == "cove":
        message = "a cove learns from files that are labelled or aligned"
        assert message in cli(*command, status=2)
        return
    cli(*command)
    recipe = load_recipe("mine.yaml")
    assert recipe.model is not None
    assert recipe.model.kind == kind
    assert "pretrain" in pretrain_stages(recipe)
