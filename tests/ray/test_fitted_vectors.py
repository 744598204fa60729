"""Word vectors as users run them: text to vectors that gensim loads, killed in between."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import yaml
from gensim.models import KeyedVectors

from rungwise.__main__ import main
from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.word_vectors.paragraph_vectors import ParagraphVectorsConfig
from rungwise.pipeline.loading import find_built
from rungwise.serving.predictor import load_predictor
from rungwise.tasks.kinds.examples import Text
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.fit_config import PretrainStageConfig, pretrain_model
from rungwise.training.pretrained import load_word_vectors
from rungwise.training.ray import from_tokens
from rungwise.training.ray.from_tokens import DOCUMENTS
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL
from tests.conftest import small_recipe, write_corpus, write_recipe
from tests.report_pages import Page

RUNGS: dict[str, dict[str, Any]] = yaml.safe_load("""
word2vec:
  model: {kind: word2vec, size: 20}
  pretrain: {kind: asynchronous, epochs: 3}
glove:
  model: {kind: glove, size: 20}
  pretrain: {kind: cooccurrence, epochs: 3}
lsa:
  model: {kind: lsa, size: 20}
  pretrain: {kind: cooccurrence}
prototypes:
  model: {kind: prototypes, prototypes: 2, occurrences: 20}
  pretrain: {kind: cooccurrence}
  steps:
    - {name: vectors, model: {kind: lsa, size: 20}, pretrain: {kind: cooccurrence}}
    - {}
paragraph_vectors:
  model: {kind: paragraph_vectors, size: 20, architecture: dm}
  pretrain: {kind: asynchronous, epochs: 3}
""")
TABLES = ("word2vec", "glove", "lsa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ray_session: None, empty_store: Path) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    corpus = write_corpus(folder / "text", documents=15)
    (folder / "root").mkdir()
    shutil.copy(empty_store, folder / "root")  # one is made in test_workflow.py
    for name, blocks in RUNGS.items():
        words = {"kind": "word", "vocab_size": 200, "min_frequency": 1}
        recipe = small_recipe(folder / "root", corpus, name=name, tokenizer=words, **blocks)
        write_recipe(folder / f"{name}.yaml", recipe)
        assert main(["run", "pretrain", str(folder / f"{name}.yaml")]) == 0
    return folder


def again(pretrain: Artifact, output: Path, **changes: Any) -> bytes:
    fitted_again(pretrain, output, **changes)
    return (output / MODEL).read_bytes()


def fitted_again(pretrain: Artifact, output: Path, **changes: Any) -> PretrainSummary:
    data = dict(pretrain.record["config"])
    data["pretrain"] = {**data["pretrain"], **changes}
    config = validate(PretrainStageConfig, data)
    inputs = {"tokens": find_input(pretrain, "tokens")}
    return pretrain_model(config, inputs, Folder.at(output), Context())


@pytest.mark.parametrize("name", RUNGS)
def test_from_text_to_vectors_and_a_page(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(folder / f"{name}.yaml")
    pretrain = find_built(recipe, "artifacts")
    summary, model = PretrainSummary.of(pretrain), load_word_vectors(pretrain)
    pretrained = RUNGS[name]["pretrain"]
    assert (summary.fitting, summary.epochs) == (pretrained["kind"], pretrained.get("epochs", 1))
    assert summary.final["loss"] > 0

    assert main(["try", recipe, "worker"]) == 0
    lines = [pair.split() for pair in capsys.readouterr().out.strip().split("  ")]
    assert len(lines) == 5
    assert "worker" not in [word for word, _ in lines]
    cosines = [float(cosine) for _, cosine in lines]
    assert cosines == sorted(cosines, reverse=True)
    assert main(["try", recipe, "wroker"]) == 2
    told = capsys.readouterr().err
    assert "found 'wroker'; spelled alike: worker" in told

    assert main(["export", recipe, "--to", str(tmp_path / "out")]) == 0
    assert main(["export", recipe, "--to", str(tmp_path / "out")]) == 2
    loaded = [
        KeyedVectors.load_word2vec_format(str(tmp_path / "out" / file), binary=binary)
        for file, binary in (("vectors.txt", False), ("vectors.bin", True))
    ]
    assert loaded[0].index_to_key == loaded[1].index_to_key
    table = model.vectors(range(model.vocab_size))
    learnt = table[table.any(axis=1)]
    for each in loaded:
        assert np.array_equal(each.vectors, learnt)
    near = [(word, f"{cosine:.3f}") for word, cosine in loaded[0].most_similar("worker", topn=50)]
    known = [row for row in near if row[0].isalpha() and len(row[0]) >= 3]
    assert [cosine for _, cosine in lines] == [cosine for _, cosine in known[:5]]

    page = Page(next((folder / "root" / "report").glob(f"{name}-*/report.html")).read_text())
    assert page.ids == {"result", "neighbours", "origin"}
    assert "Validation" not in page.words
    assert "nats" not in page.words.replace("alternates", "")


@pytest.mark.parametrize(
    "name", ["word2vec", "paragraph_vectors", pytest.param("glove", marks=pytest.mark.slow)]
)
def test_a_run_gives_the_same_bytes_again_killed_or_not(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain = find_built(str(folder / f"{name}.yaml"), "artifacts")
    first = pretrain.folder.read_bytes(MODEL)
    saved = from_tokens.Folder.write_bytes
    writes: list[str] = []

    def killed_after_the_second_round(self: Folder, file: str, data: bytes) -> None:
        saved(self, file, data)
        writes.append(file)
        if len(writes) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "write_bytes", killed_after_the_second_round)
    with pytest.raises(KeyboardInterrupt):
        again(pretrain, tmp_path / "out")
    assert not (tmp_path / "out" / MODEL).exists()
    state = safetensors.numpy.load_file(tmp_path / "out" / from_tokens._STATE)
    state[from_tokens._SECONDS] += 1000.0  # as if the two rounds had taken so long
    (tmp_path / "out" / from_tokens._STATE).write_bytes(safetensors.numpy.save(state))
    assert 1000 < fitted_again(pretrain, tmp_path / "out").seconds < 1000 + 600
    assert (tmp_path / "out" / MODEL).read_bytes() == first
    files = [MODEL] + ([DOCUMENTS] if name == "paragraph_vectors" else [])
    assert writes == [".state.safetensors"] * 3 + files  # the third round alone was left
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(files)
    for file in files:
        assert (tmp_path / "out" / file).read_bytes() == pretrain.folder.read_bytes(file)
    assert again(pretrain, tmp_path / "other", seed=1) != first


def test_documents_alone_have_vectors_and_new_texts_too(folder: Path, tmp_path: Path) -> None:
    blocks = RUNGS["paragraph_vectors"]
    recipe = yaml.safe_load((folder / "paragraph_vectors.yaml").read_text())
    recipe |= {"name": "dbow", "model": blocks["model"] | {"architecture": "dbow"}}
    write_recipe(folder / "dbow.yaml", recipe)
    assert main(["run", "pretrain", str(folder / "dbow.yaml")]) == 0
    pretrain = find_built(str(folder / "dbow.yaml"), "artifacts")
    page = Page(next((folder / "root" / "report").glob("dbow-*/report.html")).read_text())
    assert page.ids == {"result", "origin"}
    with pytest.raises(ConfigError, match="does not offer WordVectors"):
        load_word_vectors(pretrain)
    tokens = TokensSummary.of(find_input(pretrain, "tokens"))
    vectors = safetensors.numpy.load(pretrain.folder.read_bytes(DOCUMENTS))["documents"]
    assert vectors.shape == (tokens.documents.train, 20)
    family = validate(PretrainStageConfig, pretrain.record["config"]).model
    assert isinstance(family, ParagraphVectorsConfig)
    start = family.start(np.ones(5, np.int64), len(vectors), seed=0)["documents"][:, :20]
    assert (vectors != start).any(axis=1).all()  # each has been read
    assert DOCUMENTS not in safetensors.numpy.load(pretrain.folder.read_bytes(MODEL))
    predictor = load_predictor(pretrain.folder)
    answers = predictor([Text("1", "the worker"), Text("2", "a table"), Text("3", "the worker")])
    assert answers[0] == answers[2] != answers[1]
    assert len(answers[0]["vector"]) == 20
    shares = {"replicas": 3, "rounds_per_epoch": 2}
    runs = [again(pretrain, tmp_path / str(n), **shares) for n in range(2)]
    assert runs[0] == runs[1] != pretrain.folder.read_bytes(MODEL)
    averages = [safetensors.numpy.load_file(tmp_path / str(n) / DOCUMENTS) for n in range(2)]
    assert np.array_equal(averages[0]["documents"], averages[1]["documents"])
    assert (averages[0]["documents"] != start).any(axis=1).all()


@pytest.mark.slow
def test_replicas_average_their_shares(folder: Path, tmp_path: Path) -> None:
    pretrain = find_built(str(folder / "word2vec.yaml"), "artifacts")
    models = [
        again(pretrain, tmp_path / str(number), replicas=3, rounds_per_epoch=2)
        for number in range(2)
    ]
    assert models[0] == models[1]
    assert models[0] != pretrain.folder.read_bytes(MODEL)
    with pytest.raises(DataError, match=r"lower pretrain\.minimum_count"):
        again(pretrain, tmp_path / "none", minimum_count=10**6)
