"""The manifests: valid by the schemas of KubeRay and Kubernetes, and of one piece with the rest.

RUNGWISE_KUBERAY, or else ../shared/kuberay, holds the Helm chart of the KubeRay operator, whose
schemas are too large to keep here.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import psutil
import pytest
import yaml

from rungwise.cluster import drain
from rungwise.pipeline.stages import pretrain_config
from rungwise.pipeline.workflow import load_recipe
from rungwise.training.estimate import Measures, estimate_run
from rungwise.training.fit_config import require_gradient
from tests.conftest import REPOSITORY
from tests.infra.pods import KUBERAY, render, write_overlay
from tests.waiting import wait_until

INFRA = REPOSITORY / "infra"
OVERLAYS = KUBERAY / "overlays"
KUBERNETES = "1.32"
H100 = 80e9  # bytes
CHART = Path(os.environ.get("RUNGWISE_KUBERAY", REPOSITORY.parent / "shared" / "kuberay"))
SCHEMAS = CHART / "helm-chart" / "kuberay-operator" / "crds"

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl (Debian: kubernetes-client)"
)


def render_one(overlay: Path, kind: str) -> dict[str, Any]:
    [manifest] = [each for each in render(overlay) if each["kind"] == kind]
    return manifest


def render_cluster(overlay: Path) -> dict[str, Any]:
    return render_one(overlay, "RayCluster")


def find_container(name: str) -> dict[str, Any]:
    [container] = [
        container
        for each in render(KUBERAY / "services")
        if each["kind"] == "Deployment" and each["metadata"]["name"] == name
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    return container


def list_groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


@pytest.fixture
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An overlay of the repository, or `own`: that of a user who adds every component to `spot`."""
    if request.param != "own":
        return OVERLAYS / request.param
    return write_overlay(tmp_path, "spot", ["queue", "durable-head"])


@pytest.fixture
def rayjob(tmp_path: Path) -> dict[str, Any]:
    """The RayJob of a user who adds every component to `spot`."""
    folder = write_overlay(tmp_path / "job", "spot", ["queue", "durable-head"], job=True)
    return render_one(folder, "RayJob")


every_overlay = pytest.mark.parametrize("overlay", ["cpu", "spot", "gpu-efa", "own"], indirect=True)


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


@functools.cache
def read_schema(kind: str) -> jsonschema.Draft202012Validator:
    file = SCHEMAS / f"ray.io_{kind.lower()}s.yaml"
    if not file.is_file():
        pytest.skip(f"{file} is absent; RUNGWISE_KUBERAY names no copy of KubeRay")
    versions = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    [schema] = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
    schema["properties"]["spec"] = strict(schema["properties"]["spec"])
    return jsonschema.Draft202012Validator(schema)


@every_overlay
def test_a_manifest_is_valid_by_the_schema_and_a_misspelt_key_is_not(overlay: Path) -> None:
    check_schema(render_cluster(overlay))


def test_a_job_is_valid_by_the_schema_and_a_misspelt_key_is_not(rayjob: dict[str, Any]) -> None:
    for manifest in (render_one(OVERLAYS / "job", "RayJob"), rayjob):
        check_schema(manifest)


def check_schema(manifest: dict[str, Any]) -> None:
    check = read_schema(manifest["kind"])
    assert [error.message for error in check.iter_errors(manifest)] == []
    manifest["spec"]["rayVersoin"] = "2.60.0"
    assert not check.is_valid(manifest)


@every_overlay
def test_the_pods_are_valid_by_the_schema_of_kubernetes(overlay: Path) -> None:
    for group in list_groups(render_cluster(overlay)):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "of-a-group"}}
        kubernetes_validate.validate(pod | {"template": group["template"]}, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("overlay", "name"),
    [("cpu", "quickstart"), ("gpu-efa", "gpt2"), ("gpu-efa", "bert-large-batch")],
    indirect=["overlay"],
)
def test_what_dry_run_says_of_a_worker_fits_into_the_last_group(overlay: Path, name: str) -> None:
    group = render_cluster(overlay)["spec"]["workerGroupSpecs"][-1]
    requests = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    memory = int(requests["memory"].removesuffix("Gi")) * 2**30
    recipe = load_recipe(name)
    config, compute = require_gradient(pretrain_config(recipe), "steps"), recipe.compute
    assert recipe.instances is not None
    planned = Measures.planned(recipe.instances, recipe.planned_vocab_size())
    needs = estimate_run(config, [planned], compute, 1.0).memory_bytes_a_device
    assert needs < (H100 if compute.gpus_per_worker else memory / compute.num_workers)
    workers = compute.num_workers / group["maxReplicas"]
    assert workers * compute.cpus_per_worker <= float(requests["cpu"])
    assert workers * compute.gpus_per_worker <= float(requests.get("nvidia.com/gpu", 0))


def test_a_durable_head_claims_a_volume_of_the_class_that_it_brings() -> None:
    folder = KUBERAY / "components" / "durable-head"
    component, volume = (
        yaml.safe_load((folder / name).read_text())
        for name in ("kustomization.yaml", "storageclass.yaml")
    )
    kubernetes_validate.validate(volume, KUBERNETES, strict=True)
    assert component["resources"] == ["storageclass.yaml"]
    [change] = yaml.safe_load(component["patches"][0]["patch"])
    assert change["value"]["storage"]["storageClassName"] == volume["metadata"]["name"]
    addons = (INFRA / "terraform" / "modules" / "platform" / "eks.tf").read_text()
    assert volume["provisioner"] == "ebs.csi.aws.com"
    assert '"aws-ebs-csi-driver"' in addons


@every_overlay
def test_the_cluster_has_our_ray_one_image_one_root_and_two_probes(overlay: Path) -> None:
    cluster = render_cluster(overlay)
    version = cluster["spec"]["rayVersion"]
    assert f"ray=={version}\n" in (REPOSITORY / "constraints.txt").read_text()
    head, *workers = [each["template"]["spec"]["containers"][0] for each in list_groups(cluster)]
    for container in (head, *workers):
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert [each["name"] for each in head["env"]] == ["RUNGWISE_ROOT", "MLFLOW_TRACKING_URI"]
        assert container["env"][:2] == head["env"]
        for key in ("image", "readinessProbe", "livenessProbe"):
            assert container[key] == head[key]


@pytest.mark.parametrize("overlay", ["own"], indirect=True)
def test_a_queue_is_named_once_and_counts_all_pods_beforehand(
    overlay: Path, rayjob: dict[str, Any]
) -> None:
    """By Kueue's rules: a label, no autoscaler, and a RayJob that ends its cluster."""
    cluster = render_cluster(overlay)
    label = {"kueue.x-k8s.io/queue-name": "QUEUE"}
    assert cluster["metadata"]["labels"] == rayjob["metadata"]["labels"] == label
    assert rayjob["spec"]["shutdownAfterJobFinishes"]
    assert not cluster["spec"]["enableInTreeAutoscaling"]
    assert sum(each["replicas"] for each in cluster["spec"]["workerGroupSpecs"]) > 0
    assert rayjob["spec"]["rayClusterSpec"] == cluster["spec"]


def test_a_rayjob_has_the_cluster_of_its_overlay_and_a_root_in_a_bucket() -> None:
    manifests = {each["kind"]: each["spec"] for each in render(OVERLAYS / "job") if "spec" in each}
    [job] = manifests.values()
    assert job["rayClusterSpec"] == render_cluster(OVERLAYS / "cpu")["spec"]
    *run, root = job["entrypoint"].split()
    assert run == ["rungwise", "run", "pretrain", "quickstart"]
    assert root == "root=s3://BUCKET/rungwise/artifacts"


def test_the_image_holds_what_the_job_runs() -> None:
    image = (INFRA / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", image, re.M)
    assert all((REPOSITORY / name).exists() for names in copied for name in names.split())
    # The package holds folders beside it, and cannot be made without them.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {name.partition("/")[0] for name in included} <= {*" ".join(copied).split()}


def test_a_spot_pod_drains_before_it_ends() -> None:
    cluster = render_cluster(OVERLAYS / "spot")
    [spot] = [each for each in cluster["spec"]["workerGroupSpecs"] if each["groupName"] == "spot"]
    pod = spot["template"]["spec"]
    [container] = pod["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    *program, seconds = command
    assert program == ["python", "-m", drain.__spec__.name]
    assert drain.POD_VARIABLE in {each["name"] for each in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(seconds)


@pytest.mark.parametrize(("name", "example"), [("spot", "cpu-smoke"), ("gpu-efa", "gpu-efa")])
def test_pods_go_to_the_nodes_that_terraform_makes(name: str, example: str) -> None:
    """By the label and the taints of the node groups, with the account that may read the bucket."""
    cluster = render_cluster(OVERLAYS / name)
    [group] = [each for each in cluster["spec"]["workerGroupSpecs"] if each["groupName"] == name]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"rungwise/group": name}
    modules = INFRA / "terraform" / "modules" / "platform"
    groups = (modules / "node_groups.tf").read_text()
    assert 'labels = { "rungwise/group" = each.key }' in groups
    assert re.search(
        rf"^ +{name} += ", (INFRA / f"terraform/examples/{example}/main.tf").read_text(), re.M
    )
    [toleration] = pod["tolerations"]
    assert f'{{ "{toleration["key"]}" = "{toleration["value"]}" }}' in groups
    assert toleration["effect"] == "NoSchedule"
    pods = [each["template"]["spec"] for each in list_groups(cluster)]
    assert {pod["serviceAccountName"] for pod in pods} == {"rungwise"}


def test_the_services_are_valid_and_reached_from_inside_alone() -> None:
    for manifest in render(KUBERAY / "services"):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        if manifest["kind"] == "Service":
            assert manifest["spec"].get("type", "ClusterIP") == "ClusterIP"
        if manifest["kind"] == "Deployment":
            pod = manifest["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert {"readinessProbe", "livenessProbe"} <= pod["containers"][0].keys()
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_the_services_have_every_board_and_rule_and_what_these_ask_for() -> None:
    data = {
        re.sub(r"-[0-9a-z]{10}$", "", each["metadata"]["name"]): each["data"]
        for each in render(KUBERAY / "services")
        if each["kind"] == "ConfigMap"
    }
    for folder in ("prometheus/rules", "grafana/boards"):
        files = (REPOSITORY / "dashboards" / folder).iterdir()
        assert data[folder.replace("/", "-")] == {path.name: path.read_text() for path in files}
    container = find_container("grafana")
    settings = "".join([*data["grafana-datasources"].values(), *data["grafana-providers"].values()])
    wanted = set(re.findall(r"\$\{(\w+)\}", settings))
    assert wanted <= {each["name"] for each in container["env"]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_takes_its_settings(tmp_path: Path) -> None:
    """But for how it finds pods, which Debian's promtool was built without."""
    settings = yaml.safe_load((KUBERAY / "services" / "prometheus.yml").read_text())
    del settings["scrape_configs"][0]["kubernetes_sd_configs"]
    settings["rule_files"] = [str(REPOSITORY / "dashboards" / "prometheus" / "rules" / "*.yml")]
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, check=True)


@pytest.mark.parametrize("secret", [None, "arn:aws:secretsmanager:eu-west-1:1:secret:rds"])
def test_mlflow_gets_the_password_by_a_variable(secret: str | None, tmp_path: Path) -> None:
    """The pod's own program and arguments, with a server that prints what it was given."""
    container = find_container("mlflow")
    (tmp_path / "mlflow").write_text('#!/bin/sh\necho "$@"\necho "$MLFLOW_BACKEND_STORE_URI"\n')
    (tmp_path / "mlflow").chmod(0o700)
    # A stand-in of botocore, which the program finds first.
    (tmp_path / "botocore").mkdir()
    (tmp_path / "botocore" / "__init__.py").touch()
    (tmp_path / "botocore" / "session.py").write_text(_BOTOCORE)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(tmp_path), "DATABASE": "postgresql://mlflow@host:5432/mlflow"}
    environment |= {"DATABASE_SECRET": secret} if secret else {}
    command = [sys.executable, str(KUBERAY / "services" / "start_mlflow.py"), *container["args"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    arguments, uri = done.stdout.splitlines()
    assert arguments == " ".join(["server", *container["args"]])
    password = ":p%40ss%2Fw%C3%B6rd" if secret else ""
    assert uri == f"postgresql://mlflow{password}@host:5432/mlflow"


@pytest.mark.slow
def test_mlflow_answers_its_probes_until_its_database_fails(
    tmp_path: Path, unused_port: int
) -> None:
    """The server with the manifest's arguments, but for its port, disk and database."""
    container = find_container("mlflow")
    arguments = [each for each in container["args"] if not each.startswith(("--art", "--port"))]
    arguments += [f"--port={unused_port}", f"--artifacts-destination={tmp_path / 'files'}"]
    program = [sys.executable, str(KUBERAY / "services" / "start_mlflow.py"), *arguments]
    binaries = Path(sys.executable).parent
    environment = {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    database = tmp_path / "mlflow.db"

    def answer(probe: str) -> int:
        question = container[probe]["httpGet"]
        request = urllib.request.Request(f"http://127.0.0.1:{unused_port}{question['path']}")
        for header in question.get("httpHeaders", []):
            request.add_header(header["name"], header["value"])
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    with (tmp_path / "log").open("w") as log:
        server = psutil.Popen(
            program,
            env=environment | {"DATABASE": f"sqlite:///{database}"},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until((tmp_path / "log").read_text, lambda: answer("startupProbe") == 200, 120)
        assert answer("readinessProbe") == answer("livenessProbe") == 200
        database.write_bytes(b"no database")
        assert answer("livenessProbe") >= 400
    finally:
        for process in [*server.children(recursive=True), server]:
            process.kill()
        server.wait(30)


_BOTOCORE = """
import json
class Client:
    def get_secret_value(self, SecretId):
        assert SecretId.startswith("arn:")
        return {"SecretString": json.dumps({"username": "mlflow", "password": "p@ss/w\u00f6rd"})}
class Session:
    def create_client(self, name, region_name):
        assert (name, region_name) == ("secretsmanager", "eu-west-1")
        return Client()
get_session = Session
"""
