r"""The built-in corpus: docstrings of the standard library and of packages, and the topics of the
language reference, read with `ast`. They become English prose, without code, tables and markup:

    prose("Shift it.\n\nParameters\n----------\naxis : int\n    The `axis`.\n\n>>> shift(x)")
        == ["Shift it.", "axis: The axis."]

A line break in a paragraph ends a sentence."""

import ast
import functools
import gc
import importlib.metadata
import importlib.util
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rungwise.core.errors import ConfigError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.document import RawDocument

# Directives that contain prose; all others contain code, tables or lists of names.
_PROSE_DIRECTIVE = re.compile(
    r"note|warning|version\w+|deprecated(?:-removed)?|seealso|admonition|tip|caution|important|hint|"
    r"attention|danger|error|topic|epigraph"
)
_SECTION_NAME = re.compile(
    r"(?:(?:other |keyword )?(?:parameters|arguments|args)|returns?|yields?|receives|raises|warns|"
    r"warnings?|see also|notes?|references|examples?|attributes|methods|kwargs|usage|todo|synopsis)"
    r"\s?:?",
    re.IGNORECASE,
)
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_<>])\1{2,}$")
_TABLE_BORDER = re.compile(r"(?:[=\-]{2,}(?:\s+[=\-]{2,})+|\+[-=+]{3,}|\|.*\||[│┌├└─].*)$")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\|[^|]+\|\s+)?([\w:.-]+?)::(?:\s+(.*))?$")
_FOOTNOTE = re.compile(r"\.\.\s+\[[^\]]+\]\s+(.*)$")
_OPTION = re.compile(r":[\w-]+:(?:\s.*)?$")
_FENCE = re.compile(r"(?:```|~~~)")
_BULLET = re.compile(r"(?:[*+•\-]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:(?:\s+(.*))?$")
_NUMPY_PARAMETER = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: :(?: .*)?|:|)$")
_GOOGLE_PARAMETER = re.compile(r"(\*{0,2}\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*:\s+(?=\S)")
_TEMPLATE = re.compile(r"[%{$]\(?\w*[)}]?s?$")
_CODE = re.compile(
    r"(?:def|class|import|from|return|async|await|assert|raise|print|@\w+|\$|%|#!|<\w|</|pip|cmake)\b"
    r".*[()=;:<>.]|(?:if|elif|else|for|while|with|try|except|finally)\b.*:$|.*::=|\w[\w.\[\]]*\s*=\s|[A-Za-z_][\w.]*\([^)]*\)\s*$|[\]})]"
)

_ROLE = re.compile(r":[\w:+.-]+:`([^`]+)`")
_LINK = re.compile(r"`([^`<]*?)\s*<[^`>]+>`_{0,2}")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]+)\]\((?:https?:)?[^()\s]+\)")
_LITERAL = re.compile(r"(`{1,3})([^`]+)\1_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\w)([^*]{1,200}?)(?<=[\w.!?)])\1(?![\w*])")
_REFERENCE = re.compile(r"\s*\[[#\w-]{0,20}\]_")
# TeX commands that only format; the names of all others are kept.
_TEX_SHAPES = re.compile(
    r"\\(?:mathtt|mathrm|mathbf|mathcal|mathbb|mathit|text\w*|operatorname|boldsymbol|bm|left|right|"
    r"[dt]?frac|[bB]igg?[lr]?|q?quad|limits|displaystyle|[^a-zA-Z])|[{}$\\]"
)
# Prefixes that Sphinx uses to look a name up and does not print.
_RELATIVE = re.compile(r"^(?:!|\.|_[a-z]+\.(?=[A-Za-z]))")
_WORD = re.compile(r"[^\W\d_]{2,}")
_NOT_PROSE = re.compile(r"[^\w\s.,;:!?'\"()-]|_|\d")
_MOST_SYMBOLS = 0.12


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring (dedented by `inspect.cleandoc`), none empty."""
    paragraphs = []
    for block in _blocks(docstring.split("\n")):
        sentences = [sentence for line in _logical_lines(block) if (sentence := _readable(line))]
        if sentences:
            paragraphs.append("\n".join(sentences))
    return paragraphs


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    deeper_than: int | None = None  # skip what is indented more than this
    until_blank = False
    in_fence = False
    for line in lines:
        stripped = line.strip()
        if in_fence:
            in_fence = not _FENCE.match(stripped)
            continue
        if not stripped:
            until_blank = False
            if block:
                yield block
                block = []
            continue
        indent = len(line) - len(line.lstrip())
        if deeper_than is not None:
            if indent > deeper_than:
                continue
            deeper_than = None
        if until_blank:
            continue
        if _FENCE.match(stripped):
            # A fence may open and close in one line.
            in_fence = not _FENCE.search(stripped[3:])
        elif stripped.startswith((">>>", "In [")):
            until_blank = True
        elif directive := _DIRECTIVE.match(stripped):
            if _PROSE_DIRECTIVE.fullmatch(directive[1]):
                argument = directive[2] or ""
                if "versio" in directive[1]:
                    # "versionadded:: 1.2" alone says nothing; the text after the number does.
                    argument = re.sub(r"^[\d.]+\s*", "", argument)
                if argument:
                    block.append(" " * indent + argument)
            else:
                deeper_than = indent
        elif footnote := _FOOTNOTE.match(stripped):
            block.append(" " * indent + "- " + footnote[1])
        elif stripped.startswith(".. ") or stripped == "..":
            deeper_than = indent
        elif stripped.endswith("::"):
            if len(stripped) > 2:
                block.append(line.rstrip()[:-1])
            deeper_than = indent
        elif not _OPTION.match(stripped) or _SPHINX_FIELD.match(stripped):
            block.append(line)
    if block:
        yield block


def _logical_lines(block: list[str]) -> Iterator[str]:
    """Join wrapped lines; yield list items and parameters apart."""
    if any(_TABLE_BORDER.match(line.strip()) for line in block):
        return
    pieces: list[str] = []
    indents = [len(line) - len(line.lstrip()) for line in block]
    for index, line in enumerate(block):
        text = line.strip()
        # The line above an underline was a title.
        if _UNDERLINE.match(text) or _SECTION_NAME.fullmatch(text) or _TEMPLATE.match(text):
            yield " ".join(pieces)
            pieces = []
            continue
        deeper_follows = index + 1 < len(block) and indents[index + 1] > indents[index]
        opened = _opening(text, deeper_follows)
        if (
            opened is not None
            or _CODE.match(text)
            or (index and indents[index] < indents[index - 1])
        ):
            yield " ".join(pieces)
            pieces = []
        if opened != "":
            pieces.append(text if opened is None else opened)
    yield " ".join(pieces)


def _opening(text: str, deeper_follows: bool) -> str | None:
    """Return the text of a line that opens an item, field or parameter ("" drops it), or None."""
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
    elif field := _SPHINX_FIELD.match(text):
        kind, name, description = field[1], field[2] or "", field[3] or ""
        if kind in ("type", "rtype") or not description:
            return ""
        return f"{name.split()[-1]}: {description}" if name.strip() else description
    if parameter := _GOOGLE_PARAMETER.match(text):
        return f"{parameter[1].lstrip('*')}: {text[parameter.end() :]}"
    if bullet:
        return text
    if parameter := _NUMPY_PARAMETER.match(text):
        # The type after the colon is not English; without a description, drop the line.
        if deeper_follows:
            return f"{parameter[1].lstrip('*')}:"
        if " :" in text:
            return ""
    if re.match(r"\*{0,2}\w+: \S", text):
        return text.lstrip("*")
    return None


def _readable(line: str) -> str:
    """Strip inline markup; return "" if the rest is not words."""
    text = line
    if "`" in text:
        text = _ROLE.sub(lambda role: _title_or_name(role[1]), text)
        text = _LINK.sub(r"\1", text)
        text = _LITERAL.sub(lambda literal: _title_or_name(literal[2]), text)
    if "](" in text:
        text = _MARKDOWN_LINK.sub(r"\1", text)
    if "*" in text:
        text = _EMPHASIS.sub(r"\2", text)
    if "]_" in text:
        text = _REFERENCE.sub("", text)
    text = " ".join(text.split())
    words = _WORD.findall(text)
    if len(words) < 2 or _CODE.match(text):
        return ""
    symbols = sum(map(len, _NOT_PROSE.findall(text)))
    return text if symbols <= _MOST_SYMBOLS * len(text) else ""


def _title_or_name(target: str) -> str:
    """`Title <pkg.Class>` -> Title, `~pkg.Class` -> Class, TeX without braces and backslashes."""
    if target.endswith(">") and "<" in target:
        target = target[: target.rindex("<")].strip() or target[target.rindex("<") + 1 : -1]
    if target.startswith("~"):
        return target.rpartition(".")[2].lstrip("~")
    if "\\" in target:
        return " ".join(_TEX_SHAPES.sub(" ", target).split())
    return _RELATIVE.sub("", target)


STDLIB = "stdlib"
STDLIB_LABEL = "python"

# All are installed with rungwise; the dependencies of tests are left out.
_PACKAGES = (
    "torch ray scipy sympy sklearn pandas mlflow sqlalchemy networkx numpy matplotlib "
    "huggingface_hub pydantic mpmath pyarrow aiohttp fsspec rich"
)
DEFAULT_PACKAGES = (STDLIB, *_PACKAGES.split())

# Folders of tests, or of copies of other packages.
_SKIPPED_FOLDER = re.compile(
    r"tests?|testing|idle_test|site-packages|dist-packages|__pycache__|_?vendor|_?vendored|externals?|extern|"
    r"third_party|thirdparty|thirdparty_files|node_modules"
)
_TOPICS = "pydoc_data/topics.py"
# What is installed is listed once, which takes a second; each version is a file to read.
_distributions = functools.cache(importlib.metadata.packages_distributions)
_version = functools.cache(importlib.metadata.version)
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_name(module: SourceFile) -> str:
    """Return the name by which Python imports a module; its file is `name` in the package `uri`."""
    parts = module.name.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if module.uri == STDLIB else [module.uri, *parts])


def package_versions(packages: Iterable[str], key: str) -> dict[str, Any]:
    """Return the versions of Python and of each package: they identify the documentation."""
    by_package: dict[str, str] = {}
    for package in packages:
        if package == STDLIB:
            continue
        _folders(package, key)
        names = sorted(set(_distributions().get(package, ())))
        by_package[package] = ", ".join(f"{name} {_version(name)}" for name in names)
    return {"python": platform.python_version(), "packages": by_package}


def list_modules(packages: Iterable[str], key: str) -> list[SourceFile]:
    """Return the modules to read, sorted; raises ConfigError if a package is not installed."""
    distinct: dict[SourceFile, None] = {}
    for package in packages:
        for folder in _folders(package, key):
            paths = [folder] if folder.is_file() else sorted(_python_files(folder))
            root = folder.parent if folder.is_file() else folder
            for path in paths:
                relative = path.relative_to(root).as_posix()
                distinct[SourceFile(package, relative, path.stat().st_size)] = None
    return list(distinct)


def read_modules(modules: Iterable[SourceFile], key: str) -> Iterator[RawDocument]:
    """Yield a document per module (or topic), its paragraphs the docstrings in source order. A
    paragraph that a module repeats (generated methods, shared parameters) is kept once."""
    # A syntax tree holds no garbage, and looking for it doubles the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            name = module_name(module)
            label = STDLIB_LABEL if module.uri == STDLIB else module.uri
            source = _find(module, key).read_bytes()
            if module.uri == STDLIB and module.name == _TOPICS:
                for topic, text in _topics(source).items():
                    yield RawDocument(f"{name}.{topic}", label, _distinct([text]))
            else:
                yield RawDocument(name, label, _distinct(docstrings(source)))
    finally:
        if collecting:
            gc.enable()


def docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a module in order; none if this Python cannot parse it."""
    if b'"""' not in source and b"'''" not in source:
        return []
    with warnings.catch_warnings():
        # Invalid escapes in other people's source.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return []
    texts: list[str] = []
    _collect(tree, texts)
    return texts


def _collect(node: ast.AST, texts: list[str]) -> None:
    if isinstance(node, _SCOPES) and (text := ast.get_docstring(node)) is not None:
        texts.append(text)
    for name in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt | ast.ExceptHandler) and not isinstance(child, ast.Expr):
                _collect(child, texts)


def _topics(source: bytes) -> dict[str, str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return dict(sorted(ast.literal_eval(node.value).items()))
    return {}


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(paragraph for text in texts for paragraph in prose(text)))


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name.isidentifier() and not _SKIPPED_FOLDER.fullmatch(name)
        )
        for name in names:
            if name.endswith(".py") and name.removesuffix(".py").isidentifier():
                yield Path(parent, name)


def _find(module: SourceFile, key: str) -> Path:
    for folder in _folders(module.uri, key):
        path = folder if folder.is_file() else folder / module.name
        if path.exists():
            return path
    raise ConfigError(
        f"{key}: {module.name} of {module.uri} is not on every machine of the cluster; install "
        "the same version everywhere"
    )


@functools.cache
def _folders(package: str, key: str) -> list[Path]:
    """Return the folders (or file) of a package. Finding a top-level package does not import it."""
    if package == STDLIB:
        return [Path(sysconfig.get_path("stdlib"))]
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # of __main__
        spec = None
    if spec is None:
        raise ConfigError(f"{key}: the package {package!r} is not installed; install it or drop it")
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    folders = [Path(place) for place in places if Path(place).exists()]
    if not folders or spec.origin in ("built-in", "frozen"):
        raise ConfigError(f"{key}: the package {package!r} has no Python files to read")
    return folders
