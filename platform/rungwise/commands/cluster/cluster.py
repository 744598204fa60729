"""`rungwise cluster create|status|delete`: manage a cluster on AWS with Terraform.

The folder is an example of infra/terraform, or one like it. `create` stores its variables in the
folder's terraform.tfvars.json, so a later `create` changes only those it names.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError

_FOLDER = Path("infra/terraform/examples/cpu-smoke")
_PACKAGE = Path("dist/rungwise.tar.gz")
_PYTHON = "python3.12"  # the version in the image
_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_PLAN = "rungwise.plan"
_HELP = "manage a cluster on AWS: shows Terraform's plan, asks first"


def add(commands: Commands) -> None:
    parser = add_verb(commands, cluster, _HELP)
    parser.add_argument("action", choices=("create", "status", "delete"))
    parser.add_argument(
        "overrides", metavar="VARIABLE=VALUE", nargs="*", help="set a variable, as JSON or text"
    )
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=f"default: {_FOLDER}")
    parser.add_argument("--region", help="default: that of your AWS profile")
    parser.add_argument("--name", help="name of the cluster")
    parser.add_argument("--email", action="append", help="budget alerts go here; may be repeated")
    parser.add_argument("--budget", type=float, metavar="USD", help="budget per month")
    parser.add_argument("--yes", action="store_true", help="apply the plan without asking")


def cluster(options: argparse.Namespace) -> None:
    """Run the action. Raises UserError without Terraform, its files or AWS credentials."""
    if not (options.folder / "variables.tf").exists():
        raise UserError(
            f"{options.folder} has no variables.tf; name a Terraform folder with --folder, or "
            "run this in the root of the repository"
        )
    if shutil.which("terraform") is None:
        raise UserError(
            "terraform is not on PATH; install 1.9 or newer: "
            "https://developer.hashicorp.com/terraform/install"
        )
    actions = {"create": _create, "status": _status, "delete": _delete}
    actions[options.action](options, plain_console())


def _create(options: argparse.Namespace, console: Console) -> None:
    from rungwise.core.storage.folder import file_digest

    file = options.folder / "terraform.tfvars.json"
    try:
        settings = json.loads(file.read_text("utf-8")) if file.exists() else {}
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}); mend or delete it") from error
    arguments = _parse_variables(options)
    if "alert_emails" not in settings | arguments:
        raise UserError("budget alerts have no address; give --email ADDRESS")
    default = _session().get_config_variable("region") or "us-east-1"
    region = arguments.get("region") or settings.get("region") or default
    console.print(f"account {_account(region)}, region {region}")
    if settings.get("region") != region:
        settings |= _find_image_and_zones(region)
    values = settings | arguments | {"region": region}
    path = Path(values.setdefault("package_path", str(_PACKAGE.absolute())))
    if not path.exists():
        _make_package(path, console)
    console.print(f"package {path}; delete it to build it again")
    values["package_sha256"] = file_digest(path)
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if _apply(options, console, "create or change these resources and pay for them"):
        console.print("\nthe head node takes some minutes to install the package; then")
        _print_commands(_outputs(options.folder), console)


def _status(options: argparse.Namespace, console: Console) -> None:
    outputs = _outputs(options.folder)
    least = most = 0.0
    prices = {name: each["price_per_hour"] for name, each in outputs["machines"].items()}
    for name, machine in outputs["machines"].items():
        few, many, price = machine["minimum"], machine["maximum"], machine["price_per_hour"]
        rate = "price not known" if price is None else f"{price:.3f} USD an hour each"
        console.print(f"{name:<12} {few if few == many else f'{few} to {many}'}, {rate}")
        least, most = least + few * (price or 0), most + many * (price or 0)
    console.print(
        f"at these prices {least:.3f} to {most:.3f} USD an hour; the MLflow host, its database, "
        "endpoints and disks cost extra (infra/terraform/README.md)"
    )
    if None in prices.values():
        template = json.dumps({name: price or 0 for name, price in prices.items()})
        arguments = [f"prices_per_hour={template}", "--folder", str(options.folder)]
        console.print(
            "to add missing prices, replace each 0 and run this while no job runs, since it "
            f"replaces the head node: rungwise cluster create {shlex.join(arguments)}"
        )
    console.print(f"artifacts    {outputs['artifact_uri']}")
    _print_commands(outputs, console)


def _delete(options: argparse.Namespace, console: Console) -> None:
    outputs = _outputs(options.folder)
    if outputs.get("protected"):
        raise UserError(
            "the database and the bucket are protected; unprotect them with `rungwise cluster "
            f"create disposable=true --folder {shlex.quote(str(options.folder))}`"
        )
    console.print(f"account {_account(None)}; also deletes all of {outputs['artifact_uri']}")
    _apply(options, console, "delete all of this", "-destroy")


def _apply(options: argparse.Namespace, console: Console, deed: str, *more: str) -> bool:
    """Show a plan and apply it if the user agrees; return whether it was applied."""
    folder = options.folder
    _terraform(folder, "init", "-input=false")
    _terraform(folder, "plan", "-input=false", f"-out={_PLAN}", *more)
    if not options.yes:
        if not sys.stdin.isatty():
            raise UserError("no terminal to ask for consent; read the plan and give --yes")
        if console.input(f"\n{deed}? [y/N] ", markup=False).strip().lower() not in ("y", "yes"):
            console.print("nothing was changed")
            return False
    _terraform(folder, "apply", "-input=false", _PLAN)
    return True


def _terraform(folder: Path, *arguments: str, capture: bool = False) -> str:
    """Run Terraform in the folder; with `capture`, return its output instead of showing it."""
    command = ["terraform", f"-chdir={folder}", *arguments]
    output = subprocess.PIPE if capture else None
    result = subprocess.run(command, stdout=output, text=True, check=False)
    if result.returncode:
        raise UserError(f"`terraform {arguments[0]}` failed in {folder}; see its output above")
    return result.stdout


def _outputs(folder: Path) -> dict[str, Any]:
    outputs = json.loads(_terraform(folder, "output", "-json", capture=True))
    if not outputs:
        raise UserError(f"no cluster in {folder}; create one with `rungwise cluster create`")
    return {name: output["value"] for name, output in outputs.items()}


def _print_commands(outputs: dict[str, Any], console: Console) -> None:
    connect = outputs["connect"]
    for what, name in (
        ("fetch its token, once", "token"),
        ("forward its port, and leave this running", "ray"),
        ("run a workflow, in another terminal", "submit"),
    ):
        console.print(f"\n{what}:\n\n  {connect[name]}")


def _parse_variables(options: argparse.Namespace) -> dict[str, Any]:
    """The variables on the command line."""
    flags = {
        "region": options.region,
        "name": options.name,
        "alert_emails": options.email,
        "monthly_budget_usd": options.budget,
    }
    variables = {name: value for name, value in flags.items() if value is not None}
    for override in options.overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override}: expected VARIABLE=VALUE")
        try:
            variables[name] = json.loads(text)
        except ValueError:
            variables[name] = text
    return variables


def _session() -> Any:
    import botocore.session

    return botocore.session.get_session()


def _call(service: str, region: str | None, operation: str, **arguments: Any) -> Any:
    """Call AWS. Raises UserError without credentials, or if the call fails."""
    from botocore.exceptions import BotoCoreError, ClientError

    session = _session()
    if session.get_credentials() is None:
        raise UserError("no AWS credentials; set AWS_PROFILE, or run `aws configure`")
    try:
        client = session.create_client(service, region_name=region)
        return getattr(client, operation)(**arguments)
    except (BotoCoreError, ClientError) as error:
        raise UserError(f"AWS call {service} {operation} failed: {error}") from error


def _account(region: str | None) -> str:
    return _call("sts", region or "us-east-1", "get_caller_identity")["Account"]


def _find_image_and_zones(region: str) -> dict[str, Any]:
    """The id of the newest Ubuntu image, and the first two availability zones."""
    image = _call("ssm", region, "get_parameter", Name=_IMAGE)["Parameter"]["Value"]
    filters = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    zones = _call("ec2", region, "describe_availability_zones", Filters=filters)[
        "AvailabilityZones"
    ]
    names = sorted(zone["ZoneName"] for zone in zones)
    return {"ami_id": image, "availability_zones": names[:2]}


def _make_package(path: Path, console: Console) -> None:
    """Make the package that machines install, with infra/package.sh and the image's Python."""
    python = os.environ.get("PYTHON", _PYTHON)
    if shutil.which(python) is None:
        raise UserError(
            f"{python} is not on PATH, and the package needs the image's Python; build it on "
            "Ubuntu 24.04 with infra/package.sh and give package_path=FILE"
        )
    console.print(f"building {path}; this takes minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["infra/package.sh", str(path)]
    if subprocess.run(command, env=os.environ | {"PYTHON": python}, check=False).returncode:
        raise UserError("infra/package.sh failed; see its output above")
