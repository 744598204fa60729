"""What the documentation tells a reader to type: it parses, and its recipes, keys and files exist.

tests/ray/test_first_day.py runs the commands of a first day.
"""

import argparse
import ast
import functools
import importlib.util
import re
import shlex
import string
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rungwise.__main__ import main
from rungwise.commands.parser import make_parser, parse_overrides
from rungwise.core.configuration.config import find_types
from rungwise.pipeline.places import recipe_file
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import load_recipe, make_stages
from tests.conftest import REPOSITORY, write_corpus

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "infra/terraform/README.md")),
    *sorted((REPOSITORY / "docs").glob("**/*.md")),
]
# Programs whose commands are not followed further, and why.
ELSEWHERE = {
    **dict.fromkeys(("terraform", "aws", "jq", "eval"), "need an AWS account; tests/infra"),
    **dict.fromkeys(("docker", "kubectl", "helm"), "need a daemon or a cluster; tests/infra"),
    **dict.fromkeys(("apt-get", "ln", "mkdir", "pip"), "change the machine"),
    **dict.fromkeys(("mlflow", "curl"), "ask servers; tests/ray/test_serve.py"),
    **dict.fromkeys(("sed", "prometheus"), "need `rungwise up`; tests/ray/test_dashboards_live.py"),
    **dict.fromkeys((".", "export", "echo", "some-source"), "are a shell's or a reader's own"),
}
FOLLOWED = {"rungwise", "python", "make", "ray", "cd"}
# What a page writes for something of the reader's, and what stands for it here.
STANDS_FOR = {
    "/path/to/corpora/en": "data/corpora/en",
    "/data/books": "books",
    "~/books": "books",
    "s3://bucket/": "",
    " PYTHON": " python",
    " > ": " ",
    "answers.jsonl": "",
}


class Command(NamedTuple):
    """One command of a page, and the page's text."""

    place: str
    words: list[str]
    page: str


def blocks_of(page: str) -> Iterator[str]:
    """Blocks of code: lines indented by four blanks, below an empty one."""
    for found in re.finditer(r"\n((?:\n(?:    .*)?)+)(?=\n|\Z)", "\n" + page):
        block = textwrap.dedent(found[1]).strip("\n")
        if block:
            yield block


def commands_of(page: Path) -> Iterator[Command]:
    text = page.read_text()
    for block in blocks_of(text):
        first = re.match(r"(?:[A-Z_]+=.*\n)*(?:[A-Z_]+=\S+ )*([\w./-]+)(?: +[^{ ]|$)", block)
        program = first[1].removeprefix(".venv/bin/") if first else ""
        if program not in FOLLOWED | ELSEWHERE.keys() or "WORKFLOW CONFIG" in block:
            continue
        variables: dict[str, str] = {}
        for line in block.replace("\\\n", " ").splitlines():
            for here, there in STANDS_FOR.items():
                line = line.replace(here, there)
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
            words.whitespace_split = True
            command: list[str] = []
            for word in [*words, ";"]:
                word = string.Template(word).safe_substitute(variables)
                name, equals, value = word.partition("=")
                if word in ("|", "&&", ";"):
                    if command:
                        command[0] = command[0].removeprefix(".venv/bin/")
                        place = f"{page.relative_to(REPOSITORY)}: {' '.join(command)}"
                        yield Command(place, command, text)
                    command = []
                elif not command and equals and name.isupper():
                    variables[name] = value
                else:
                    command.append(word)


# A command once, whatever the pages that have it.
COMMANDS = {
    tuple(command.words): command
    for page in PAGES
    for command in commands_of(page)
    if command.words[0] not in ELSEWHERE
}.values()
PARSER, VERBS = make_parser()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader types: the workflows, books, and the recipe that `init` writes of them."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "workflows").symlink_to(REPOSITORY / "workflows")
    write_corpus(folder / "books", documents=6)
    rows = "".join(f"it was {word}, {word} indeed,{word}\n" for word in ("good", "bad") * 20)
    (folder / "reviews.csv").write_text("first,text,label\n" + rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["init", "books", "--labels", "reviews.csv"]) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place[:90])
def test_a_command_of_a_page_can_be_followed(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(folder)
    program, *arguments = command.words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets)
    elif program == "cd":
        assert (REPOSITORY / arguments[0]).is_dir()
    elif program == "ray":
        assert arguments[0] == "job"
        if arguments[1] in ("logs", "stop"):
            return
        assert arguments[1] == "submit"
        program, *arguments = arguments[arguments.index("--") + 1 :]
        if program == "uv":
            follow_rungwise(arguments[arguments.index("rungwise") + 1 :], command.page, request)
        else:
            follow_python(arguments, request)
    elif program == "python":
        follow_python(arguments, request)
    else:
        follow_rungwise(arguments, command.page, request)


def follow_rungwise(arguments: list[str], page: str, request: pytest.FixtureRequest) -> None:
    options = parse_overrides(PARSER, arguments)
    if config := getattr(options, "config", None) or recipe_of(options):
        workflow = getattr(options, "workflow", "pretrain")
        follow_recipe(workflow, config, getattr(options, "overrides", []), page, request)


def recipe_of(options: argparse.Namespace) -> str | None:
    named = getattr(options, "model", None) or getattr(options, "pretrain", None) or ""
    return named if named.endswith(".yaml") else None


def follow_python(arguments: list[str], request: pytest.FixtureRequest) -> None:
    first, *rest = arguments
    if first == "-c":
        ast.parse(rest[0])
    elif first == "-m":
        spec = importlib.util.find_spec(rest[0])
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        missing = {word for word in rest[1:] if word.startswith("--") and f'"{word}"' not in source}
        assert not missing or rest[0] == "pytest"
    else:
        follow_recipe(first, rest[0], rest[1:], "", request)


def follow_recipe(
    workflow: str, config: str, overrides: list[str], page: str, request: pytest.FixtureRequest
) -> None:
    """Make the stages, so that every key, block and path of it is looked at."""
    if config == "adapt.yaml":  # the page has it; its weights are the reader's
        [block] = [each for each in blocks_of(page) if each.startswith("name: adapted")]
        assert strange_keys(yaml.safe_load(block)) == []
        return
    recipe = load_recipe(config, overrides)
    text = recipe.model_dump_json()
    if '"data/' in text and not Path("data").exists():
        Path("data").symlink_to(request.getfixturevalue("real_data"))
    if "s3://BUCKET" not in text:  # else its text is the reader's
        stages(Path(workflow).stem, str(recipe_file(config)), tuple(overrides))


@functools.cache
def stages(workflow: str, config: str, overrides: tuple[str, ...]) -> None:
    """Make them once, however many commands are of them: some read all packages' texts."""
    assert make_stages(workflow, load_recipe(config, overrides))


def strange_keys(value: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Dotted keys, of nested mappings of a recipe, that no recipe has."""
    if isinstance(value, list):
        return [key for each in value for key in strange_keys(each, (*path, "0"))]
    if not isinstance(value, dict):
        return [] if find_types(Recipe, path) else [".".join(path)]
    found = []
    for key, below in value.items():
        parts = tuple(str(key).split("."))
        if path in (("sweep", "space"), ("search", "space")):
            found += strange_keys(None, parts)
        else:
            of_variant = path[:1] == ("variants",) and len(path) == 2
            found += strange_keys(below, parts if of_variant else (*path, *parts))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_keys_and_verbs_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    typed = re.findall(r"^    (?:\.venv/bin/)?rungwise (?!.*(?:\b[A-Z]{3,}\b|, ))", text, re.M)
    assert len(typed) <= sum(each.words[0] == "rungwise" for each in commands_of(page))
    blocks = "|".join(Recipe.model_fields)
    dotted = re.findall(rf"[`' ]((?:{blocks})(?:\.\w+)+)\b(?![/(])", text)
    files = {"yaml", "json", "jsonl", "md", "py", "safetensors", "parquet", "txt", "csv", "html"}
    keys = {key for key in dotted if key.rpartition(".")[2] not in files}
    keys = {re.sub(r"^variants\.\w+\.", "", key) for key in keys}  # a variant's own key
    assert {key for key in keys if not find_types(Recipe, key.split("."))} == set()
    for block in blocks_of(text):
        if re.match(rf"(?:{blocks}): *[{{\n]", block):
            value = yaml.safe_load(re.sub(r"\{\.\.\.\}|\.\.\.", "null", block.replace(", ...", "")))
            assert strange_keys(value) == []
    [subparsers] = [each for each in PARSER._actions if isinstance(each.choices, dict)]
    verbs: Any = subparsers.choices
    for verb, rest in re.findall(r"`rungwise ([a-z-]+)([^`]*)`", text):
        assert verb in VERBS
        flags = set(re.findall(r"--[a-z-]+", rest))
        assert flags <= set(verbs[verb]._option_string_actions), f"rungwise {verb}{rest}"


def test_the_page_of_commands_lists_every_verb_and_its_options() -> None:
    page = (REPOSITORY / "docs" / "reference" / "commands.md").read_text()
    [listed] = [block for block in blocks_of(page) if "WORKFLOW" in block]
    [subparsers] = [each for each in PARSER._actions if isinstance(each.choices, dict)]
    verbs: Any = subparsers.choices
    told = set()
    column = listed.index("look at text")  # where what a verb does begins
    for line in listed.splitlines():
        usage = line.removeprefix("rungwise ")[: column - len("rungwise ")]
        names = re.findall(r"(?<![\w-])[a-z-]{2,}", re.sub(r"\[.*?\]|--\S+", "", usage))
        told |= set(names)
        options = {flag for name in names for flag in verbs[name]._option_string_actions}
        assert set(re.findall(r"--[a-z-]+", line)) <= options, line
    assert told == set(VERBS)
