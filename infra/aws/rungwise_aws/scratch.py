"""The folder where Ray spills: on the instance's own disks, or else on its root disk.

Instance-store disks are empty when an instance starts and survive a reboot, so a file system
created here is recognised by its label. Several disks become one RAID 0: throughput adds up, and
nothing on them has to last. If the Deep Learning AMI has mounted them already, the folder goes
there.
"""

import json
import logging
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.cluster.description import Machine
from rungwise.core.errors import UserError
from rungwise_aws.token import SERVICE_USER

_LOGGER = logging.getLogger(__name__)

VARIABLE = "RUNGWISE_SCRATCH"
_MODEL = "Amazon EC2 NVMe Instance Storage"
_LABEL = "rungwise"
_ARRAY = "/dev/md/rungwise"
_COLUMNS = "PATH,MODEL,TYPE,FSTYPE,LABEL,MOUNTPOINTS"


@dataclass(frozen=True)
class Disks:
    empty: tuple[str, ...]  # devices without a file system
    labelled: str | None  # a file system that an earlier boot created
    mounted: str | None  # a mount point made by something else


def scratch_folder() -> Path:
    return Path(os.environ[VARIABLE])


def provide_scratch(machine: Machine) -> None:
    """Create the folder on the best available disk, accessible only to the services' user."""
    folder = scratch_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_mount():
        where = "what is mounted already"
    else:
        disks = find_disks(_run("lsblk", "--json", "--output", _COLUMNS))
        for command in plan_mount(disks, folder, bool(shutil.which("mdadm"))):
            _run(*command)
        where = disks.mounted or disks.labelled or ", ".join(disks.empty) or "the root disk"
    user = pwd.getpwnam(SERVICE_USER)
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o750)
    _LOGGER.info(f"{folder} is on {where}")


def find_disks(lsblk: str) -> Disks:
    """Find the instance-store disks and their contents in the output of `lsblk --json`."""
    disks = [
        disk
        for disk in json.loads(lsblk)["blockdevices"]
        if disk["type"] == "disk" and (disk["model"] or "").strip() == _MODEL
    ]
    parts = [part for disk in disks for part in (disk, *_descendants(disk))]
    mounts = [point for part in parts for point in part["mountpoints"] if point]
    labelled = [
        part["path"] for part in parts if part["label"] == _LABEL and part["fstype"] == "ext4"
    ]
    empty = [disk["path"] for disk in disks if not disk["fstype"] and not disk.get("children")]
    return Disks(tuple(empty), labelled[0] if labelled else None, mounts[0] if mounts else None)


def plan_mount(disks: Disks, folder: Path, has_mdadm: bool) -> Iterator[Sequence[str]]:
    """The commands that put `folder` on the disks; none if it stays on the root disk."""
    if disks.mounted is not None:
        place = f"{disks.mounted.rstrip('/')}/{_LABEL}"
        yield ["mkdir", "--parents", place]
        yield ["mount", "--bind", place, str(folder)]
        return
    device = disks.labelled
    if device is None and disks.empty:
        device = disks.empty[0]
        if len(disks.empty) > 1 and has_mdadm:
            device = _ARRAY
            count = f"--raid-devices={len(disks.empty)}"
            yield ["mdadm", "--create", device, "--run", "--level=0", count, *disks.empty]
        yield ["mkfs.ext4", "-q", "-F", "-L", _LABEL, "-m", "0", "-E", "nodiscard", device]
    if device is not None:
        yield ["mount", "--options", "noatime,nodev,nosuid", device, str(folder)]


def _descendants(disk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for child in disk.get("children", []):
        yield child
        yield from _descendants(child)


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise UserError(f"{command[0]} failed: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
