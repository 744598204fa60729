"""What the documentation tells a reader to type: it parses, and its recipes, keys, files exist.

tests/ray/test_first_day.py runs the commands of a first day.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rungwise.__main__ import _parsed, _parser
from rungwise.core.config import flatten, types_at
from rungwise.core.errors import ConfigError
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import load_recipe, plan, stages_of
from tests.conftest import REPOSITORY, write_corpus

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "infra/terraform/README.md")),
    *sorted((REPOSITORY / "docs").glob("**/*.md")),
    *sorted((REPOSITORY / "dashboards").glob("*.md")),
]
GENERATED = REPOSITORY / "docs" / "reference" / "recipe.md"  # a test of its own asks if it agrees
# Programs whose commands are not followed further, and why.
ELSEWHERE = {
    **dict.fromkeys(("terraform", "aws", "jq", "eval"), "need an AWS account"),
    **dict.fromkeys(("docker", "kubectl", "helm"), "need a daemon or a cluster; tests/infra"),
    **dict.fromkeys(("apt-get", "../../../package.sh"), "change the machine"),
    **dict.fromkeys(("export", "echo", "some-source"), "stand for a shell's or a reader's own"),
}
# First words of blocks that are no commands: what is printed, figures, formulas.
PRINTED = {"cluster", "stopped", "next", "pretrain", "general", "shards", "corpus", "core"}


class Block(NamedTuple):
    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


class Command(NamedTuple):
    block: Block
    words: list[str]

    def __str__(self) -> str:
        return f"{self.block} {' '.join(self.words)}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Stretches of lines that are indented by four blanks, below a blank line."""
    for found in re.finditer(r"(?:\n|\A)\n((?:(?:    .*)?\n)+)", page.read_text() + "\n"):
        text = textwrap.dedent(found[1]).strip("\n")
        if text and not re.match(r"[-|*\d]", text):
            yield Block(page, page.read_text()[: found.start(1)].count("\n") + 1, text)


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a block of shell, without variables that are set before them."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(re.sub(r"[<]", "", line), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if word not in ("|", "&&", ";"):
                command += [word] * bool(command or not re.match(r"[A-Z_]+=", word))
            elif command:
                command[0] = command[0].removeprefix(".venv/bin/")
                yield Command(block, command)
                command = []


BLOCKS = [block for page in PAGES if page != GENERATED for block in blocks_of(page)]
SHELL = {"rungwise", "python", "make", "ray", "cd", "mkdir", "pip", "DATA", "ENGLISH", *ELSEWHERE}


def first_word(block: Block) -> str:
    word = re.match(r"(?:[A-Z_]+=\S* +)?([\w./-]*)", block.text)
    return word[1].removeprefix(".venv/bin/") if word else ""


def is_commands(block: Block) -> bool:
    return first_word(block) in SHELL and "WORKFLOW CONFIG" not in block.text


COMMANDS = [each for block in filter(is_commands, BLOCKS) for each in commands_of(block)]
PARSER, VERBS = _parser()


def options_of(verb: str) -> set[str]:
    """The options that a verb has."""
    (subparsers,) = (
        action.choices for action in PARSER._actions if isinstance(action, argparse._SubParsersAction)
    )
    return set(subparsers[verb]._option_string_actions)


def is_key(path: str) -> bool:
    return bool(types_at(Recipe, path.split(".")))


@pytest.fixture
def a_reader_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader types: the repository's workflows, text, and recipes that pages lead to."""
    (tmp_path / "workflows").symlink_to(REPOSITORY / "workflows")
    write_corpus(tmp_path / "books", documents=6)
    monkeypatch.chdir(tmp_path)
    return tmp_path
