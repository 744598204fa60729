"""The command line: what is planned, run, looked at, proved, moved and asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; the process's exit status (0, 1 a failed stage, 2 a mistake)."""
    options = _parsed(_parser(), arguments)
    from rungwise.core.exit_codes import guarded

    return guarded(lambda: options.command(options))


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand behind an option too, where argparse looks for none."""
    options, rest = parser.parse_known_args(arguments)
    if strange := [item for item in rest if item.startswith("-") or "=" not in item]:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if rest and not hasattr(options, "overrides"):
        parser.error(f"this command takes no overrides: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rungwise",
        description="Pretrain language models on Ray, and say with evidence what each is worth.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("plan", _plan, "print what would be built, and why"),
        ("run", _run, "build what is missing"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("workflow", metavar="WORKFLOW", help="workflows/finetune.py, or finetune")
        sub.add_argument("config", metavar="CONFIG", help="workflows/configs/quickstart.yaml")
        sub.set_defaults(command=command)
    doctor = commands.add_parser("doctor", help="versions and resources, and what is wrong")
    doctor.add_argument("config", metavar="CONFIG", nargs="?", help="look at this recipe's root")
    doctor.set_defaults(command=_doctor)
    ui = commands.add_parser("ui", help="the MLflow UI of a recipe's store, on loopback")
    ui.add_argument("config", metavar="CONFIG", nargs="?")
    ui.add_argument("--port", type=int, default=5000)
    ui.set_defaults(command=_ui)
    sync = commands.add_parser("sync", help="send what a tracking server missed while it was away")
    sync.add_argument("config", metavar="CONFIG")
    sync.set_defaults(command=_sync)
    inspect = commands.add_parser("inspect", help="print instances as a person reads them")
    inspect.add_argument("instances", metavar="INSTANCES", help="artifacts/instances, or one in it")
    inspect.add_argument("--index", type=int, help="which one; a few are drawn if left out")
    inspect.add_argument("--split", default="train", choices=("train", "validation"))
    inspect.add_argument("--epoch", type=int, default=0, help="masks and windows are drawn anew")
    inspect.add_argument("--seed", type=int, default=0, help="of the masks and of the choice")
    inspect.set_defaults(command=_inspect)
    for name, command, text in (
        ("dry-run", _dry_run, "parameters, memory, time and cost, before anything is spent"),
        ("prove-resume", _prove_resume, "kill a run, resume it elsewhere, print a certificate"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("config", metavar="CONFIG")
        sub.set_defaults(command=command)
    commands.choices["prove-resume"].add_argument(
        "--workers-after",
        type=_at_least_one,
        metavar="N",
        help="workers after the kill; by default one less than before, or two after one",
    )
    commands.choices["dry-run"].add_argument(
        "--tokens-per-second", type=float, help="of the whole run, where it is known"
    )
    export = commands.add_parser(
        "export", help="a pretrained model in the format of Hugging Face transformers"
    )
    export.add_argument(
        "model", metavar="MODEL", help="a recipe, or artifacts/pretrain, or one in it; s3:// too"
    )
    export.add_argument("--to", required=True, metavar="FOLDER", help="where to; s3:// too")
    export.set_defaults(command=_export)
    predict = commands.add_parser("predict", help="answers of a fine-tuned model, as JSON Lines")
    predict.add_argument(
        "model", metavar="MODEL", help="models:/NAME@champion, or artifacts/evaluate, or one in it"
    )
    predict.add_argument("--input", default="-", metavar="FILE", help="standard input if left out")
    predict.add_argument("--to", default="-", metavar="FILE", help="standard output if left out")
    predict.add_argument("--format", choices=("text", "tsv", "jsonl"), help="else by the ending")
    predict.add_argument("--batch-size", type=_at_least_one, default=64, metavar="N")
    predict.add_argument("--root", default="artifacts", help="whose registry models:/ names")
    predict.set_defaults(command=_predict)
    up = commands.add_parser("up", help="start a Ray cluster of several nodes on this machine")
    up.add_argument("--nodes", type=int, default=2, metavar="N")
    up.add_argument("--cpus", type=int, metavar="N", help="a node; else the cores are divided")
    up.add_argument("--name", default="local", help="of the cluster, for several at once")
    up.add_argument("--root", default="artifacts", help="of recipes and of MLflow's store")
    up.add_argument("--port", type=int, help="of the job API and dashboard; else near 8265")
    up.add_argument("--mlflow-port", type=int, metavar="PORT", help="else near 5000")
    up.add_argument("--prometheus-port", type=int, metavar="PORT", help="else near 9090")
    up.set_defaults(command=_up)
    down = commands.add_parser("down", help="end the cluster that `up` started, and nothing else")
    down.add_argument("--name", help="which, if there are several")
    down.set_defaults(command=_down)
    _add_jobs(commands)
    for name, sub in commands.choices.items():
        if name in ("inspect", "predict", "up", "down", "jobs", "logs", "stop", "resume"):
            continue
        sub.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="root=/data/artifacts")
    return parser


def _add_jobs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that speak to the job server of a cluster."""
    for name, command, text in (
        ("submit", _submit, "check a workflow and run it on a cluster"),
        ("jobs", _jobs, "the jobs of a cluster"),
        ("logs", _logs, "what a job has printed"),
        ("stop", _stop, "end a job as Ctrl-C ends a run"),
        ("resume", _resume, "submit a job that ended again, from its checkpoints"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        if name == "submit":
            sub.add_argument("workflow", metavar="WORKFLOW", help="workflows/pretrain.py")
            sub.add_argument("config", metavar="CONFIG", help="workflows/configs/quickstart.yaml")
            sub.add_argument(
                "--ignore-versions",
                action="store_true",
                help="submit to another minor version of Ray or Python than there is here",
            )
        elif name != "jobs":
            sub.add_argument("job", metavar="ID", help="an id, or how it begins")
        if name == "logs":
            sub.add_argument("--follow", "-f", action="store_true", help="until the job ends")
        if name in ("submit", "resume"):
            sub.add_argument("--working-dir", default=".", metavar="FOLDER", help="what goes along")
            sub.add_argument("--no-wait", action="store_true", help="return once it is submitted")
        which = sub.add_mutually_exclusive_group()
        which.add_argument("--address", metavar="URL", help="else RAY_API_SERVER_ADDRESS")
        which.add_argument("--name", metavar="CLUSTER", help="one that `rungwise up` started")
        sub.set_defaults(command=command)


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {value}")
    return value


def _plan(options: argparse.Namespace) -> int:
    from rungwise.commands.run import plan_command

    return plan_command(options.workflow, options.config, options.overrides)


def _run(options: argparse.Namespace) -> int:
    from rungwise.commands.run import run_command

    return run_command(options.workflow, options.config, options.overrides)


def _doctor(options: argparse.Namespace) -> int:
    from rungwise.commands.doctor import doctor

    return doctor(options.config, options.overrides)


def _inspect(options: argparse.Namespace) -> int:
    from rich.console import Console

    from rungwise.instances.inspection import find, inspect

    inspect(
        find(options.instances),
        options.split,
        options.index,
        options.epoch,
        options.seed,
        Console(),
    )
    return 0


def _dry_run(options: argparse.Namespace) -> int:
    from rungwise.commands.dry_run import dry_run_command

    return dry_run_command(options.config, options.overrides, options.tokens_per_second)


def _prove_resume(options: argparse.Namespace) -> int:
    from rungwise.commands.prove_resume import prove_resume_command

    return prove_resume_command(options.config, options.overrides, options.workers_after)


def _export(options: argparse.Namespace) -> int:
    from rungwise.commands.export import export_command

    return export_command(options.model, options.overrides, options.to)


def _predict(options: argparse.Namespace) -> int:
    from rungwise.commands.predict import predict_command

    return predict_command(
        options.model,
        options.input,
        options.to,
        options.format,
        options.batch_size,
        options.root,
    )


def _submit(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import submit_command

    return submit_command(
        options.workflow,
        options.config,
        options.overrides,
        server(options.address, options.name),
        options.working_dir,
        wait=not options.no_wait,
        any_version=options.ignore_versions,
    )


def _jobs(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import jobs_command

    return jobs_command(server(options.address, options.name))


def _logs(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import logs_command

    return logs_command(options.job, server(options.address, options.name), options.follow)


def _stop(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import stop_command

    return stop_command(options.job, server(options.address, options.name))


def _resume(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import resume_command

    return resume_command(
        options.job,
        server(options.address, options.name),
        options.working_dir,
        wait=not options.no_wait,
    )


def _ui(options: argparse.Namespace) -> int:
    from rungwise.commands.maintenance import serve_ui

    serve_ui(options.config, options.overrides, options.port)


def _sync(options: argparse.Namespace) -> int:
    from rungwise.commands.maintenance import sync_spool

    return sync_spool(options.config, options.overrides)


def _up(options: argparse.Namespace) -> int:
    from rungwise.cluster.local.up import Wanted, up_command

    return up_command(
        Wanted(
            options.name,
            options.nodes,
            options.cpus,
            options.root,
            options.port,
            options.mlflow_port,
            options.prometheus_port,
        )
    )


def _down(options: argparse.Namespace) -> int:
    from rungwise.cluster.local.down import down_command

    return down_command(options.name)


if __name__ == "__main__":
    sys.exit(main())
