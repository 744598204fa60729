"""Unicode clean-up: hand-worked cases, and what must hold of any text."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.corpus.cleaning.characters import DOCUMENT, PARAGRAPH, Cleaned, clean, clean_all

ANY_TEXT = st.text(alphabet=st.characters())
_MESSY = (
    "aé \t\r\n\x00\x1b\x7f\x85\x9f\u00a0\u00ad\u0301\u0338\u200b\u200c\u200d\u2028\u202e\u2060"
    "\u3000\ufeff\ufffd\u212a\ud800中می"
)
MESSY_TEXT = st.lists(st.sampled_from([*_MESSY, "<br", "<BR", "/>", ">"])).map("".join)


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("plain text stays", "plain text stays"),
        ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
        ("nai\u0308ve", "na\u00efve"),
        ("\ufeffsoft\u00adhyphen zero\u200bwidth", "softhyphen zerowidth"),
        ("no\u00a0break\u3000wide \t tab", "no break wide tab"),
        ("  indented \n\t lines \n", "indented\nlines"),
        ("a film. <br /><br />Its end<BR>is<br/>\u00e9", "a film.\n\nIts end\nis\n\u00e9"),
        ("a <br\nb> <b> < br> <brown>", "a <br\nb> <b> < br> <brown>"),
        ("\u202eright to left\u202c", "right to left"),
        # Persian spells with the non-joiner; between ASCII letters it is noise.
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("a\u200cb", "ab"),
        # Taking the joiner out brings letter and accent together.
        ("e\u200d\u0301", "\u00e9"),
    ],
)
def test_cases(dirty: str, expected: str) -> None:
    assert clean(dirty) == Cleaned(expected, removed=0, replaced=0)


def test_what_cannot_be_read_is_counted() -> None:
    assert clean("a\x00b\x1b\ud800c\x90") == Cleaned("abc", removed=4, replaced=0)
    assert clean("lost \ufffd\ufffd here") == Cleaned(
        "lost \ufffd\ufffd here", removed=0, replaced=2
    )


@given(ANY_TEXT | MESSY_TEXT)
def test_clean_text_is_clean(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned.text) == (cleaned.text, 0, cleaned.replaced)
    assert unicodedata.is_normalized("NFC", cleaned.text)
    assert "  " not in cleaned.text
    assert cleaned.text == cleaned.text.strip()
    cleaned.text.encode("utf-8")
    controls = [c for c in cleaned.text if unicodedata.category(c) == "Cc"]
    assert set(controls) <= {"\n"}


@given(st.lists(st.lists(MESSY_TEXT, min_size=1, max_size=3), max_size=4))
def test_many_at_once_are_cleaned_as_each_alone(documents: list[list[str]]) -> None:
    # A line break made of two characters with one between them that goes is two line breaks here.
    documents = [[text.replace("\r", "") for text in texts] for texts in documents]
    cleaned = clean_all(documents)
    alone = [[clean(text) for text in several] for several in documents]
    texts = [one.split(PARAGRAPH) for one in cleaned.text.split(DOCUMENT)] if documents else []
    assert [[text.strip("\n") for text in several] for several in texts] == [
        [one.text for one in several] for several in alone
    ]
    assert cleaned.removed == sum(one.removed for several in alone for one in several)
    assert cleaned.replaced == sum(one.replaced for several in alone for one in several)
