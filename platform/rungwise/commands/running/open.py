"""`rungwise open [RECIPE|FOLDER]`: open the newest report in a browser."""

import argparse

from rungwise.commands.arguments import Commands, add_overrides, add_verb, find_places

_STAGES = ("ladder", "report")  # on a tie `max` takes the ladder's page, which shows more


def add(commands: Commands) -> None:
    parser = add_verb(commands, open_page, "open the newest report in a browser", "open")
    parser.add_argument(
        "root", metavar="PLACE", nargs="?", default="artifacts", help="a recipe, or its root folder"
    )
    add_overrides(parser)


def open_page(options: argparse.Namespace) -> None:
    """Print the path of the page and open it. Raises UserError if there is none."""
    import webbrowser

    from rungwise.core.console import plain_console
    from rungwise.core.errors import UserError
    from rungwise.core.stages import artifact
    from rungwise.core.storage.folder import Folder
    from rungwise.pipeline.loading import refuse_overrides
    from rungwise.report.writing import ReportSummary

    is_recipe = options.root.endswith((".yaml", ".yml"))
    if not is_recipe:
        refuse_overrides(options.root, options.overrides)
    root = find_places(options.root, options.overrides)[0] if is_recipe else Folder.at(options.root)
    pages = [page for stage in _STAGES if (page := artifact.at_or_below(root / stage))]
    if not pages:
        raise UserError(
            f"no report below {root.uri} yet; a workflow writes one at its end: "
            "rungwise run pretrain quickstart"
        )
    newest = max(pages, key=lambda page: page.record["finished"])
    path = newest.folder.path(ReportSummary.of(newest).page)
    plain_console().print(path)
    if not root.remote:
        webbrowser.open(f"file://{path}")
