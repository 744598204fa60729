"""Copy the log of this machine's units to the bucket, so that it outlives the machine.

Writes one object a minute below `journals` of the artifacts, and one when the machine ends. A
cursor of journalctl marks the part that was copied; what could not be written is read again.
"""

import logging
import os
import signal
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

from rungwise.cluster.description import Machine
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise_aws.instance import InstanceMetadata

_LOGGER = logging.getLogger(__name__)
_COMMAND = ("journalctl", "--unit=rungwise-*", "--output=short-iso", "--quiet", "--show-cursor")
_CURSOR = "-- cursor: "


def copy_journal(machine: Machine, every_seconds: float = 60.0) -> None:
    """Copy until SIGTERM, keeping the position in STATE_DIRECTORY/journal-cursor."""
    assert machine.artifact_uri is not None
    kind = machine.group if machine.role == "worker" else machine.role
    name = f"{kind}-{InstanceMetadata().get('instance-id')}"
    folder = Folder.at(machine.artifact_uri) / "journals" / name
    cursor = Path(os.environ["STATE_DIRECTORY"]) / "journal-cursor"
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    while not ending.wait(every_seconds):
        copy_entries(folder, cursor)
    copy_entries(folder, cursor)


def copy_entries(folder: Folder, cursor: Path) -> None:
    """Copy new entries since the cursor, if any, to an object named by the time."""
    after = [f"--after-cursor={cursor.read_text()}"] if cursor.exists() else []
    result = subprocess.run([*_COMMAND, *after], capture_output=True, text=True, check=False)
    text, mark, position = result.stdout.rpartition(_CURSOR)
    if not mark:
        if result.returncode:
            _LOGGER.warning(f"the journal could not be read: {result.stderr.strip()}")
        return
    if not text:  # journalctl repeats the cursor when nothing is new
        return
    try:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S.%f")
        folder.write_bytes(f"{now}.log", text.encode())
        # Atomically: journalctl refuses half a cursor, and nothing would be copied any more.
        Folder.at(cursor.parent).write_bytes(cursor.name, position.strip().encode())
    except (OSError, UserError) as error:
        _LOGGER.info(f"the journal could not be copied and is tried again: {error}")
