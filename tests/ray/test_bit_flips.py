"""Bits that flip in a finished run, as bad disks and hands do, are refused."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from rungwise.__main__ import main
from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.ray.test_workflow import DOWNSTREAM, command, environment

FLIPS = 200


def refuses(path: Path, folder: Folder) -> list[str]:
    """Which of loading the artifact, reading the file and verifying the artifact refuse."""
    try:
        artifact = artifacts.load(folder)
        assert artifact is not None
    except DataError:
        return ["load"]
    refused = []
    name = str(path.relative_to(folder.uri))
    for what, check in (
        ("read", lambda: artifact.folder.read_bytes(name)),
        ("verify", artifact.verify),
    ):
        try:
            check()
        except DataError as error:
            refused += [what] if str(path) in str(error) else []
    return refused


@pytest.mark.slow
def test_200_flipped_bits_of_a_run_are_all_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record whenever it is loaded; any other file when it is read, and by `verify`."""
    corpus = write_corpus(tmp_path / "text", documents=60)
    root = tmp_path / "root"
    recipe = write_recipe(tmp_path / "recipe.yaml", small_recipe(root, corpus, **DOWNSTREAM))
    done = subprocess.run(
        command("finetune", recipe),
        cwd=REPOSITORY,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    chain = artifacts.below(Folder.at(root))
    assert len(chain) > 8
    files = {
        Path(each.folder.path(name)): each.folder.uri
        for each in chain
        for name in [*each.record["files"], artifacts.RECORD]
    }
    draw = random.Random(36)
    for flip in range(FLIPS):
        path = draw.choice([path for path in files if path.stat().st_size])
        data = path.read_bytes()
        place = draw.randrange(len(data))
        changed = bytes([data[place] ^ 1 << draw.randrange(8)])
        path.write_bytes(data[:place] + changed + data[place + 1 :])
        expected = ["load"] if path.name == artifacts.RECORD else ["read", "verify"]
        assert refuses(path, Folder.at(files[path])) == expected, (flip, path, place)
        if flip % 20 == 0:  # as a user asks
            assert main(["verify", files[path]]) == 2
            capsys.readouterr()
        path.write_bytes(data)
    for each in chain:
        each.verify()
