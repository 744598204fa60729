"""A RayJob of KubeRay: a run on a cluster of its own, as an overlay of infra/kuberay describes it.

After a failure KubeRay makes a new cluster, and the run goes on from what is below its root. The
image has to hold the workflow and the recipe, since nothing is uploaded.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rungwise.cluster.environment import ROOT_VARIABLE
from rungwise.core.errors import UserError
from rungwise.core.storage.object_store import is_remote
from rungwise.submission.job import SubmittedJob

_RETRIES = 2
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def submit_rayjob(job: SubmittedJob, overlay: Path, *, apply: bool) -> None:
    """Print the job's manifest, or give it to `kubectl create`. Raises UserError if that fails."""
    manifest = yaml.safe_dump(make_rayjob(job, render_cluster(overlay)), sort_keys=False)
    if apply:
        _run_kubectl(["create", "--filename", "-"], manifest)
    else:
        sys.stdout.write(manifest)


def make_rayjob(job: SubmittedJob, cluster: dict[str, Any]) -> dict[str, Any]:
    """The RayJob that runs `job` on a cluster with the specification of `cluster`."""
    spec = cluster["spec"]
    run = ["rungwise", "run", job.workflow, job.config, *_list_overrides(job, spec)]
    labels = cluster["metadata"].get("labels", {})
    # Kubernetes takes lower case, digits and dashes.
    name = re.sub(r"[^a-z0-9]+", "-", job.recipe.name.lower())[:40].strip("-") or "job"
    metadata: dict[str, Any] = {"generateName": f"{name}-"}
    if "namespace" in cluster["metadata"]:
        metadata["namespace"] = cluster["metadata"]["namespace"]
    if _QUEUE_LABEL in labels:
        metadata["labels"] = {_QUEUE_LABEL: labels[_QUEUE_LABEL]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": shlex.join(run),
            "backoffLimit": _RETRIES,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": spec,
        },
    }


def _list_overrides(job: SubmittedJob, spec: dict[str, Any]) -> list[str]:
    """The overrides, with a relative root below the pods' RUNGWISE_ROOT, or UserError."""
    root = job.recipe.root
    if is_remote(root) or Path(root).is_absolute():
        return [*job.overrides]
    overrides = [each for each in job.overrides if not each.startswith("root=")]
    # Ray runs in the first container; the others are beside it.
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    for variable in head.get("env", []):
        if variable["name"] == ROOT_VARIABLE and "value" in variable:
            return [*overrides, f"root={variable['value']}/{root}"]
    raise UserError(
        f"root: {root} is a folder, and each pod would have its own; give "
        f"root=s3://BUCKET/PREFIX, or set {ROOT_VARIABLE} in the overlay"
    )


def render_cluster(overlay: Path) -> dict[str, Any]:
    """The RayCluster of an overlay, rendered by kubectl."""
    if not overlay.is_dir():
        raise UserError(f"--kubernetes: expected a folder of kustomize, found {overlay}")
    manifests = yaml.safe_load_all(_run_kubectl(["kustomize", str(overlay)]))
    clusters = [each for each in manifests if each["kind"] == "RayCluster"]
    if len(clusters) != 1:
        raise UserError(f"{overlay}: expected one RayCluster, found {len(clusters)}")
    return clusters[0]


def _run_kubectl(arguments: list[str], text: str | None = None) -> str:
    if shutil.which("kubectl") is None:
        raise UserError("kubectl is not on PATH (Debian: apt-get install kubernetes-client)")
    command = ["kubectl", *arguments]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        raise UserError(f"kubectl {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout
