"""`rungwise data list | get NAME...`: the public data sets that recipes and the pages name."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.configuration.secrecy import list_texts
from rungwise.core.errors import UserError, format_count
from rungwise.core.exit_codes import plain_console


def add(commands: Commands) -> None:
    parser = add_verb(commands, data, "list public data sets, or put them where recipes look")
    parser.add_argument("action", choices=("list", "get"), nargs="?", default="list")
    help_text = "a set of the list, or a recipe: all that it reads"
    parser.add_argument("names", metavar="NAME", nargs="*", help=help_text)
    parser.add_argument("--yes", action="store_true", help="agree to the licences")
    parser.add_argument("--folder", type=Path, default="data", help="where to put them: data")
    help_text = "a server with copies, to use for https://"
    parser.add_argument("--mirror", metavar="URL", default="", help=help_text)


def data(options: argparse.Namespace) -> None:
    """List sets, or download them. Raises UserError for an unknown name or without consent."""
    from rungwise.core.public_data import PublicSet, fetch_set, missing_files, public_sets

    say, folder = plain_console().print, options.folder
    if options.action == "list":
        _list_sets(folder)
        return
    if not options.names:
        raise UserError("rungwise data get: expected names of sets, found none")
    missing: dict[str, PublicSet] = {}
    for name in dict.fromkeys(chain.from_iterable(map(_set_names, options.names))):
        public = public_sets()[name]
        if missing_files(public, folder):
            missing[name] = public
        else:
            say(f"{name}: all {format_count(len(public.files), 'file')} are in {folder}")
    limited = {name: public for name, public in missing.items() if public.consent}
    if limited and not options.yes:
        say("The use of these is limited, or their source states no licence:")
        for name, public in limited.items():
            say(f"  {name}: {public.licence}")
        raise UserError("nothing was downloaded; read the licences above, and give --yes to agree")
    for name, public in missing.items():
        say(f"{name}: {public.title}; licence: {public.licence}")
        if public.note:
            say(f"  {public.note}")
        fetch_set(public, folder, options.mirror, lambda line: say(f"  {line}"))


def _list_sets(folder: Path) -> None:
    from rich.filesize import decimal

    from rungwise.core.public_data import missing_files, public_sets

    say = plain_console().print
    for name, public in public_sets().items():
        missing = len(missing_files(public, folder))
        here = "" if missing == len(public.files) else "in part" if missing else "here"
        say(f"{name:<17}{decimal(public.bytes):>9}  {here:<8}{public.title}; {public.licence}")
    say(
        "\nrungwise data get NAME... downloads sets; a recipe in place of a name, all that it reads"
    )


def _set_names(name: str) -> list[str]:
    from rungwise.core.public_data import find_sets, public_sets

    sets = public_sets()
    if name in sets:
        return [name]
    if name.endswith((".yaml", ".yml")):
        from rungwise.pipeline.workflow import load_recipe

        texts = list_texts(load_recipe(name).raw)
        names = [each for _, path in texts for each in find_sets(path)]
        if not names:
            raise UserError(f"{name} reads no file below data/ that is in `rungwise data list`")
        return names
    raise UserError(f"there is no public data set {name!r}; `rungwise data list` names them")
