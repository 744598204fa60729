"""Boards and rules against a real Prometheus: small runs, a sweep, a lost node."""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.boards import BOARDS
from dashboards.generate import FOLDER
from rungwise.cluster.local import HOME_VARIABLE, find_port
from rungwise.training.ray.resume_proof import kill_with_children
from tests.commands import copy_project
from tests.conftest import REPOSITORY, small_gpt, small_recipe, write_corpus, write_recipe
from tests.ray.test_up_down import Up, rungwise, started
from tests.ray.test_workflow import DOWNSTREAM
from tests.unit.cluster.test_dashboards import DCGM, rules, selectors, write_local_prometheus
from tests.waiting import is_healthy, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
_PATIENCE_SECONDS = 1500  # of a busy machine, for each wait


ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Prometheus:
    """The answers of the cluster's Prometheus over all that has been scraped."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.began = time.time()

    def get(self, path: str, **values: Any) -> Any:
        url = f"{self.uri}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        """What a query has answered at any time since the cluster began."""
        found = self.get("query_range", query=query, start=self.began, end=time.time(), step=5)
        return found["result"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Prometheus]]:
    """Two nodes after a small workflow with sweeps, and a GPT that lost one of them."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus (Debian: apt-get install prometheus)")
    folder = copy_project(tmp_path_factory.mktemp("boards"))
    text = write_corpus(tmp_path_factory.mktemp("text"), documents=90)
    sources = [
        {"kind": "text", "paths": [f"{text}/library{n}-*.txt"], "label": f"library{n}"}
        for n in range(3)
    ]
    recipe = small_recipe(Path("artifacts"), text, **DOWNSTREAM)
    recipe["corpus"]["sources"] = sources
    recipe["compute"] |= {"price_per_hour": 2.0, "budget": 100.0, "min_workers": 1}
    recipe["pretrain"]["steps"] = 200
    shared = {name: recipe[name] for name in ("corpus", "compute")}
    causal = small_recipe(Path("artifacts"), text, name="gpt", **small_gpt()) | shared
    causal["pretrain"] |= {"steps": 100_000}
    write_recipe(folder / "small.yaml", recipe)
    write_recipe(folder / "gpt.yaml", causal)
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv(HOME_VARIABLE, str(home))
        with started(home, folder) as up, contextlib.ExitStack() as stack:
            config = write_local_prometheus(home, folder)
            token = str(home / ".rungwise" / "clusters" / "local" / "token")
            config.write_text(config.read_text().replace(token, up.cluster.token_path))
            command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={home}"]
            address = f"127.0.0.1:{find_port(9090)}"
            command += [f"--web.listen-address={address}"]
            command += [f"--web.console.templates={FOLDER / 'prometheus' / 'consoles'}"]
            server = stack.enter_context(subprocess.Popen(command))
            stack.callback(server.terminate)
            prometheus = Prometheus(f"http://{address}")

            def wait(what: str, holds: Callable[[], object]) -> None:
                wait_until(what, holds, _PATIENCE_SECONDS)

            wait("Prometheus", lambda: is_healthy(f"http://{address}", "-/ready"))
            submit = ["submit", "--no-wait"]
            rungwise(*submit, "workflows/finetune.py", "small.yaml", folder=folder)
            wait("the workflow", lambda: up.get("/api/jobs/")[0]["status"] in ENDED)
            assert up.get("/api/jobs/")[0]["status"] == "SUCCEEDED"
            rungwise(*submit, "workflows/pretrain.py", "gpt.yaml", folder=folder)
            tokens = 'ray_rungwise_tokens_total{run="gpt"}'
            wait("tokens of the GPT", lambda: prometheus.series(tokens))
            kill_with_children(up.find_raylet("127.0.0.3").pid)
            lost = 'ray_rungwise_nodes_lost_total{run="gpt", reason="failed"} > 0'
            wait("the lost node", lambda: prometheus.series(lost))
            fired = 'ALERTS{alertname="NodeLost", alertstate="firing"}'
            wait("its alert", lambda: prometheus.series(fired))
            (job,) = [row for row in up.get("/api/jobs/") if row["status"] not in ENDED]
            up.get(f"/api/jobs/{job['submission_id']}/stop", "POST")
            active = "rungwise:stage_active"
            wait("the end", lambda: prometheus.get("query", query=active)["result"] == [])
            yield up, prometheus


def test_every_panel_has_an_answer_but_those_of_gpus(cluster: tuple[Up, Prometheus]) -> None:
    _, prometheus = cluster
    silent = {
        (board.title, chart.title, query)
        for board in BOARDS
        for chart in board.charts
        for query, _ in chart.queries
        if not chart.gpu and not prometheus.series(query.replace("$run", ".+"))
    }
    assert not silent


def test_every_rule_reads_series_that_are_there(cluster: tuple[Up, Prometheus]) -> None:
    _, prometheus = cluster
    silent = set()
    for rule in rules():
        if "record" in rule and not prometheus.series(rule["record"]):
            silent.add(rule["record"])
        for selector in selectors(rule["expr"]):
            matchers = ",".join(
                f'{one.name}{"=~" if "|" in one.value else "="}"{one.value}"'
                for one in selector.matchers.matchers
            )
            query = f"{selector.name}{{{matchers}}}"
            if selector.name not in DCGM and not prometheus.series(query):
                silent.add(query)
    assert not silent


def test_the_lost_node_alerted_and_the_finished_runs_do_not(cluster: tuple[Up, Prometheus]) -> None:
    _, prometheus = cluster
    fired = {one["metric"]["alertname"] for one in prometheus.series('ALERTS{alertstate="firing"}')}
    assert "NodeLost" in fired
    assert not fired & {"NoTokens", "BudgetPassed", "TokensInNoInstance", "ClusterIdle"}
    assert prometheus.get("query", query="rungwise:stage_active")["result"] == []
    for group in prometheus.get("rules")["groups"]:
        assert {rule["health"] for rule in group["rules"]} == {"ok"}, group["name"]


def test_every_node_is_measured(cluster: tuple[Up, Prometheus]) -> None:
    _, prometheus = cluster
    nodes = {each["metric"]["ip"] for each in prometheus.series("ray_node_mem_total")}
    assert nodes == {"127.0.0.2", "127.0.0.3"}
    targets, well = (
        {each["metric"]["instance"] for each in prometheus.series(query)}
        for query in ("up", "up == 1")
    )
    assert targets == well


def test_the_page_is_served_beside_the_api(cluster: tuple[Up, Prometheus]) -> None:
    _, prometheus = cluster
    url = f"{prometheus.uri}/consoles/rungwise.html"
    with urllib.request.urlopen(url, timeout=30) as answer:
        served = answer.read().decode()
    committed = REPOSITORY / "dashboards" / "prometheus" / "consoles" / "rungwise.html"

    def boards(page: str) -> Any:
        return json.loads(page.partition("const BOARDS = ")[2].partition(";\nconst")[0])

    # Prometheus runs the page through its templates, which take out comments and nothing else.
    assert boards(served) == boards(committed.read_text("utf-8"))
    assert served.count("\n") >= committed.read_text("utf-8").count("\n") - 2
