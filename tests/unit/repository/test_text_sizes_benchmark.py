"""The benchmark of more text: parts of the recipe, and its held-out text."""

from pathlib import Path

from benchmarks import texts
from benchmarks.text_sizes import WHOLE, read_part, suggest_vectors, write_held_out
from rungwise.corpus.document import RawDocument


def test_a_part_takes_the_same_share_of_every_source() -> None:
    whole, part = (read_part(millions, ["word2vec", "gpt"], ()) for millions in (WHOLE, 1.0))
    assert list(part.variants) == ["word2vec", "gpt"]
    assert whole.corpus
    assert part.corpus
    for larger, smaller in zip(whole.corpus.sources, part.corpus.sources, strict=True):
        assert smaller.share == larger.share / 10
    passes = [
        suggest_vectors(part, words).variants["word2vec"]["pretrain.epochs"]
        for words in (1_000_000, 10_000_000)
    ]
    assert passes[0] > passes[1]


def test_held_out_documents_are_lines(tmp_path: Path) -> None:
    sentences = [
        f"Sentence {number} has its own number in it, and is long." for number in range(40)
    ]
    documents = [
        RawDocument(str(n), "x", (one, "A second one.")) for n, one in enumerate(sentences)
    ]
    corpus, file = texts.write_corpus(documents, tmp_path), tmp_path / "held-out.txt"
    write_held_out(corpus, file)
    lines = file.read_text().splitlines()
    assert len(lines) > 4
    assert {*lines} < {f"{one} A second one." for one in sentences}
