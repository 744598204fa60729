"""Docstrings as prose: one hand-worked case for each thing people write in them."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rungwise.corpus.readers.pydocs import prose

CASES = yaml.safe_load(Path(__file__).with_name("docstrings.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    assert prose(CASES[name]["docstring"]) == CASES[name]["prose"]


LINES = st.sampled_from(
    """Some words here.

>>> x
...
----
====  ===
name : int
    indented text
::
.. note::
.. code::
```
* item
:param x: y
Args:
    x (int): y z
+--+--+
if a:""".splitlines()
)


@given(st.text() | st.lists(LINES).map("\n".join))
def test_any_docstring_has_prose_without_blank_sentences(docstring: str) -> None:
    for paragraph in prose(docstring):
        assert all(sentence.strip() == sentence and sentence for sentence in paragraph.split("\n"))
