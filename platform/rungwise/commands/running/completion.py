"""`rungwise completion`: print a script for bash and zsh: Tab completes commands and options."""

import argparse
import shlex
import sys

from rungwise.commands.arguments import Commands, add_verb

_SCRIPT = """\
[ -z "$ZSH_VERSION" ] || {{ autoload -U +X compinit bashcompinit && compinit && bashcompinit; }}
_rungwise() {{
  local words
  case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
    1:*) words={verbs} ;;
{options}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _rungwise rungwise
"""


def add(commands: Commands) -> None:
    def completion(options: argparse.Namespace) -> None:
        arguments = {name: [*verb._option_string_actions] for name, verb in verbs.items()}
        sys.stdout.write(write_script(arguments))

    verbs = commands.choices
    help_text = 'complete commands and options with Tab: eval "$(rungwise completion)"'
    add_verb(commands, completion, help_text)


def write_script(verbs: dict[str, list[str]]) -> str:
    """The shell script for these verbs and options; after run, plan and submit comes a workflow."""
    workflows = "finetune instances ladder pretrain"
    lines = [f"    2:run|2:plan|2:submit) words={shlex.quote(workflows)} ;;"]
    lines += [
        f"    *:{name}) words={shlex.quote(' '.join(each))} ;;" for name, each in verbs.items()
    ]
    return _SCRIPT.format(verbs=shlex.quote(" ".join(verbs)), options="\n".join(lines))
