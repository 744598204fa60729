"""Layouts of public data sets and of labelling tools: each loads with the block of the docs."""

import gzip
import io
import json
import random
import re
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rungwise.commands.init import describe_data
from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.source_files import digest_matching_files, list_matching_files
from rungwise.tasks.formats.base import read_bytes, read_text
from rungwise.tasks.formats.guess import Guess, guess_format
from tests.task_cases import FormatBlock, as_json, json_lines, read_content

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "layouts.md"
BLOCKS = {
    name: yaml.safe_load(block)
    for name, block in re.findall(r"(?m)^\| ([^|]+) \| `(\{kind.*\})` \|$", PAGE.read_text("utf-8"))
}
# CoNLL-2000 has two columns of tags, and its last is taken; a class that is the name of a file or
# the first word of a line, options, and pairs without known names are not guessed.
REAL = [
    block
    for block in re.findall(
        r"```yaml\n(# .*?)```", PAGE.with_name("tasks.md").read_text("utf-8"), re.S
    )
    if "train: data/tasks" in block
    and not re.search("tag: 1|label: file|rest_of_line|kind: choice|second: [12]", block)
]


def recipe_block(printed: str) -> dict[str, Any]:
    (task,) = yaml.safe_load(printed)["tasks"].values()
    return task["data"]


def described(path: str, guess: Guess) -> dict[str, Any]:
    """What `rungwise tasks` prints for a person to copy."""
    return recipe_block(describe_data(path, guess))


def tar(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
    return packed.getvalue()


def parquet(columns: dict[str, Any], classes: Any = None) -> bytes:
    """A table as Hugging Face's datasets write it, with the features that are classes."""
    stored = io.BytesIO()
    metadata = {"huggingface": json.dumps({"info": {"features": classes or {}}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), stored)
    return stored.getvalue()


MARK = {"start": 0, "end": 3, "value": "Ann"}
ARC_LISTS = {"text": ["a", "b"], "label": ["A", "B"]}

# name: (path below the folder, its content, what its first example is understood as)
LAYOUTS: dict[str, tuple[str, bytes, list[Any]]] = {
    name: (each["file"], each["content"].encode(each.get("encoding", "utf-8")), each["first"])
    for name, each in yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text()).items()
}
LAYOUTS |= {
    "IMDB (aclImdb), in its archive": (
        "aclImdb_v1.tar.gz/aclImdb/train",
        tar(
            aclImdb__train__unsup__0_0="No.",
            aclImdb__train__pos__0_9="A\nfine film.",
            aclImdb__train__urls_pos="http://x",
            aclImdb__test__neg__0_2="Bad.",
        ),
        ["A\nfine film.", None, "pos"],
    ),
    "Parquet of Hugging Face, classes": (
        "train-00000-of-00001.parquet",
        parquet(
            {"text": ["Fine.", "Bad."], "label": [1, 0]},
            {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}},
        ),
        ["Fine.", None, "pos"],
    ),
    "Parquet of Hugging Face, tags": (
        "train.parquet",
        parquet(
            {"tokens": [["in", "Ulm"]], "pos_tags": [[1, 2]], "ner_tags": [[0, 1]]},
            {"ner_tags": {"feature": {"names": ["O", "B-LOC"], "_type": "ClassLabel"}}},
        ),
        [["in", "Ulm"], ["O", "B-LOC"]],
    ),
    "Parquet of Hugging Face, questions": (
        "train.parquet",
        parquet(
            {
                "id": ["5"],
                "context": ["It rains."],
                "question": ["Why?"],
                "answers": [{"text": ["rains"], "answer_start": [3]}],
            }
        ),
        ["Why?", "It rains.", [{"text": "rains", "start": 3}]],
    ),
    "Parquet of Hugging Face, choices": (
        "train.parquet",
        parquet({"question": ["Q?"], "choices": [ARC_LISTS], "answerKey": ["B"]}),
        ["Q?", None, ["a", "b"], 1],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout_loads_with_the_block_of_the_docs(name: str, tmp_path: Path) -> None:
    path, content, expected = LAYOUTS[name]
    first, *_ = read_content(tmp_path, BLOCKS[name], content, path)
    assert as_json(first) == expected


def test_the_docs_have_a_block_for_each_layout_that_is_tested() -> None:
    assert BLOCKS.keys() == LAYOUTS.keys()
    assert len(BLOCKS) >= 40


DAMAGED = yaml.safe_load(Path(__file__).with_name("damaged_files.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_example_is_refused_or_left_out_and_counted(case: str, tmp_path: Path) -> None:
    form = BLOCKS[DAMAGED[case]["block"]]
    with pytest.raises(DataError):
        read_content(tmp_path, form | {"on_error": "error"}, DAMAGED[case]["content"])
    form, counts = form | {"on_error": "drop"}, Counter[str]()
    assert len(read_content(tmp_path, form, DAMAGED[case]["content"], counts=counts)) == 1
    assert counts == {"damaged_examples_dropped": 1}


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_an_archive_with_a_flipped_bit_is_refused(tmp_path: Path, packing: str) -> None:
    packed = tmp_path / f"a.tar.{packing}"
    content = random.Random(0).randbytes(200_000)
    mode: Any = f"w:{packing}"
    with tarfile.open(packed, mode) as archive:
        entry = tarfile.TarInfo("train.tsv")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    whole = packed.read_bytes()
    for place in (len(whole) // 2, len(whole) - 5):
        packed.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"cannot be unpacked \(.*\); fetch it again"):
            list_matching_files([f"{packed}/train.tsv"], "data.train")


def sparse_header(name: str, num_bytes: int) -> bytes:
    """The header of GNU tar for a file of one block and a hole."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = tarfile.GNUTYPE_SPARSE, tarfile.BLOCKSIZE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    # Place and size of the block, and the size of the file, as octal digits.
    for at, number in ((386, 0), (398, entry.size), (483, num_bytes)):
        header[at : at + 12] = b"%011o\0" % number
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("case", ["zip", "states less", "bzip2", "tar.gz", "header", "hole", "gz"])
def test_what_unpacks_to_too_much_is_refused_and_takes_no_memory(tmp_path: Path, case: str) -> None:
    content = bytes(60_000_000)
    packed = tmp_path / {"header": "a.tar.gz", "tar.gz": "a.tar.gz", "hole": "a.tar"}.get(
        case, "a.zip"
    )
    path = f"{packed}/train.tsv"
    if case in ("header", "tar.gz"):
        with tarfile.open(packed, "w:gz", compresslevel=9) as archive:
            entry = tarfile.TarInfo("train.tsv")
            if case == "header":
                entry.pax_headers = {"comment": content.decode()}
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    elif case == "hole":
        block = b"x".ljust(tarfile.BLOCKSIZE, b"\0")
        end = bytes(2 * tarfile.BLOCKSIZE)
        packed.write_bytes(sparse_header("train.tsv", len(content)) + block + end)
    elif case == "gz":
        path = str(tmp_path / "train.tsv.gz")
        Path(path).write_bytes(gzip.compress(content, 9))
    else:
        method = zipfile.ZIP_BZIP2 if case == "bzip2" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr("train.tsv", content)
        if case != "zip":  # the sizes that both headers state
            stated = len(content).to_bytes(4, "little")
            packed.write_bytes(packed.read_bytes().replace(stated, (1000).to_bytes(4, "little")))
    del content
    tracemalloc.start()
    try:
        message = r"cannot be unpacked|or more, beyond 100 times|unpack to 6\d,\d{3},"
        with pytest.raises(DataError, match=message):
            read_bytes(list_matching_files([path], "data.train")[0])
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_a_file_of_an_archive_is_the_file_itself(tmp_path: Path) -> None:
    packed = tmp_path / "SST-2.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("SST-2/train.tsv", "SST-2/dev.tsv", "__MACOSX/SST-2/._dev.tsv"):
            archive.writestr(name, f"sentence\tlabel\n{name}\t1\n")
    (file,) = list_matching_files([f"{packed}/SST-2/dev.tsv"], "data.train")
    with file.open() as stream:
        assert stream.read().startswith(b"sentence\tlabel\nSST-2/dev.tsv")
    every, some = (
        list_matching_files([f"{packed}{inside}"], "k") for inside in ("", "/SST-2/*in.tsv")
    )
    assert [f.name for f in every] == ["SST-2.zip/SST-2/dev.tsv", "SST-2.zip/SST-2/train.tsv"]
    assert [f.name for f in some] == ["SST-2.zip/SST-2/train.tsv"]
    assert digest_matching_files([f"{packed}/SST-2/dev.tsv"], "k") != digest_matching_files(
        [f"{packed}/SST-2/train.tsv"], "k"
    )
    with pytest.raises(ConfigError, match="no file matches"):
        list_matching_files([f"{packed}/SST-2/test.tsv"], "data.train")
    cut_off = packed.read_bytes()[:40]
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("é.tsv", "text")
    no_utf8 = packed.read_bytes().replace("é".encode(), b"\xff\xfe")
    for content in (cut_off, no_utf8):
        packed.write_bytes(content)
        with pytest.raises(DataError, match=r"SST-2\.zip: cannot be unpacked"):
            list_matching_files([str(packed)], "data.train")


# Tables, tagged words, objects and SQuAD's JSON; for other layouts the block is stated. Not among
# them are those of which a single example does not tell enough: a header from a row, which of two
# columns is the class, names of classes.
GUESSED = {
    *("BoolQ (SuperGLUE)", "CB, RTE (SuperGLUE)", "MNLI (GLUE)", "SNLI, JSON Lines"),
    *("PAWS", "AFQMC (CLUE)", "TNEWS (CLUE)", "IFLYTEK (CLUE)", "CMNLI, OCNLI (CLUE)", "Banking77"),
    "IMDB (aclImdb), in its archive",
    *("Label Studio, choices, CSV", "doccano, classes", "Topics of a document, JSON Lines"),
    *("CoNLL-2000", "CoNLL-2002", "CoNLL-2003", "CoNLL-U", "JNLPBA (GENIA)", "WNUT-17"),
    *("GermEval 2014", "BMES, Chinese words"),
    *("SQuAD 1.1, CMRC 2018, DRCD, XQuAD, MLQA", "SQuAD 2.0", "SQuAD, a question a line"),
    "Parquet of Hugging Face, questions",
}
STATED = {
    *("MultiRC (SuperGLUE)", "CLINC150", "SageMaker Ground Truth", "Financial PhraseBank"),
    *("Label Studio, choices, JSON", "Label Studio, several choices"),
    *("LightTag", "doccano, entities", "Label Studio, entities"),
    *("Label Studio, entities, JSON-MIN", "doccano, entities with relations"),
    *("spaCy, texts and entities", "spaCy 2, training data", "TREC questions, fine"),
    *("DREAM, C3", "SWAG", "MMLU"),
    *("HellaSwag", "ARC, OpenBookQA, CommonsenseQA", "ARC, choices as lists", "WinoGrande"),
    *("COPA (SuperGLUE)", "PIQA with labels", "Social IQa with labels", "Social IQa 1.4"),
    *("Cosmos QA", "MedQA", "MedMCQA", "SciQ", "CODAH", "Parquet of Hugging Face, choices"),
    *("Parquet of Hugging Face, tags", "JSON Lines of tokens and tags"),
}


@pytest.mark.parametrize("name", sorted(GUESSED))
def test_a_look_at_a_single_example_finds_how_to_read_it(name: str, tmp_path: Path) -> None:
    path, content, expected = LAYOUTS[name]
    read_content(tmp_path, BLOCKS[name], content, path)
    guess = guess_format(str(tmp_path / path))
    assert as_json(guess.examples[0]) == expected
    # What is printed is a block that reads the same.
    block = described(path, guess)
    (first, *_) = read_content(tmp_path, block["format"], content, path)
    assert as_json(first) == expected


@pytest.mark.parametrize(
    "block", [pytest.param(each, id=each.partition("\n")[0][2:]) for each in REAL]
)
def test_a_look_at_real_files_reads_them_as_their_blocks_do(
    block: str, real_data: Path, tmp_path: Path
) -> None:
    """Of the lines, or of sentences of tagged words, some from all over a file are read."""
    config = yaml.safe_load(block)
    path = str(config["train"]).replace("data/", f"{real_data}/", 1)
    reader = validate(FormatBlock, {"format": config["format"]}).format
    (whole, *_) = list_matching_files([path], "data.train")
    end = "\n\n" if config["format"]["kind"] in ("conll", "conllu") else "\n"
    parts = read_text(whole, reader.encoding).split(end)
    some = tmp_path / Path(path).name.removesuffix(".gz")
    is_whole = config["format"].get("quoting") or some.suffix == ".json"
    step = 1 if is_whole else 1 + len(parts) // 2000
    some.write_bytes(end.join(parts[::step]).encode(reader.encoding))
    (file,) = list_matching_files([str(some)], "data.train")
    counts: Counter[str] = Counter()
    guess, expected = guess_format(str(some)), islice(reader.read(file, "train", counts), 50)
    for found, example in zip(guess.examples, expected, strict=False):
        inputs = [as_json(each)[:-1] for each in (found, example)]
        assert inputs[0] == inputs[1]


SENTENCES = [f"The {a} {b} the {c}" for a in ("old", "new") for b in ("is", "was", "saw")
             for c in ("film", "plot", "end", "cast")]  # fmt: skip
UNREADABLE = {
    "control characters": "\x00\x01\n",
    "lists in lists": "[" * 200_000,
    "first words": "".join(f"{'ab'[n % 2]} {each} .\n" for n, each in enumerate(SENTENCES)),
    "marks of a labelling tool, and the state of its work": json_lines(
        *({"text": f"a {n}", "spans": [MARK], "answer": "accept" if n % 2 else "ignore"}
          for n in range(20))
    ),
    "options in columns without a header": "".join(
        f"Which {each}?\tthe old {n}\tthe new {n}\ta film {n}\tno plot {n}\t{n % 4}\n"
        for n, each in enumerate(SENTENCES)
    ),
    "tags of words in a table": "Sentence,Word,POS,Tag\n" + "".join(
        f"{n},{word},NN,{'OBI'[m % 3]}{'-LOC' * (m % 3 > 0)}\n"
        for n, each in enumerate(SENTENCES) for m, word in enumerate(each.split())
    ),
    "columns of JSON": json.dumps({"text": SENTENCES, "label": ["a", "b"] * (len(SENTENCES) // 2)}),
    "Parquet without rows": parquet({"text": pa.array([], "str"), "label": []}).decode("latin-1"),
} | {
    f"names of columns: {head!r}": head + "".join(
        f"{each},{each.upper()},{n}%,{'ab'[n % 2]}\n" for n, each in enumerate(SENTENCES)
    )
    for head in ("text,text,x,label\n",)  # a name twice
} | {name: LAYOUTS[name][1].decode("latin-1") for name in sorted(STATED)}  # fmt: skip


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_nothing_reads_is_said(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(UNREADABLE[case].encode("latin-1"))
    with pytest.raises(DataError, match=r"no format reads this; .*docs/reference/layouts\.md has"):
        guess_format(str(tmp_path / "a.txt"))


def test_a_workbook_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        book.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DataError, match="this is a zip archive, or a file of an office program"):
        guess_format(str(tmp_path / "a.xlsx"))


def test_a_packed_file_that_is_damaged_is_not_guessed(tmp_path: Path) -> None:
    whole = gzip.compress(b"good\tit is good\n" * 99)
    for name, content, reason in (("b", b"not gzip", "an unsound"), ("c", whole[:40], "a cut-off")):
        (tmp_path / f"{name}.tsv.gz").write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.tsv\.gz: {reason} \.gz.*fetch"):
            guess_format(str(tmp_path / f"{name}.tsv.gz"))


def test_a_header_that_lacks_the_name_of_the_first_column_is_no_header(tmp_path: Path) -> None:
    rows = "".join(f"{n}\tit is {word} {n}\t{word}\n" for n, word in enumerate(["good", "bad"] * 9))
    (tmp_path / "from_r.txt").write_text("review\topinion\n" + rows)
    guess = guess_format(str(tmp_path / "from_r.txt"))
    assert (guess.form["columns"], guess.damaged) == ({"text": 1, "label": 2}, 1)


def test_a_header_may_have_names_of_several_words(tmp_path: Path) -> None:
    rows = "".join(f'"it is {word}, and so on",{word}\n' for word in ("good", "bad") * 10)
    (tmp_path / "reviews.csv").write_text("Text of the review,Opinion\n" + rows)
    form = guess_format(str(tmp_path / "reviews.csv")).form
    assert form["columns"] == {"text": "Text of the review", "label": "Opinion"}
    assert "header" not in form


def test_files_beside_the_folders_of_classes_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in ("pos/1.txt", "neg/1.txt", "neg/2.txt", "urls_pos.txt", "README"):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"It is {name}.")
    form, counts = validate(FormatBlock, {"format": {"kind": "folders"}}).format, Counter[str]()
    chosen = form.select_files(list_matching_files([str(tmp_path / "train")], "data.train"), counts)
    assert [file.name for file in chosen] == ["neg/1.txt", "neg/2.txt", "pos/1.txt"]
    assert counts == {"files_left_out_beside_the_folders_of_classes": 2}
    assert guess_format(str(tmp_path / "train")).labels == {"neg": 2, "pos": 1}
    only_pos = list_matching_files([str(tmp_path / "train/pos")], "data.train")
    assert form.select_files(only_pos, counts) == only_pos


def test_an_example_without_its_label_does_not_make_one_label_several(tmp_path: Path) -> None:
    records = [{"text": f"It is {n}", "label": [["a"], ["b"], []][n % 3 if n < 9 else n % 2]}
               for n in range(30)]  # fmt: skip
    (tmp_path / "all.jsonl").write_text(json_lines(*records))
    guess = guess_format(str(tmp_path / "all.jsonl"))
    assert guess.form["columns"] == {"text": "text", "label": "label"}
    assert (guess.form["on_error"], guess.damaged, len(guess.examples)) == ("drop", 3, 27)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        # Chinese has no blanks between words.
        ("今天天气很好{n}\t{n}\t{label}", {"text": 0, "label": 2}),
        # A title is shorter than its text, and a date is no text.
        ("{label}\tA title {n}\t{sentence}, {sentence}, {sentence} {n}", {"text": 2, "label": 0}),
        ("{label}\tMon Apr 06 22:{n}:45 PDT 2009\t{sentence} {n}", {"text": 2, "label": 0}),
    ],
)
def test_columns_of_text_are_found(row: str, columns: dict[str, Any], tmp_path: Path) -> None:
    filled = (
        row.format(n=10 + n, label="ab"[n % 2], sentence=each) for n, each in enumerate(SENTENCES)
    )
    (tmp_path / "a.txt").write_text("\n".join(filled))
    assert guess_format(str(tmp_path / "a.txt")).form["columns"] == columns


@pytest.mark.parametrize("header", ["Kommentar;Bewertung\n", "text;rating\n", ""])
def test_decimal_commas_between_semicolons_are_scores(header: str, tmp_path: Path) -> None:
    rows = (f"{each}, {n};{1 + n % 9 // 2},{n % 9 % 2 * 5}\n" for n, each in enumerate(SENTENCES))
    (tmp_path / "a.csv").write_text(header + "".join(rows))
    guess = guess_format(str(tmp_path / "a.csv"))
    first, second, *_ = map(as_json, guess.examples)
    assert first == [f"{SENTENCES[0]}, 0", None, 1.0]
    assert second == [f"{SENTENCES[1]}, 1", None, 1.5]


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "utf-8-sig"])
def test_what_windows_saves_is_read_and_printed(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "daten.csv"
    content = "".join(f'"Größe “{n}” €";{["gut", "schlecht"][n % 2]}\r\n' for n in range(12))
    path.write_bytes(f"Text;Urteil\r\n{content}".encode(encoding))
    guess = guess_format(str(path))
    assert as_json(guess.examples[0]) == ["Größe “0” €", None, "gut"]
    block = described(str(path), guess)
    assert block["format"].get("encoding", "utf-8-sig") == encoding


def test_control_characters_of_an_example_do_not_break_the_block(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json_lines({"text": "a\x00b\x9d", "label": "x\ny\x00: z"}))
    printed = describe_data("a.jsonl", guess_format(str(tmp_path / "a.jsonl")))
    assert r"text: a\x00b\x9d" in printed
    assert r"labels: x y\x00: z: 1" in printed
    assert recipe_block(printed)["format"]["columns"] == {"text": "text", "label": "label"}


@pytest.mark.parametrize("kind", ["str", "large_str", "string_view"])
def test_parquet_of_all_types_of_text_is_read_and_null_is_no_label(
    kind: str, tmp_path: Path
) -> None:
    labels = [[1.0, 0.0, None][n % 3] for n in range(len(SENTENCES))]
    text = pa.array(SENTENCES, pa.string_view() if kind == "string_view" else kind)
    (tmp_path / "a.parquet").write_bytes(parquet({"text": text, "label": labels}))
    guess = guess_format(str(tmp_path / "a.parquet"))
    assert guess.form["skip_labels"] == [""]
    assert guess.labels == {"1": 8, "0": 8}


def test_parquet_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    form = {"kind": "table", "layout": "parquet", "columns": {"text": "text", "label": "label"}}
    whole = parquet({"text": ["a"], "label": ["b"]})
    for content in (whole[:-20], b"text\tlabel\n"):
        with pytest.raises(DataError, match="expected a Parquet or Arrow file, found what"):
            read_content(tmp_path, form, content, "train.parquet")
