"""Boards, rules and their page: what is committed is what is made, and names only what there is."""

import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from dashboards.boards import BOARDS
from dashboards.generate import FOLDER, files
from rungwise.commands.parser import VERBS
from rungwise.monitoring import METRICS, PREFIX
from tests.conftest import REPOSITORY

RULES = sorted((FOLDER / "prometheus" / "rules").glob("*.yml"))
TESTS = FOLDER / "prometheus" / "tests" / "alerts_test.yml"
# In default-counters.csv of NVIDIA's dcgm-exporter.
DCGM = {
    *("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_SM_CLOCK"),
    *("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_POWER_USAGE"),
    "DCGM_FI_DEV_GPU_TEMP",
}


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    shown = [query for board in BOARDS for chart in board.charts for query, _ in chart.queries]
    return [query.replace("$run", ".*") for query in shown] + [rule["expr"] for rule in rules()]


def selectors(expression: str) -> Iterator[Any]:
    """Every vector selector of an expression."""

    def walk(node: Any) -> Iterator[Any]:
        if isinstance(node, promql_parser.VectorSelector):
            yield node
        for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
            if (below := getattr(node, name, None)) is not None:
                yield from walk(below)
        for below in getattr(node, "args", None) or ():
            yield from walk(below)

    return walk(promql_parser.parse(expression))


def test_what_is_committed_is_what_boards_and_catalogue_make() -> None:
    for name, text in files().items():
        assert (FOLDER / name).read_text("utf-8") == text, f"{name}: run `make dashboards`"
    committed = {path.name for path in (FOLDER / "grafana" / "boards").iterdir()}
    assert committed == {f"{board.uid}.json" for board in BOARDS}


@pytest.mark.parametrize("uid", [board.uid for board in BOARDS])
def test_a_board_has_unique_ids_units_and_variables(uid: str) -> None:
    board = json.loads((FOLDER / "grafana" / "boards" / f"{uid}.json").read_text())
    assert board["uid"] == uid
    variables = {one["name"]: one["type"] for one in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "run": "query"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert ("$run" in target["expr"]) == ("rungwise" in target["expr"]), target["expr"]


def test_every_metric_of_an_expression_is_ours_or_was_seen_in_ray() -> None:
    ray = set((FOLDER / "ray_metrics.txt").read_text().split())
    ours = {f"ray_{PREFIX}{metric.name}": set(metric.labels) for metric in METRICS}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used: set[str] = set()
    for expression in expressions():
        for selector in selectors(expression):
            assert selector.name in ours or selector.name in ray | DCGM | recorded, selector.name
            if selector.name in ours:
                asked = {matcher.name for matcher in selector.matchers.matchers}
                assert asked <= ours[selector.name], expression
                used.add(selector.name)
    # What is set and on no board or alert would be paid for by nobody's look.
    assert ours.keys() - used == {
        f"ray_{PREFIX}{name}" for name in ("tokens_per_second", "slowest_rank", "nodes")
    }


def test_every_alert_says_what_to_do_and_has_a_case_that_fires() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    for rule in alerts:
        assert len(rule["annotations"]["description"]) > 150, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        # A command that it names is one of ours.
        for verb in re.findall(r"`rungwise ([\w-]+)", rule["annotations"]["description"]):
            assert verb.replace("-", "_") in itertools.chain(*VERBS.values())
    fired = set(re.findall(r'labels: \'\{alertname="(\w+)"', TESTS.read_text()))
    assert fired == {rule["alert"] for rule in alerts}


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool (Debian: apt-get install prometheus)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    promtool("check", "rules", *map(str, RULES))
    token = tmp_path / ".rungwise" / "clusters" / "local" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("x")
    promtool("check", "config", str(write_local_prometheus(tmp_path, tmp_path)))


def write_local_prometheus(home: Path, folder: Path) -> Path:
    """The configuration for the cluster of `rungwise up`, as the page has it made."""
    text = (FOLDER / "prometheus" / "local.yml").read_text()
    file = folder / "prometheus.yml"
    file.write_text(text.replace("HOME", str(home)).replace("BOARDS", str(FOLDER / "prometheus")))
    return file


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(TESTS))


class _Api(BaseHTTPRequestHandler):
    """Prometheus' page and an API without values, which first fails once."""

    asked = 0

    def do_GET(self) -> None:
        if self.path == "/consoles/rungwise.html":
            body = (FOLDER / "prometheus" / "consoles" / "rungwise.html").read_bytes()
        else:
            values = {"result": []} if "query_range" in self.path else []
            status = "success" if _Api.asked else "error"
            body = json.dumps({"status": status, "data": values, "error": "starting"}).encode()
            _Api.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_the_page_recovers_when_prometheus_answers_again() -> None:
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/consoles/rungwise.html"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=70000"]
        said = subprocess.run(["chromium", *flags, "--dump-dom", url], capture_output=True)
        server.shutdown()
    shown = said.stdout.decode().partition("<main")[2].partition("</main>")[0]
    assert _Api.asked > 1
    assert "no values in this time" in shown
    assert "does not answer" not in shown


def test_grafana_finds_boards_and_data_source() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "dashboards.md").read_text()
    variables = dict(re.findall(r"([A-Z_]+)=(\S+)", page))
    provisioning = variables["GF_PATHS_PROVISIONING"].replace("$PWD", str(REPOSITORY))
    files = Path(provisioning).rglob("*.yml")
    asked = set(re.findall(r"\$\{(\w+)\}", "".join(path.read_text() for path in files)))
    assert asked == {name for name in variables if name.startswith("RUNGWISE_")}
    boards = Path(variables["RUNGWISE_BOARDS"].replace("$PWD", str(REPOSITORY)))
    assert list(boards.glob("*.json"))
