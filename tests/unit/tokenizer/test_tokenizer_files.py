"""Vocabularies from elsewhere: read as they are meant, refused with file and line if garbled."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from rungwise.core.errors import DataError
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import SpecialIds
from rungwise.tokenizer import TokenizerFileConfig, load_tokenizer, read_tokenizer, special_ids
from rungwise.tokenizer.building import train_tokenizer
from rungwise.tokenizer.config import identity
from rungwise.tokenizer.files import input_digests
from tests.corpora import corpus_of_sentences

VOCAB_TXT = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n,\n"
VOCAB_JSON = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5}
MERGES = "#version: 0.2\na b\nĠ ab\n"


def config(path: Path, **changes: bool) -> TokenizerFileConfig:
    return TokenizerFileConfig(path=str(path), **changes)  # type: ignore[arg-type]


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def gpt2_folder(
    folder: Path, vocabulary: str = json.dumps(VOCAB_JSON), merges: str = MERGES
) -> Path:
    written(folder / "vocab.json", vocabulary)
    written(folder / "merges.txt", merges)
    return folder


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


BERT_IDS = SpecialIds(0, 100, 101, 102, 103, end=102, ids=(0, 100, 101, 102, 103))


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("bert-base-uncased", BERT_IDS),
        ("bert-base-chinese", BERT_IDS),
        ("gpt2", SpecialIds(end=50256, ids=(50256,))),
    ],
)
def test_published_special_ids_are_found(name: str, special: SpecialIds, real_data: Path) -> None:
    assert special_ids(read_tokenizer(config(real_data / "vocab" / name))) == special


def test_roles_are_found_by_the_names_of_other_families() -> None:
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "[MASK]": 5, "<extra>": 6}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    # Only "[MASK]" is a word of the text here: nobody marked it special.
    tokenizer.add_special_tokens([word for word in words if word != "[MASK]"])
    assert special_ids(tokenizer) == SpecialIds(
        pad=1, unk=3, cls=0, sep=2, mask=4, end=2, ids=(0, 1, 2, 3, 4, 6)
    )
    pieces = [("a", -1.0), ("<oov>", 0.0)]
    assert special_ids(Tokenizer(models.Unigram(pieces, unk_id=1))) == SpecialIds(unk=1, ids=(1,))


def test_a_vocab_txt_is_a_wordpiece_vocabulary(tmp_path: Path) -> None:
    path = written(tmp_path / "vocab.txt", VOCAB_TXT)
    for place in (path, tmp_path):
        assert tokens(read_tokenizer(config(place)), "Playing, [MASK]") == [
            "play",
            "##ing",
            ",",
            *["[UNK]"] * 3,
        ]
    assert tokens(read_tokenizer(config(path, lowercase=False)), "Playing") == ["[UNK]"]
    crlf = written(tmp_path / "crlf" / "small.txt", VOCAB_TXT.replace("\n", "\r\n"))
    assert read_tokenizer(config(crlf)).get_vocab() == read_tokenizer(config(path)).get_vocab()


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"do_lower_case": False}, r"do_lower_case is false in .*set tokenizer\.lowercase=false"),
        ({"strip_accents": False}, r"strip_accents is false in .* tokenizer\.strip_accents=false"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false, but"),
        ([], "expected an object, found a list"),
    ],
)
def test_files_beside_it_must_agree(stated: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "vocab.txt", VOCAB_TXT)
    agrees = input_digests(config(path))
    written(tmp_path / "tokenizer_config.json", json.dumps(stated))
    for place in (path, tmp_path):
        with pytest.raises(DataError, match=message):
            input_digests(config(place))
    plain = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    written(tmp_path / "tokenizer_config.json", json.dumps(plain))
    assert input_digests(config(tmp_path)) == agrees
    written(tmp_path / "tokenizer_config.json", json.dumps({"do_lower_case": False}))
    assert input_digests(config(tmp_path, lowercase=False)) == agrees
    written(tmp_path / "tokenizer_config.json", json.dumps({"strip_accents": False}))
    assert input_digests(config(tmp_path, strip_accents=False)) == agrees
    assert tokens(read_tokenizer(config(path, strip_accents=False)), "Pláy play") == [
        "[UNK]",
        "play",
    ]


def test_a_tokenizer_json_is_taken_as_it_is(tmp_path: Path) -> None:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[X]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken("[X]", special=True)])
    made.enable_truncation(2)
    made.enable_padding(length=9)
    made.save(str(tmp_path / "tokenizer.json"))
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert tokens(read_tokenizer(config(place)), "a b a a") == ["a", "[UNK]", "a", "a"]
        assert special_ids(read_tokenizer(config(place))).ids == (0, 2)


def test_a_vocabulary_in_a_bucket_is_read(tmp_path: Path, bucket: str) -> None:
    folder = Folder.at(f"{bucket}/gpt2")
    folder.write_bytes("vocab.json", json.dumps(VOCAB_JSON).encode())
    folder.write_bytes("merges.txt", MERGES.encode())
    far = TokenizerFileConfig(path=f"{bucket}/gpt2")
    assert tokens(read_tokenizer(far), "ab ab") == ["ab", "Ġab"]
    assert input_digests(far) == input_digests(config(gpt2_folder(tmp_path)))


def split_at(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


BAD: dict[str, tuple[dict[str, str | bytes], str]] = {
    "nothing there": ({}, "found nothing at"),
    "other file": ({"vocab.bin": b"x"}, "expected vocab.txt, tokenizer.json, or a folder"),
    "nothing known": ({"a.txt": "x", "b.txt": "y"}, "found a.txt, b.txt at"),
    "empty line": ({"vocab.txt": "[UNK]\n\na\n"}, r"vocab\.txt line 2: .*found nothing"),
    "empty file": ({"vocab.txt": ""}, r"vocab\.txt line 1: .*found nothing"),
    "twice": ({"vocab.txt": "[UNK]\na\nb\na\n"}, r"vocab\.txt line 4: 'a' is on line 2 too"),
    "no unknown": ({"vocab.txt": "a\nb\n"}, r"no unknown token among its 2 lines .*\[UNK\], <unk>"),
    "latin-1": ({"vocab.txt": b"[UNK]\ncaf\xe9\n"}, r"vocab\.txt line 2 is not UTF-8"),
    "half a JSON": ({"tokenizer.json": '{\n"version": '}, r"tokenizer\.json line 2: not JSON"),
    "other JSON": ({"tokenizer.json": '{"a": 1}'}, "not a tokenizer.json of the tokenizers"),
    "no merges": ({"vocab.json": "{}"}, r"a vocab\.json needs its merges\.txt beside it"),
    "no vocabulary": ({"merges.txt": MERGES}, "no unknown token among its 3 lines"),
    "a list": ({"vocab.json": "[1]", "merges.txt": ""}, "expected an object of token to id"),
    "text as id": ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, "expected an object of token"),
    "no index": ({"vocab.json": '{"a": -1}', "merges.txt": ""}, "object of token to id: .*small"),
    "half a character": ({"vocab.json": '{"\\ud800": 0}', "merges.txt": ""}, "surrogates"),
    "a huge number": ({"tokenizer.json": "9" * 5000}, "not JSON that can be read: Exceeds"),
    "same id": ({"vocab.json": '{"a": 0, "b": 0}', "merges.txt": ""}, "found others up to 0"),
    "a gap": ({"vocab.json": '{"a": 0, "b": 2}', "merges.txt": ""}, "tokens, found others up to 2"),
    "one piece": (
        {"vocab.json": json.dumps(VOCAB_JSON), "merges.txt": "#version: 0.2\na b\nab\n"},
        r"merges\.txt line 3: expected two tokens of vocab\.json.*, found 'ab'",
    ),
    "unknown piece": (
        {"vocab.json": json.dumps(VOCAB_JSON), "merges.txt": "#version: 0.2\na Ġ\n"},
        r"merges\.txt line 2: expected two tokens .* that are one together, found 'a Ġ'",
    ),
    "slow pattern": ({"tokenizer.json": split_at(r"(a+)+b").to_str()}, r"\+b' may take for ever"),
    "deep": ({"tokenizer.json": "[" * 100_000}, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_name_and_line(name: str, tmp_path: Path) -> None:
    files, message = BAD[name]
    for file, text in files.items():
        written(tmp_path / "v" / file, text)
    with pytest.raises(DataError, match=message) as caught:
        read_tokenizer(config(tmp_path / "v"))
    assert str(caught.value).startswith("tokenizer.path: ")
    assert str(tmp_path) in str(caught.value)


GPT2 = r"'s|'t|'re| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?])]+"
DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)"
HARMLESS = [
    GPT2,
    GPT4,
    BLOOM,
    DIGITS,
    r"(?>a+)+b",
    r"(a++)+b",
    r"\(a+\)+",
    r"[]a)]+(b)+",
    "([a-z]+){2}",
    *(
        r"(?:foo|bar)+",
        r"(?:\p{L}\p{M}*)+",
        r"(?:[a-z]+-)*[a-z]+",
        r"(?:ab?)+c",
        r"\d+(?:[.,]\d+)*",
    ),
    *(r"(?:a?)+b", r"(?:(?:a+)b?)+", r"(?<n>a*)*"),  # which the library makes simpler
]
SLOW = [
    *(r"(a+)+b", r"(a|a)*b", r"(a|aa)+$", r"(\w+\s?)*$", r"((ab)*)*c", r"(x{1,3})*y"),
    *(r"(a+)(?#c)+b", r"x(a+)+b", r"\d\d:(a+)+b", r"(\w|\d)+!", r"(?:foo|foo)+bar"),
    *(r"([ab]+){10}c", r"(\p{L}+)+\d", r"(\p{L}+ ?)+\.", r"(?:aa|aaa)+b", r"^(([a-z])+.)+[A-Z]$"),
]


@pytest.mark.parametrize("pattern", HARMLESS + SLOW)
def test_a_pattern_that_may_take_for_ever_is_refused(tmp_path: Path, pattern: str) -> None:
    """Patterns of published tokenizers, and the usual examples of catastrophic backtracking."""
    written(tmp_path / "tokenizer.json", split_at(pattern).to_str())
    for read in (
        lambda: read_tokenizer(config(tmp_path)),
        lambda: load_tokenizer(Folder.at(tmp_path)),
    ):
        if pattern in SLOW:
            with pytest.raises(DataError, match="may take for ever"):
                read()
        else:
            read().encode("a" * 40 + " 1234 .")


def test_a_vocabulary_is_known_by_its_bytes_and_not_by_its_place(tmp_path: Path) -> None:
    here, there = (written(tmp_path / name / "vocab.txt", VOCAB_TXT) for name in "ab")
    assert (
        input_digests(config(here))
        == input_digests(config(there))
        == input_digests(config(there.parent))
    )
    assert identity(config(here)) == identity(config(there))
    assert "path" not in identity(config(here))
    assert identity(config(here)) != identity(config(here, lowercase=False))
    written(there, VOCAB_TXT + "more\n")
    assert input_digests(config(here)) != input_digests(config(there))
    folder = gpt2_folder(tmp_path / "gpt2")
    before = input_digests(config(folder))
    written(folder / "merges.txt", MERGES + "\n")
    assert input_digests(config(folder)) != before


def test_the_stage_saves_a_foreign_vocabulary_and_measures_it(tmp_path: Path) -> None:
    corpus = corpus_of_sentences(tmp_path / "c", ["playing, playing", "play"])
    output = Folder.at(tmp_path / "t")
    path = written(tmp_path / "v" / "vocab.txt", VOCAB_TXT)
    summary = train_tokenizer(config(path), {"corpus": corpus}, output, Context())
    assert load_tokenizer(output).get_vocab() == read_tokenizer(config(path)).get_vocab()
    assert summary.kind == "file"
    assert summary.vocab_size == 8
    assert summary.special.ids == (0, 1, 2, 3, 4)
    assert summary.sample_characters == 0
    assert summary.tokens_per_word == pytest.approx(6 / 3)
    assert summary.unknown_rate == 0
