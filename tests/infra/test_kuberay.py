"""The manifests for KubeRay: valid by its schemas, and of one piece with the rest of the project.

RUNGWISE_KUBERAY, or else ../shared/kuberay, holds the Helm chart of the KubeRay operator, whose
schemas are too large to keep here.
"""

import os
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from rungwise.cluster import drain
from rungwise.submission.job import load_job
from rungwise.submission.kubernetes import make_rayjob, render_cluster
from tests.conftest import REPOSITORY

INFRA = REPOSITORY / "infra"
OVERLAY = INFRA / "kuberay" / "overlays" / "cpu"
CHART = Path(os.environ.get("RUNGWISE_KUBERAY", REPOSITORY.parent / "shared" / "kuberay"))
SCHEMAS = CHART / "helm-chart" / "kuberay-operator" / "crds"

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl (Debian: kubernetes-client)"
)


def manifest(kind: str, overlay: str = "cpu") -> dict[str, Any]:
    cluster = render_cluster(OVERLAY.parent / overlay)
    if kind == "raycluster":
        return cluster
    overrides = ["root=s3://BUCKET/rungwise"]
    job = load_job(str(REPOSITORY), "pretrain", "quickstart", overrides)
    return make_rayjob(job, cluster)


def strict(schema: Any) -> Any:
    """The schema, in which a key that it does not name is a fault, as `kubectl` has it."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema
    is_block = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    return inner | ({} if is_open or not is_block else {"additionalProperties": False})


@pytest.mark.parametrize("kind", ["raycluster", "rayjob"])
@pytest.mark.parametrize("overlay", ["cpu", "spot", "gpu-efa"])
def test_a_manifest_is_valid_by_the_schema_and_a_misspelt_key_is_not(
    kind: str, overlay: str
) -> None:
    file = SCHEMAS / f"ray.io_{kind}s.yaml"
    if not file.is_file():
        pytest.skip(f"{file} is absent; RUNGWISE_KUBERAY names no copy of KubeRay")
    versions = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    [schema] = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
    schema["properties"]["spec"] = strict(schema["properties"]["spec"])
    check = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in check.iter_errors(manifest(kind, overlay))] == []
    wrong = manifest(kind, overlay)
    wrong["spec"]["rayVersoin"] = "2.60.0"
    assert not check.is_valid(wrong)


def test_the_cluster_has_the_ray_of_the_project_and_one_image() -> None:
    spec = manifest("raycluster")["spec"]
    assert f"ray=={spec['rayVersion']}\n" in (REPOSITORY / "constraints.txt").read_text()
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [each["template"]["spec"]["containers"][0] for each in groups]
    assert len({container["image"] for container in containers}) == 1
    for container in containers:
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert [each["name"] for each in container["env"]] == ["RUNGWISE_ROOT"]


def test_the_image_holds_what_the_job_runs() -> None:
    assert manifest("rayjob")["spec"]["entrypoint"].endswith("root=s3://BUCKET/rungwise")
    image = (INFRA / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", image, re.M)
    assert all((REPOSITORY / name).exists() for names in copied for name in names.split())
    # The package holds folders beside it, and cannot be made without them.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {name.partition("/")[0] for name in included} <= {*" ".join(copied).split()}


def test_a_spot_pod_drains_before_it_ends() -> None:
    cluster = render_cluster(OVERLAY.parent / "spot")
    [spot] = [each for each in cluster["spec"]["workerGroupSpecs"] if each["groupName"] == "spot"]
    pod = spot["template"]["spec"]
    [container] = pod["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    *program, seconds = command
    assert program == ["python", "-m", drain.__spec__.name]
    assert drain.POD_VARIABLE in {each["name"] for each in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(seconds)


@pytest.mark.parametrize(("overlay", "example"), [("spot", "cpu-smoke"), ("gpu-efa", "gpu-efa")])
def test_pods_go_to_the_nodes_that_terraform_makes(overlay: str, example: str) -> None:
    """By the label and the taints of the node groups, with the account that may read the bucket."""
    cluster = render_cluster(OVERLAY.parent / overlay)
    [group] = [one for one in cluster["spec"]["workerGroupSpecs"] if one["groupName"] == overlay]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"rungwise/group": overlay}
    modules = INFRA / "terraform" / "modules" / "platform"
    groups = (modules / "node_groups.tf").read_text()
    assert 'labels = { "rungwise/group" = each.key }' in groups
    assert re.search(
        rf"^ +{overlay} += ", (INFRA / f"terraform/examples/{example}/main.tf").read_text(), re.M
    )
    [toleration] = pod["tolerations"]
    assert f'{{ "{toleration["key"]}" = "{toleration["value"]}" }}' in groups
    assert toleration["effect"] == "NoSchedule"
    every = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    assert {each["template"]["spec"]["serviceAccountName"] for each in every} == {"rungwise"}


def test_a_drain_is_of_this_pods_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = (SimpleNamespace(node_manager_address=f"10.0.0.{end}") for end in (1, 2))
    nodes, drained = {b"\x01": mine, b"\x02": other}, list[str]()

    def drain_node(node: str, *_: Any, **__: Any) -> tuple[bool, str]:
        drained.append(node)
        del nodes[bytes.fromhex(node)]
        return True, ""

    client = SimpleNamespace(get_all_node_info=lambda **_: nodes, drain_node=drain_node)
    monkeypatch.setattr(drain, "GcsClient", lambda address: client)
    drain.drain("10.0.0.9:6379", "10.0.0.1", 100)
    assert drained == ["01"]
