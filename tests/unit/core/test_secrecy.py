"""Secrets are cut from what is shown, logged and sent, and nothing is cut from what is used."""

import json
import logging
import re
import string
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rungwise.__main__ import main
from rungwise.core.configuration.overrides import find_value
from rungwise.core.configuration.secrecy import find_credential, redact, redact_data
from rungwise.core.errors import ConfigError
from rungwise.core.exit_codes import run_command
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking import sender
from rungwise.core.tracking.tracker import Tracker
from rungwise.corpus.summary import CORPUS
from rungwise.pipeline.recipe import Recipe
from rungwise.tasks.config import TASK
from rungwise.tasks.data.files import build_task
from rungwise.tasks.kinds.examples import TaskSummary, read_examples

TEXTS = yaml.safe_load(Path(__file__).with_name("secret_texts.yaml").read_text())
SIGNED = "https://b.s3.amazonaws.com/x.txt?X-Amz-Credential=a1&X-Amz-Signature=0f1e2d3c"
LABELS = ("Password: Reset", "Password: Expired", "Printer: Paper", "api_key=abc", "a:b@c")
PRINTABLE = "".join(set(string.printable) - set(string.whitespace) - set("\"'<>`"))
PLAIN = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)


@pytest.mark.parametrize("before", ["", "a line before\n"])
def test_a_secret_is_cut_whatever_its_form(before: str) -> None:
    for marked in TEXTS["secrets"]:
        text = marked.replace("⟪", "").replace("⟫", "")
        shown = redact(f"{before}{text}")
        assert not [part for part in re.findall("⟪(.*?)⟫", marked) if part in shown], marked
        assert shown.startswith(before), marked
        assert redact(shown) == shown, marked


def test_what_is_no_secret_stays_byte_for_byte() -> None:
    assert [text for text in TEXTS["innocent"] if redact(text) != text] == []


@given(
    scheme=st.sampled_from(["s3", "https", "postgresql+psycopg2", "redis"]),
    user=PLAIN,
    password=st.text(PRINTABLE, min_size=4, max_size=20).filter(
        lambda text: not re.match(r"\d{1,5}[/?#]", text)  # which is a port
    ),
    path=st.lists(PLAIN, max_size=3).map("/".join),
)
def test_a_password_is_cut_alone(scheme: str, user: str, password: str, path: str) -> None:
    assert redact(f"{scheme}://{user}:{password}@host.of/{path}") == f"{scheme}://host.of/{path}"


@pytest.mark.parametrize(
    "part",
    [
        *("a://b:", 'a://b:"@', "x", " ", "a,", "a.b-", "?a", "?key=", "<password>", "secrets: {"),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----abcdefghijklmnopqrst", "eyJ"),
        *("password ", "password: ", "password=a,", "password='", "password='\\'", "'password',"),
        *(
            "password:password",
            "secrets:\n ",
            "password:\n a ",
            "secret: |\n a\n",
            "token: a1b2",
            "login x password ",
        ),
        *("authorization: basic ", "cookie: a", "bearer ", "sk-", "xoxb", "eyJaaaaaaaa."),
    ],
)
def test_cutting_takes_time_linear_in_the_text(part: str) -> None:
    """A search that is quadratic would take five seconds for one of these."""
    began = time.process_time()
    redact(part * (80_000 // len(part)))
    assert time.process_time() - began < 1.5


def test_data_keeps_its_keys_and_other_values() -> None:
    data = {"password": "hunter2", "labels": [*LABELS[:3]], "tokens": 12, "uri": SIGNED}
    shown = redact_data(data)
    assert shown | {"password": "hunter2", "uri": SIGNED} == data
    assert shown["password"] == "..."
    assert "0f1e2d3c" not in shown["uri"]


def _recipe(**keys: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "x",
            "corpus": {"sources": [{"kind": "text", "paths": ["x.txt"]}]},
            "tokenizer": {"kind": "word", "vocab_size": 100},
        }
        | keys
    )


def _corpus_stage(**source: Any) -> Any:
    """A stage of a corpus that looks at no file."""
    config = _recipe(corpus={"sources": [{"kind": "jsonl", "paths": ["x.jsonl"]} | source]}).corpus
    return CORPUS.__class__("corpus", 1, CORPUS.run, CORPUS.summary).stage(config)


def _finish(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    stage = _corpus_stage()
    place = Folder.at(folder) / f"x-{stage.fingerprint}"
    place.write_bytes("data", b"")
    facts = {"facts": stage.facts, "inputs": {}, "stage": "corpus"}
    artifacts.finish(place, record | facts | {"fingerprint": stage.fingerprint}, {})
    artifact = artifacts.load(place)
    assert artifact is not None
    return artifact.record


FREE_TEXT = st.sampled_from([*LABELS, *TEXTS["innocent"]]) | st.text(min_size=1)
FREE_TEXT = FREE_TEXT.filter(lambda text: "\0" not in text and text.isprintable())


@pytest.mark.parametrize("key", ["text_field", "licence"])
@settings(max_examples=50)
@given(texts=st.lists(FREE_TEXT, min_size=2, max_size=5, unique=True))
@example(texts=["author:title@conf", "author:text@conf"])
def test_texts_that_differ_give_fingerprints_that_differ(key: str, texts: list[str]) -> None:
    assert len({_corpus_stage(**{key: text}).fingerprint for text in texts}) == len(texts)


def test_a_record_keeps_every_text_to_the_letter(tmp_path: Path) -> None:
    texts = [*LABELS, *TEXTS["innocent"], *TEXTS["secrets"]]
    record = {"config": {"labels": texts}, "summary": {"headline": texts[0], "by": {texts[0]: 1}}}
    assert record.items() <= _finish(tmp_path, record).items()


def test_labels_like_secrets_are_data_from_the_file_to_the_record(tmp_path: Path) -> None:
    """Two labels became one in the record of a task, and one recipe got the data of another."""
    file = tmp_path / "labels.tsv"
    rows = [f"a text {number}\t{label}" for number, label in enumerate(LABELS * 12)]
    file.write_text("\n".join(["text\tlabel", *rows]) + "\n")

    def recipe(**keys: Any) -> Recipe:
        columns = {"text": "text", "label": "label"}
        data = {"kind": "files", "format": {"kind": "table", "columns": columns}}
        data |= {"train": str(file), "validation_fraction": 0.2, "test_fraction": 0.2}
        data["format"] |= keys
        return _recipe(tasks={"tickets": {"data": data}})

    config = recipe().tasks["tickets"].data
    stage = TASK.stage(config)
    folder = Folder.at(tmp_path) / f"x-{stage.fingerprint}"
    summary = build_task(config, {}, folder, Context())
    record = {"stage": "task", "label": "x", "fingerprint": stage.fingerprint, "inputs": {}}
    record |= {"facts": stage.facts, "summary": summary.model_dump(mode="json")}
    artifacts.finish(folder, record, summary.sha256)
    artifact = artifacts.load(folder)
    assert artifact is not None
    assert set(TaskSummary.of(artifact).info.labels) == set(LABELS)
    assert {example.target for example in read_examples(artifact, "test")} == set(LABELS)
    prints = set()
    for label in LABELS:
        other = recipe(skip_labels=[label])
        key = "tasks.tickets.data.format.skip_labels.0"
        assert find_value(other.to_record("r"), key) == label
        assert find_value(yaml.safe_load(other.to_yaml()), key) == label
        prints.add(TASK.stage(other.tasks["tickets"].data).fingerprint)
    assert len(prints) == len(LABELS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tracking": {"uri": "https://me:hunter2@mlflow"}}, r"tracking\.uri holds a password"),
        (
            {"corpus": {"sources": [{"kind": "text", "paths": ["a.txt", SIGNED]}]}},
            r"corpus\.sources\.0\.paths\.1 holds a signature .*AWS_PROFILE",
        ),
        ({"root": "s3://key:hunter2@bucket/x"}, "root holds a password"),
        ({"root": "s3://bucket/x?sig=hunter2"}, "root holds a signature"),
        (
            {"variants": {"a": {"pretrain.initial": "hf_aBcDeFgHiJkLmNoPqRsTuV"}}},
            r"variants\.a\.pretrain\.initial holds a token, .*HF_TOKEN",
        ),
    ],
)
def test_a_credential_in_a_recipe_is_refused_at_its_key(keys: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _recipe(**keys)
    assert "hunter2" not in str(caught.value)
    assert "0f1e2d3c" not in str(caught.value)


def test_text_that_only_looks_like_a_secret_is_no_credential() -> None:
    for text in (*LABELS, "author:text@conf", *TEXTS["innocent"]):
        assert find_credential({"a": [text]}) is None, text


SIGNED_SOURCE = f"s3://bucket-of-nobody/x.txt{SIGNED[SIGNED.index('?') :]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", SIGNED_SOURCE],
        ["tasks", SIGNED_SOURCE],
        ["data", SIGNED_SOURCE],
        ["plan", "pretrain", "bert-mini", f"corpus.sources.0.paths=[{SIGNED_SOURCE}]"],
        ["plan", "pretrain", "bert-mini", f"corpus.sources.0.path={SIGNED_SOURCE}"],
        ["plan", "pretrain", SIGNED_SOURCE],
        ["why", SIGNED_SOURCE],
        ["predict", SIGNED_SOURCE, "--input", "x.txt"],
        ["export", "bert-mini", f"root={SIGNED_SOURCE}", "--to", "x"],
    ],
)
def test_a_source_that_cannot_be_read_is_shown_without_its_signature(
    arguments: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"ENDPOINT_URL": "http://127.0.0.1:9", "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    try:
        status = main(arguments)
    except SystemExit as error:  # of argparse
        status = error.code
    shown = capfd.readouterr()
    assert status == 2
    assert "0f1e2d3c" not in shown.out + shown.err


def test_an_unexpected_error_keeps_its_traceback_and_no_secret(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(OSError, match="0f1e2d3c") as caught:
        run_command(lambda: _fail(OSError(f"403 of {SIGNED}")))
    sys.excepthook(caught.type, caught.value, caught.tb)
    line = logging.LogRecord("urllib3", logging.WARNING, "", 0, "retry %s", (SIGNED,), None)
    assert logging.lastResort is not None
    shown = capfd.readouterr().err + logging.lastResort.format(line)
    assert "0f1e2d3c" not in shown
    assert shown.count("X-Amz-Signature=...") == 2
    assert "Traceback" in shown


def _fail(error: Exception) -> int:
    raise error


def test_a_spool_holds_no_secret_and_what_is_read_back_to_the_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that is away; else the thread would still import MLflow while other tests run.
    monkeypatch.setattr(sender, "open_store", lambda uri: _fail(ConnectionError(uri)))
    texts = [text.replace("⟪", "").replace("⟫", "") for text in TEXTS["secrets"]]
    tracker = Tracker("http://u:s3cr3t-000@127.0.0.1:9", "x", tmp_path / "spool")
    file = str(tmp_path / "password=hunter2" / "page.html")
    tracker.open("key", "a", params={"texts": texts, "labels": LABELS[:3], "password": "hunter2"})
    tracker.tags("key", {"note": "\n".join(texts), "label": LABELS[0]})
    tracker.artifact("key", file)
    tracker.finish(0.1)
    [spool] = [path for path in tmp_path.rglob("*") if path.is_file()]
    lines = [json.loads(line) for line in spool.read_text().splitlines()]
    opened, tags, artifact = (
        next(line for line in lines if line.get("op") == op) for op in ("open", "tags", "artifact")
    )
    shown = json.dumps([opened, tags, lines[0]], ensure_ascii=False)
    for secret in ("s3cr3t-000", "hunter2", "AKIAIOSFODNN7EXAMPLE", "0f1e2d", "swordfish"):
        assert secret not in shown
    assert opened["params"]["labels"] == [*LABELS[:3]]
    assert tags["tags"]["label"] == LABELS[0]
    assert artifact["path"] == file
