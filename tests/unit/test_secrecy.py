"""Secrets planted in URIs, whatever they look like, reach neither records nor spools nor MLflow."""

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.secrecy import without_password
from rungwise.core.errors import UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.corpus.config import CorpusConfig, TextSource
from rungwise.corpus.summary import CORPUS
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.reference import resolved

PRINTABLE = "".join(set(string.printable) - set(string.whitespace))
PLAIN = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)


@given(
    scheme=st.sampled_from(["s3", "https", "postgresql+psycopg2", "redis"]),
    user=PLAIN,
    password=st.text(PRINTABLE, min_size=4, max_size=20),
    path=st.lists(PLAIN, max_size=3).map("/".join),
)
def test_a_password_of_any_characters_is_cut_and_the_place_stays(
    scheme: str, user: str, password: str, path: str
) -> None:
    shown = without_password(f"{scheme}://{user}:{password}@host.of/{path}")
    assert shown == f"{scheme}://host.of/{path}"
    assert without_password(shown) == shown


@pytest.mark.parametrize(
    "name",
    [
        *("X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Credential", "sig", "Signature"),
        *("access_token", "token", "password", "pwd", "api_key", "apikey", "client_secret"),
    ],
)
def test_what_signs_an_address_is_cut_and_the_rest_of_the_query_stays(name: str) -> None:
    uri = "https://host/x?versionId=3&{}=s3cr3t/+%3D&part=2"
    expected = uri.format(name).replace("s3cr3t/+%3D", "...")
    assert without_password(uri.format(name)) == expected


VALUE = "aB3dE6fG9hJ2kL5mN8pQ1rS4tU7vW0xY"
SECRETS = [
    *(f"{prefix}{VALUE}" for prefix in ("hf_", "ghp_", "github_pat_11AB_", "glpat-", "sk-proj-")),
    *(
        f"{prefix}{VALUE}"
        for prefix in ("sk-ant-api03-", "AIza", "xoxb-12-", "npm_", "gsk_", "r8_")
    ),
    *(f"{prefix}{VALUE}" for prefix in ("sk_live_", "pypi-AgEI", "dckr_pat_", "hvs.", "glsa_")),
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{VALUE}",
    f"https://hooks.slack.com/services/T0/B0/{VALUE}",
    *(f"{form} {VALUE}" for form in ("Authorization: Bearer", "Authorization: token", "bearer")),
    f"Authorization: Basic {VALUE}==",
    *(f"{name}={VALUE}" for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "PASS")),
    *(f"{name}={VALUE}" for name in ("MLFLOW_TRACKING_PASSWORD", "PGPASSWORD", "password", "pwd")),
    *(f"export {name}='{VALUE}'" for name in ("AWS_SESSION_TOKEN", "GH_TOKEN", "SECRET_KEY_BASE")),
    *(f"{name} = {VALUE}" for name in ("aws_secret_access_key", "client_secret", "token")),
    *(f'"{name}": "{VALUE}"' for name in ("password", "token", "api_key", "private-key")),
    *(f"--{name} {VALUE}" for name in ("password", "api-key", "auth-token", "token")),
    *(f"--{name}={VALUE}" for name in ("password", "api-key", "auth-token", "token")),
    *(f"X-Api-Key: {VALUE}", f"curl -u bob:{VALUE} x", f"machine x login y password {VALUE}"),
    *(f"https://host/x?a=1&{name}={VALUE}" for name in ("key", "api-key", "auth", "sas", "code")),
    f"AccountName=a;AccountKey={VALUE}==;EndpointSuffix=b",
    *(f"bob:{VALUE}@host.org", f"git clone bob:{VALUE}@host:path", f"s3://u:{VALUE}@bucket/x"),
    *(
        f"{mark}-----BEGIN {kind}-----\n{mark}Proc-Type: 4,ENCRYPTED\n{mark}{VALUE}\n"
        f"{mark}-----END {kind}-----"
        for kind in (
            "PRIVATE KEY",
            "RSA PRIVATE KEY",
            "OPENSSH PRIVATE KEY",
            "PGP PRIVATE KEY BLOCK",
        )
        for mark in ("", "+")  # as in a patch
    ),
    f"-----BEGIN EC PRIVATE KEY-----\n{VALUE}\n",  # cut short
]


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_is_cut_wherever_it_stands(secret: str) -> None:
    for before in ("", "before ", "-", "+", '"', "('", "x=", "\n"):  # also the lines of a patch
        shown = without_password(f"{before}{secret} after")
        assert VALUE not in shown
        assert shown.startswith(before)
        assert without_password(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python:3.12@sha256:0123456789abcdef0123",
        "git@github.com:org/repo.git, s3://bucket/a@b/c, https://host:8080/path",
        "sha256 0123456789abcdef0123456789abcdef, digest: 0123456789abcdef0123456789abcdef",
        "rungwise run pretrain quickstart.yaml pretrain.steps=100 tokenizer.kind=wordpiece",
        "+    mask_token = tokenizer.mask_token\n+    pad_token: str = '[PAD]'\n+    password: str",
        "+    password=options.password, secret = secrets.token_hex(8), key=operator.itemgetter(1)",
        "max_tokens=100000, tokens: 5,000,000; corpus.minimum_tokens=10; special_tokens=[1,2]",
        "expected one of word, token; the key is missing: did you mean 'vocab_size'?",
        "my-sk-learn-pipeline-v2, task-sk-1, pypi-package-of-mine-2, a-token-of-words, hf_hub",
        "RAY_AUTH_TOKEN_PATH=~/.ray/auth_token MONKEY=bananas PASSWORD=$SECRET",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_password(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "a://b:",
        "x",
        "-----BEGIN PRIVATE KEY-----",
        "a.b-",
        "?a",
        "token",
        "eyJ",
        "a:",
        "password ",
        " ",
    ],
)
def test_a_long_text_takes_no_longer_for_its_form(part: str) -> None:
    """A search that is quadratic would take hours for one of these."""
    text = part * (1_000_000 // len(part))
    assert len(without_password(text)) <= len(text)


def test_none_of_a_hundred_planted_secrets_is_written_down(tmp_path: Path) -> None:
    """In a recipe's sources and server, in what a stage is, in parameters, tags and notes; and no
    secret of any kind in a command or a patch."""
    secrets = [f"s3cr3t-{number:03}" for number in range(100)]
    uris = [
        f"s3://u:{secret}@bucket/{secret[-3:]}" if number % 2 else f"s3://b/x?token={secret}"
        for number, secret in enumerate(secrets)
    ]
    config = CorpusConfig(sources=(TextSource(paths=tuple(uris[:50])),))
    stage = CORPUS.__class__("corpus", 1, CORPUS.run, CORPUS.summary).stage(config)
    recipe = Recipe(
        name="x",
        corpus=config,
        tokenizer={"kind": "word", "vocab_size": 100},  # type: ignore[arg-type]
        tracking={"uri": uris[51]},  # type: ignore[arg-type]
    )
    record: dict[str, Any] = {
        "stage": "corpus",
        "fingerprint": stage.fingerprint,
        "facts": stage.facts,
        "inputs": {},
        "config": config.model_dump(mode="json"),
        "recipe": recipe.to_record(uris[53]),
        "made_by": {
            "command": f"rungwise run pretrain x tracking.uri={uris[55]} && {SECRETS[0]}",
            "uncommitted": "\n".join(f"+{line}" for text in SECRETS for line in text.splitlines()),
        },
        "summary": {"headline": f"read {uris[57]}"},
    }
    folder = Folder.at(tmp_path) / f"x-{stage.fingerprint}"
    folder.write_bytes("data", b"")
    artifacts.finish(folder, record, {})
    assert artifacts.load(folder) is not None
    tracker = Tracker("http://u:s3cr3t-000@127.0.0.1:9", "x", tmp_path / "spool")
    tracker.open("a", "a", params={"paths": uris})
    tracker.tags("a", {"note": " and ".join(uris)})
    tracker.finish(0.1)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 3
    written.append(resolved(recipe))
    for secret in (*secrets, VALUE):
        assert not any(secret in text for text in written)


def test_a_bucket_that_cannot_be_used_is_named_without_what_stands_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with pytest.raises(UserError, match="cannot use bucket books ") as caught:
        Folder.at("s3://u:s3cr3t@books/x").exists("y")
    assert "s3cr3t" not in without_password(str(caught.value))
