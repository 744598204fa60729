"""Stands in for KubeRay: runs the pods of a RayCluster as processes, each at a loopback address.

As KubeRay 1.7 does (controllers/ray/common/pod.go), this makes `ray start` from a group's
rayStartParams and the limits of its container, and adds variables to those of the container. Pods
here share one network and one disk, so `_separate` adds the options that keep them apart. There is
no autoscaler, no scheduler and no kubelet: a test starts and ends pods, probes them and runs their
hooks.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.conftest import REPOSITORY
from tests.waiting import wait_until

TOKEN = "token-of-a-test-" + "5e1d" * 8
KUBERAY = REPOSITORY / "infra" / "kuberay"
_BINARIES = Path(sys.executable).parent
_AGENT_PORT = "52365"  # where KubeRay's probes ask
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def render(folder: Path) -> list[dict[str, Any]]:
    """The manifests that kubectl makes of a folder of kustomize."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def write_overlay(
    folder: Path, base: str, components: list[str], job: bool = False, **more: Any
) -> Path:
    """Write an overlay on one of the repository's, as a user does, also for its RayJob."""
    folder.mkdir(exist_ok=True)
    resources = [os.path.relpath(KUBERAY / "overlays" / base, folder)]
    if job:
        shutil.copy(KUBERAY / "overlays" / "job" / "rayjob.yaml", folder)
        resources, components = [*resources, "rayjob.yaml"], [*components, "job"]
    places = [os.path.relpath(KUBERAY / "components" / name, folder) for name in components]
    text = {"resources": resources, "components": places, **more}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return folder


class Pod:
    """One pod of a group, as a process."""

    def __init__(
        self,
        spec: dict[str, Any],
        group: dict[str, Any],
        address: str,
        head: "Pod | None",
        image: Path,
    ) -> None:
        self.address = address
        self._folder = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))  # short: it holds sockets
        [self.container] = group["template"]["spec"]["containers"]
        self.parameters = dict(group["rayStartParams"])
        self._separate()
        self.head = head or self
        self._add_defaults(spec["enableInTreeAutoscaling"])
        self.environment = self._make_environment(spec, group)
        flags = [
            f"--{name}" if value == "true" else f"--{name}={value}"
            for name, value in sorted(self.parameters.items())
            if value != "false"
        ]
        self._command = " ".join(["ray start", *["--head"] * (head is None), *flags])
        self._image = image
        self.start()

    def start(self) -> None:
        """Start the pod's processes; after `kill`, those of a pod with nothing but its volume."""
        shutil.rmtree(self._folder / "ray", ignore_errors=True)
        with self.log.open("w") as stream:
            self.process = psutil.Popen(
                ["bash", "-c", f"ulimit -n 65536; {self._command}"],
                env=self.environment,
                cwd=self._image,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @property
    def gcs(self) -> str:
        return f"{self.address}:{self.parameters['port']}"

    @property
    def job_server(self) -> str:
        return f"http://{self.address}:{self.parameters['dashboard-port']}"

    def _separate(self) -> None:
        """Give the pod what a network and a disk of its own would: an address, ports, a folder."""
        self.parameters |= {"node-ip-address": self.address, "temp-dir": str(self._folder / "ray")}
        names = ["port", "dashboard-port", "ray-client-server-port", "metrics-export-port"]
        names += ["dashboard-agent-listen-port", "dashboard-agent-grpc-port"]
        with contextlib.ExitStack() as probes:  # all are open at once, so that no two are the same
            for name in names:
                probe = probes.enter_context(socket.create_server((self.address, 0)))
                self.parameters[name] = str(probe.getsockname()[1])
        self.parameters["object-store-memory"] = "100000000"

    def _add_defaults(self, autoscaling: bool) -> None:
        """Add what KubeRay adds to rayStartParams (setMissingRayStartParams and its like)."""
        parameters = self.parameters
        if self.head is self:
            parameters["dashboard-host"] = self.address
            if autoscaling:
                parameters["no-monitor"] = "true"
        else:
            parameters["address"] = self.head.gcs
            for name in ("port", "dashboard-port", "ray-client-server-port"):
                del parameters[name]
        parameters["block"] = "true"
        limits = self.container["resources"]["limits"]
        parameters.setdefault("num-cpus", limits["cpu"])
        amount, unit = limits["memory"][:-2], limits["memory"][-2:]
        parameters.setdefault("memory", str(int(amount) * _UNITS[unit]))

    def _make_environment(self, spec: dict[str, Any], group: dict[str, Any]) -> dict[str, str]:
        fields = {"status.podIP": self.address}
        declared = {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self.container["env"]
        }
        host, _, port = self.head.gcs.rpartition(":")
        added = {
            "RAY_ADDRESS": self.head.gcs,
            "RAY_PORT": port,
            "RAY_CLUSTER_NAME": "rungwise",
            "RAY_NODE_TYPE_NAME": group.get("groupName", "headgroup"),
            "RAY_CLOUD_INSTANCE_ID": self._folder.name,
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        }
        if self.head is not self:
            added |= {"FQ_RAY_IP": host, "RAY_IP": host}
        if self.head is self and "gcsFaultToleranceOptions" in spec:
            assert spec["gcsFaultToleranceOptions"]["backend"] == "rocksdb"
            volume = self._folder / "volume"
            added |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(volume)}
        elif "gcsFaultToleranceOptions" in spec:
            added["RAY_gcs_rpc_server_reconnect_timeout_s"] = "600"
        assert spec["authOptions"]["mode"] == "token"
        added |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        machine = {
            "PATH": f"{_BINARIES}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self._folder),
            "PYTHONPATH": str(REPOSITORY / "platform"),
            "OMP_NUM_THREADS": "1",
        }
        return machine | added | declared

    def probe(self, name: str) -> bool:
        """Ask as a kubelet does: any answer below 400 is a good one."""
        question = self.container[name]["httpGet"]
        assert str(question["port"]) == _AGENT_PORT
        port = self.parameters["dashboard-agent-listen-port"]
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{port}{question['path']}",
                timeout=self.container[name]["timeoutSeconds"],
            ):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def wait_until_ready(self) -> None:
        wait_until(self.log.read_text, lambda: self.probe("readinessProbe"), code=self.process.poll)

    def run_hook(self) -> subprocess.CompletedProcess[str]:
        """Run the container's `preStop`."""
        command = self.container["lifecycle"]["preStop"]["exec"]["command"]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )

    def kill(self) -> None:
        """End every process of the pod, each by its id."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in [*self.process.children(recursive=True), self.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Pods:
    """The pods that a RayCluster has just now; the first one is the head."""

    def __init__(self, cluster: dict[str, Any], image: Path) -> None:
        self._spec = cluster["spec"]
        self._image = image
        self.all: list[Pod] = []

    def start(self, name: str, address: str) -> Pod:
        """Start a pod of the group (`head`, or a worker group) and wait until it is ready."""
        groups = {each["groupName"]: each for each in self._spec["workerGroupSpecs"]}
        groups["head"] = self._spec["headGroupSpec"]
        head = None if name == "head" else self.all[0]
        pod = Pod(self._spec, groups[name], address, head, self._image)
        self.all.append(pod)
        pod.wait_until_ready()
        return pod


@contextlib.contextmanager
def pods(cluster: dict[str, Any], image: Path) -> Iterator[Pods]:
    """The pods of a RayCluster. `image` is the folder where an image's commands begin."""
    started = Pods(cluster, image)
    try:
        yield started
    finally:
        for pod in reversed(started.all):
            pod.remove()
