"""Docstrings as prose: one hand-worked case for each thing people write in them."""

from inspect import cleandoc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.corpus.readers.docstrings import prose

CASES = {
    "paragraphs are joined lines": (
        """
        Shift an array
        by a step.

        The input is filled at its borders.
        """,
        ["Shift an array by a step.", "The input is filled at its borders."],
    ),
    "numpy parameters lose their types": (
        """
        Shift it all.

        Parameters
        ----------
        axis : int or tuple, optional
            The axis to shift
            along.
        copy : bool

        Raises
        ------
        ValueError
            If the axis is negative.
        """,
        ["Shift it all.", "axis: The axis to shift along.", "ValueError: If the axis is negative."],
    ),
    "google parameters": (
        """
        Args:
            size (int, optional): The size of
                the thing. Default: ``3``.
            name: What it is called.

        Returns:
            The thing itself.
        """,
        ["size: The size of the thing. Default: 3.\nname: What it is called.", "The thing itself."],
    ),
    "sphinx fields": (
        """
        :param str name: what it is called
        :type name: str
        :return: the thing itself
        :rtype: Thing
        """,
        ["name: what it is called\nthe thing itself"],
    ),
    "doctests and what they print go": (
        """
        Before the code.

        >>> for x in y:
        ...     print(x)
        some printed words here

        After the code.
        """,
        ["Before the code.", "After the code."],
    ),
    "literal blocks, code directives and fences go": (
        """
        An example follows::

            some words of code = here

        .. code-block:: python
           :linenos:

           more words of code here

        ```python
        yet more words of code here
        ```

        That was the example.
        """,
        ["An example follows:", "That was the example."],
    ),
    "admonitions stay": (
        """
        .. note:: This is slow.

        .. versionadded:: 1.2
            It can be faster now.

        .. autosummary::
            one two three
        """,
        ["This is slow.", "It can be faster now."],
    ),
    "titles lose their lines": (
        """
        ==============
        Reading things
        ==============
        Things are read here.
        """,
        ["Reading things\nThings are read here."],
    ),
    "tables go": (
        """
        ====== =======
        a word another
        ====== =======
        of the table
        ====== =======

        +------+------+
        | some | text |
        +------+------+

        What stays.
        """,
        ["What stays."],
    ),
    "list items are sentences": (
        """
        * the first item of
          the list
        * the second item

        1. the third item
        """,
        ["the first item of the list\nthe second item", "the third item"],
    ),
    "inline markup": (
        "See :func:`~os.path.join`, :class:`the title <pkg.Thing>`, ``a literal``, `a link <x>`_, "
        "*one* and **two words** of [text](http://y), but *args and 2**3 stay [1]_.",
        [
            "See join, the title, a literal, a link, one and two words of text, but *args and 2**3 "
            "stay."
        ],
    ),
    "what is not words goes": (
        """
        x = f(y)[0] + 3

        {'a': 1, 'b': [2, 3]}

        https://example.com/a/b

        Two words.
        """,
        ["Two words."],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    docstring, expected = CASES[name]
    assert prose(cleandoc(docstring)) == expected


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
