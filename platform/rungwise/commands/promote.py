"""`rungwise promote models:/NAME/VERSION`: give a version an alias if it passes the checks."""

import argparse

from rungwise.commands.arguments import Commands, add_registry, add_verb


def add(commands: Commands) -> None:
    text = "give a version the alias champion if it passes the checks"
    parser = add_verb(commands, promote, text)
    parser.epilog = "checks: unchanged files, a score that is no worse"
    parser.add_argument("model", metavar="MODEL", help="models:/NAME/VERSION")
    parser.add_argument("--to", default="champion", metavar="ALIAS", help="give another alias")
    add_registry(parser)


def promote(options: argparse.Namespace) -> None:
    """Print the comparison and which version has the alias. Raises UserError that lists the failed
    checks; then nothing has changed."""
    from rungwise.core.console import plain_console
    from rungwise.core.errors import UserError
    from rungwise.core.tracking.sender import store_client
    from rungwise.pipeline import loading
    from rungwise.serving import registry
    from rungwise.serving.card import serve_command

    say = plain_console().print
    name, number = loading.name_and_version(options.model)
    if not options.model.startswith(loading.REGISTERED) or not number.isdecimal():
        raise UserError(
            f"{options.model}: expected models:/NAME/VERSION, such as models:/rungwise-sst-2/3"
        )
    alias = options.to
    with store_client(loading.registry_uri(options.root)) as client:
        model = loading.find_built(options.model, options.root)
        faults = registry.find_faults(model, loading.download_served(options.model, options.root))
        holder = registry.find_holder(client, name, alias)
        if not faults and holder not in (None, number):
            other = loading.find_built(f"models:/{name}/{holder}", options.root)
            gain = registry.compare_models(model, other)
            line = "not compared: one of them assigns texts no probability"
            if gain is not None:
                line = f"{gain.mean:+.4f}, 95 % interval {gain.low:+.4f} to {gain.high:+.4f}"
            say(f"against version {holder}, which has the alias: {line}")
            if gain is not None and gain.high < 0:
                faults.append(f"it is worse than version {holder}, which has the alias: {line}")
        if faults:
            title = f"{options.model} does not become {alias}, and nothing has changed:"
            raise UserError("\n".join([title, *faults]))
        client.set_registered_model_alias(name, alias, number)
        say(f"{alias} is {options.model}; over HTTP: {serve_command(f'models:/{name}@{alias}')}")
