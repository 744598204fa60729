"""The embedded corpus: which modules are read, that nothing of them is run, and prose of them."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.errors import ConfigError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers import pydocs
from rungwise.corpus.readers.pydocs import prose

KEY = "corpus.sources.0.packages"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package whose import would fail the test."""
    root = tmp_path / "rungwise_example"
    (root / "tests").mkdir(parents=True)
    (root / "_vendor").mkdir()
    (root / "inner").mkdir()
    (root / "__init__.py").write_text('"""The example library."""\nraise SystemExit(9)\n')
    (root / "inner" / "__init__.py").write_text("")
    (root / "inner" / "module.py").write_text(
        '"""A module of it."""\n'
        "import does_not_exist\n"
        "class Thing:\n"
        '    """A thing that is useful."""\n'
        "    def method(self):\n"
        '        """Do what is asked."""\n'
        "        def nested():\n"
        '            """Help with what is asked."""\n'
        '    """Not a docstring at all."""\n'
        "if True:\n"
        "    async def function():\n"
        '        """Wait for the thing."""\n'
        "def again():\n"
        '    """Do what is asked."""\n'
    )
    (root / "broken.py").write_text('"""Not Python."""\ndef (\n')
    for folder in ("tests", "_vendor"):
        (root / folder / "left_out.py").write_text('"""Nobody reads this."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    return root.name


def test_documents_are_modules_in_source_order(library: str) -> None:
    modules = pydocs.list_modules([library], KEY)
    assert [pydocs.module_name(module) for module in modules] == [
        library,
        f"{library}.broken",
        f"{library}.inner",
        f"{library}.inner.module",
    ]
    drafts = list(pydocs.read_modules(modules, KEY))
    assert library not in sys.modules
    assert {draft.label for draft in drafts} == {library}
    assert drafts[0].paragraphs == ["The example library."]
    assert drafts[1].paragraphs == []
    assert drafts[3].paragraphs == [
        "A module of it.",
        "A thing that is useful.",
        "Do what is asked.",
        "Help with what is asked.",
        "Wait for the thing.",
    ]


def test_standard_library_and_the_language_reference() -> None:
    modules = pydocs.list_modules(["stdlib"], KEY)
    by_name = {pydocs.module_name(module): module for module in modules}
    names = set(by_name)
    assert {"json", "json.decoder", "asyncio.tasks", "pydoc_data.topics"} <= names
    assert not [name for name in names if "site-packages" in name or name.startswith("test.")]
    chosen = [by_name["textwrap"], by_name["pydoc_data.topics"]]
    drafts = {draft.id: draft for draft in pydocs.read_modules(chosen, KEY)}
    assert {draft.label for draft in drafts.values()} == {"python"}
    assert drafts["textwrap"].paragraphs[0] == "Text wrapping and filling."
    assertion = " ".join(drafts["pydoc_data.topics.assert"].paragraphs)
    assert "insert debugging assertions into a program" in assertion
    assert "assert_stmt" not in assertion


def test_versions_stand_for_the_texts() -> None:
    found = pydocs.package_versions(["stdlib", "sklearn"], KEY)
    assert found == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": {"sklearn": f"scikit-learn {importlib.metadata.version('scikit-learn')}"},
    }


def test_default_packages_are_all_installed_and_come_with_rungwise() -> None:
    pydocs.package_versions(pydocs.DEFAULT_PACKAGES, KEY)
    assert not {"transformers", "moto", "pytest", "hypothesis"} & set(pydocs.DEFAULT_PACKAGES)


@pytest.mark.parametrize(
    ("package", "message"),
    [("no_such_package", "is not installed; install it or drop it"), ("sys", "no Python files")],
)
def test_a_package_that_cannot_be_read_is_refused(package: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        pydocs.package_versions([package], KEY)
    assert str(caught.value).startswith(f"{KEY}: the package '{package}'")


def test_another_version_on_a_worker_is_named() -> None:
    gone = SourceFile("json", "gone.py", 1)
    with pytest.raises(ConfigError, match=r"gone\.py of json is not on every machine"):
        list(pydocs.read_modules([gone], KEY))


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
