"""The benchmark of the quickstart finds the records that it reads."""

from pathlib import Path

from benchmarks.quickstart import CONFIG, READ, records
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.pipeline.workflow import load_recipe, make_stages
from tests.conftest import REPOSITORY


def test_every_stage_has_its_record_also_where_several_are_of_one_kind(tmp_path: Path) -> None:
    titles = [each.title for each in make_stages("finetune", load_recipe(REPOSITORY / CONFIG))]
    root = Folder.at(tmp_path)
    for number, title in enumerate(titles):
        folder = artifacts.find_folder(root, title.stage, "x", f"{number:012}")
        record = {"stage": title.stage, "title": str(title), "fingerprint": f"{number:012}"}
        artifacts.finish(folder, record | {"finished": f"2026-01-01T00:00:{number:02}"}, {})
    assert list(records(root)) == list(map(str, titles))
    assert [title.stage for title in titles].count("sweep") == 2
    assert set(READ) <= set(map(str, titles))
