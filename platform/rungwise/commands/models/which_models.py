"""`rungwise which-models --source NAME | --document ID`: list the models that read it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rungwise.commands.arguments import Commands, add_verb

if TYPE_CHECKING:
    from rungwise.core.stages.artifact import Artifact

_MODELS = ("pretrain", "evaluate", "register")


def add(commands: Commands) -> None:
    parser = add_verb(commands, which_models, "list the models that read a source or a document")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--source", metavar="NAME", help="a source's name, path or kind")
    what.add_argument("--document", metavar="ID", help="a document's id in a corpus")
    parser.add_argument("--root", default="artifacts", help="root of the artifacts")


def which_models(options: argparse.Namespace) -> None:
    """Print each corpus that holds the text and the models built from that corpus. Raises UserError
    if no corpus does."""
    from rungwise.core.console import plain_console
    from rungwise.core.errors import UserError
    from rungwise.core.stages import artifact as artifacts
    from rungwise.corpus.summary import CORPORA
    from rungwise.pipeline.places import root_folder

    say = plain_console().print
    root = root_folder(options.root)
    existing = artifacts.below(root)
    corpora = [each for each in existing if each.stage in CORPORA]
    places = [_find_place(each, options) for each in corpora]
    if not corpora:
        raise UserError(f"there is no corpus below {root.uri}; give the root of a run with --root")
    if not any(places):
        text = options.source or options.document
        raise UserError(f"none of {len(corpora)} corpora below {root.uri} holds {text!r}")
    for corpus, place in zip(corpora, places, strict=True):
        if not place:
            continue
        say(f"{corpus.stage} {corpus.fingerprint} ({corpus.label}): {place}")
        for each in existing:
            sources = artifacts.needed([each.fingerprint], existing)
            if each.stage in _MODELS and corpus.fingerprint in sources:
                say(f"  {each.stage:<9} {each.fingerprint} ({each.label})  {each.headline}")


def _find_place(corpus: Artifact, options: argparse.Namespace) -> str:
    """Where the corpus holds the text; empty if it does not."""
    from rungwise.corpus.summary import source_blocks

    if options.document is None:
        for source in source_blocks(corpus):
            paths = source.get("paths") or []
            if options.source in (source.get("name"), source["kind"], *paths):
                return f"the source {options.source}"
        return ""
    import pyarrow.parquet as pq

    for name in corpus.record["files"]:
        if name.endswith(".parquet"):
            with corpus.folder.open(name) as stream:
                ids = pq.read_table(stream, columns=["id"])["id"]
            if ids.index(options.document).as_py() >= 0:
                return f"{options.document} in {name}"
    return ""
