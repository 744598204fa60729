"""Machines for tests: each is a real systemd, the first process of namespaces of its own.

A machine has its own address, host name, processes, /etc, /run, /tmp, /dev and control groups. Its
file system is this machine's, read-only below a layer in memory. Machines see each other through a
bridge that is in a network namespace too, so nothing of this machine's network is touched, nothing
on it is reached, and nothing can be reached from outside. A machine ends as one that loses power:
SIGKILL to its first process, and the kernel ends the rest.

What is not as on EC2: no udev, no disks, no kernel settings (/proc/sys is read-only).
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

NETWORK = "10.77.0"
SERVICES = f"{NETWORK}.1"
METADATA = "169.254.169.254"
_TOOLS = ("ip", "unshare", "nsenter", "mount", "useradd", "curl", "systemctl", "journalctl")
_SYSTEMD = Path("/lib/systemd/systemd")
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
T = TypeVar("T")

# Run as root in new namespaces: builds the machine's file system, and becomes its systemd.
_BOOT = r"""
set -eu
place=$1 name=$2 address=$3 python=$4 packages=$5
root=$place/root
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run tmp var/tmp var/lib/rungwise etc/systemd/system opt usr/local; do
  mkdir -p "$root/$folder"
  mount -t tmpfs tmpfs "$root/$folder"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
# As systemd-tmpfiles makes it, which does not run here.
install -d -m 2755 -g systemd-journal "$root/run/log/journal"

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
touch "$root/dev/console"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"

# An environment that lies below /root would be out of reach of the services' user.
mkdir -p "$root/usr/local/python" "$root/usr/local/packages" "$root/usr/local/sbin"
mount --bind -o ro "$python" "$root/usr/local/python"
mount --bind -o ro "$packages" "$root/usr/local/packages"
echo /usr/local/python/lib >"$root/etc/ld.so.conf.d/python.conf"
chroot "$root" /sbin/ldconfig

# Of the distribution's own units only the journal.
for unit in "$root"/lib/systemd/system/*.target.wants/*; do
  case ${unit##*/} in
    systemd-journald.service | systemd-journald.socket | systemd-journald-dev-log.socket) ;;
    *) ln -sf /dev/null "$root/etc/systemd/system/${unit##*/}" ;;
  esac
done
: >"$root/etc/fstab"
rm -f "$root/etc/machine-id"
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
hostname "$name"
echo "$name" >"$root/etc/hostname"
printf '127.0.0.1 localhost\n%s %s\n' "$address" "$name" >"$root/etc/hosts"
cat "$place.hosts" >>"$root/etc/hosts"

cd "$root"
mkdir run/old
pivot_root . run/old
umount -l /run/old
exec env -i container=other PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
  "$SYSTEMD" --system --unit=multi-user.target --log-target=journal --show-status=0
"""


def reason_to_skip() -> str | None:
    """Why machines cannot be started here, None if they can."""
    if os.geteuid() != 0:
        return "machines in namespaces need root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"machines in namespaces need {', '.join(missing)}"
    if not _SYSTEMD.exists():
        return "machines in namespaces need systemd"
    if _cgroup() is None:
        return "machines in namespaces need a cgroup2 file system"
    probe = subprocess.run(
        ["unshare", "--cgroup", "--pid", "--fork", "--mount", "--uts", "--net", "true"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        return f"namespaces cannot be made here: {probe.stderr.decode().strip()}"
    return None


class Network:
    """A bridge in a namespace; services listen on SERVICES and METADATA, machines are attached."""

    def __init__(self) -> None:
        self._prefix = f"rw{os.getpid()}"
        self.name = f"{self._prefix}-0"
        self._attached = 0

    def open(self) -> None:
        _ip("netns", "add", self.name)
        for command in (
            ["link", "set", "lo", "up"],
            ["link", "add", "bridge", "type", "bridge"],
            ["address", "add", f"{SERVICES}/24", "dev", "bridge"],
            ["address", "add", f"{METADATA}/32", "dev", "bridge"],
            ["link", "set", "bridge", "up"],
        ):
            _ip("-n", self.name, *command)

    def attach(self, address: str) -> str:
        """A namespace with this address; its name."""
        self._attached += 1
        name, port = f"{self._prefix}-{self._attached}", f"port{self._attached}"
        _ip("netns", "add", name)
        _ip("-n", self.name, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
        _ip("-n", self.name, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "default", "via", SERVICES)
        return name

    def close(self) -> None:
        for number in range(self._attached, -1, -1):
            subprocess.run(["ip", "netns", "delete", f"{self._prefix}-{number}"], check=False)

    def call(self, function: Callable[[], T], namespace: str | None = None) -> T:
        """Run `function` with this network (or the namespace's); other threads keep theirs."""
        outcome: list[Any] = []

        def run() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{namespace or self.name}") as handle:
                assert libc.setns(handle.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()
            try:
                outcome.append(function())
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]


class Machine:
    """One machine. `folder` is empty and its own; `hosts` is what /etc/hosts holds besides."""

    def __init__(
        self, name: str, address: str, network: Network, folder: Path, hosts: str = ""
    ) -> None:
        self.name = name
        self.address = address
        self.namespace = network.attach(address)
        self._cgroup = _made_cgroup(f"{self.namespace}")
        place = folder / name
        place.mkdir(parents=True)
        (folder / f"{name}.hosts").write_text(hosts)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        boot = _BOOT.replace("$SYSTEMD", str(_SYSTEMD))
        command = ["ip", "netns", "exec", self.namespace]
        command += ["unshare", "--cgroup", "--pid", "--fork", "--kill-child", "--mount", "--uts"]
        command += ["--propagation", "private", "bash", "-c", boot, "boot"]
        command += [str(place), name, address, sys.base_prefix, packages]
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._enter_cgroup,
                start_new_session=True,
            )
        self.first = self._wait_for_systemd()

    def _enter_cgroup(self) -> None:
        (self._cgroup / "cgroup.procs").write_text("0")
        end_with_parent()

    def _wait_for_systemd(self) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            for child in self._process.children():
                if child.name() == "systemd":
                    state = self._run_in(child.pid, ["systemctl", "is-system-running"])
                    if state.stdout.strip() in ("running", "degraded"):
                        return child.pid
            time.sleep(0.2)
        raise AssertionError(f"{self.name} does not boot: {self._log.read_text()}")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def root(self) -> Path:
        """Its file system, seen from here."""
        return Path(f"/proc/{self.first}/root")

    def run(
        self, *command: str, environment: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """A command as root in the machine."""
        return self._run_in(self.first, command, environment, timeout)

    def start(self, *command: str, log: Path, environment: dict[str, str]) -> psutil.Popen:
        """A command as root in the machine, whose output goes to `log`; ends with the machine."""
        with log.open("w") as stream:
            return psutil.Popen(
                [*_enter(self.first), *command],
                env=_variables(environment),
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def start_user_data(self, user_data: str) -> None:
        """Run it once as cloud-init does: a service, as root, without waiting for its end."""
        script = self.root / "var/lib/user-data"
        script.write_text(user_data)
        script.chmod(0o700)
        unit = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/var/lib/user-data\n"
        (self.root / "etc/systemd/system/user-data.service").write_text(unit)
        self.run("systemctl", "daemon-reload").check_returncode()
        self.run("systemctl", "start", "--no-block", "user-data.service").check_returncode()

    def state(self, unit: str) -> str:
        """active, activating, inactive, failed, ..."""
        return self.run("systemctl", "is-active", unit).stdout.strip()

    def journal(self, *options: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", *options).stdout

    def tail(self) -> str:
        """The end of its journal, to explain a failure."""
        return self.journal("--lines=60", "--output=short") if self.running else "off"

    def processes(self) -> Iterator[psutil.Process]:
        """All processes of the machine."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.first)
            yield first
            yield from first.children(recursive=True)

    def kill(self) -> None:
        """Power off without a word."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        self._process.wait(60)

    def close(self) -> None:
        if self.running:
            self.kill()
        for folder in sorted(self._cgroup.rglob("*"), reverse=True):
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()

    @staticmethod
    def _run_in(
        pid: int,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_enter(pid), *command],
            env=_variables(environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def end_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _enter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--all"]


def _variables(more: dict[str, str]) -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"} | more


def _cgroup() -> Path | None:
    for place in _CGROUPS:
        if (place / "cgroup.procs").exists():
            return place
    return None


def _made_cgroup(name: str) -> Path:
    place = _cgroup()
    assert place is not None
    made = place / name
    made.mkdir()
    return made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
