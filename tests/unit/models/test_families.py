"""Families and objectives: they answer for themselves, and no other place knows which there are."""

import ast
import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig, with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.instances.batch import Batch
from rungwise.instances.kind import Kind
from rungwise.models.config import FAMILIES, model_config
from rungwise.models.families.ngram import NgramConfig
from rungwise.models.family import Family, Size
from rungwise.models.fitting import Fitting
from rungwise.pipeline.recipe import Recipe
from rungwise.training import fit_config as pretraining_config
from rungwise.training.config import GradientConfig
from rungwise.training.fit_config import (
    KINDS,
    PRETRAIN,
    PretrainStageConfig,
    find_earlier,
    fitting_kind,
    require_gradient,
)
from tests.conftest import small_recipe
from tests.small_models import INSTANCES
from tests.training_runs import Shared, assert_same_weights, in_turn, make_instances, run
from tests.unit.repository.test_layout import LAYERS, RANK

PACKAGE = Path(__file__).resolve().parents[3] / "platform" / "rungwise"
RECIPE = small_recipe(Path("artifacts"), Path("corpus.txt"))
# Packages and modules above models; commands/init.py writes recipes of two families.
ABOVE = [name for name in LAYERS[RANK["models"] + 1 :] if not name.startswith("__")]
FILES = [
    path
    for name in ABOVE
    for path in (*sorted((PACKAGE / name).rglob("*.py")), PACKAGE / f"{name}.py")
    if path.name != "init.py" and path.is_file()
]


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def test_every_package_above_models_is_read() -> None:
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} == set(ABOVE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_above_models_knows_which_families_or_objectives_there_are(path: Path) -> None:
    """Neither a class of a family's file nor a name of an objective appears there."""
    modules = {family.__module__ for family in FAMILIES}
    names = {f"{each.name}" for family in FAMILIES for each in family.objectives}
    names |= {part for f in FAMILIES for each in f.objectives for part in each.parts}
    names |= {family.model_fields["kind"].default for family in FAMILIES}
    names -= set(INSTANCES)  # kinds of instances have some of these names too
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            of = {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
            of = {each for each in of if each in modules or "rungwise.models.families" in each}
            assert not of, f"{path.name}:{node.lineno} imports a family"
            values = {alias.name for alias in node.names}
            if node.module == "rungwise.models.losses.objectives":
                assert not any(value.isupper() for value in values), f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in names, f"{path.name}:{node.lineno} names {node.value}"


def test_the_walk_would_see_a_family_and_an_objective(tmp_path: Path) -> None:
    for code in (
        "from rungwise.models.families.gpt import GptConfig",
        "from rungwise.models.families import bert",
        "from rungwise.models.losses.objectives import CAUSAL",
        "masks = kind in ('mlm', 'mlm_nsp')",
    ):
        (tmp_path / f"{len(code)}.py").write_text(code)
        with pytest.raises(AssertionError):
            test_nothing_above_models_knows_which_families_or_objectives_there_are(
                tmp_path / f"{len(code)}.py"
            )


def kind_tests(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines that ask which kind of instances, or batch of it, they hold."""
    classes = {each.__name__ for kind in INSTANCES.values() for each in kind.__mro__}
    classes &= {each.__name__ for each in (Kind, *Kind.__subclasses__(), *INSTANCES.values())}
    classes |= {each.__name__ for each in (Batch, *Batch.__subclasses__())}
    lines: list[int] = []
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass")) | ast.MatchClass():
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                asks = bool(names & classes)
            case ast.Compare():
                texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                kinds = {"kind"} & {e.attr for e in ast.walk(node) if isinstance(e, ast.Attribute)}
                asks = bool(texts & (set(INSTANCES) if kinds else set(INSTANCES) - {"causal"}))
            case _:
                asks = False
        if asks:
            lines.append(getattr(node, "lineno", 0))
    return lines


def test_nothing_outside_instances_asks_which_kind_it_holds() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent != PACKAGE / "instances":
            assert kind_tests(nodes_of(path)) == [], path
    for path in sorted(PACKAGE.rglob("*.j2")):
        assert not [kind for kind in INSTANCES if f'"{kind}"' in path.read_text("utf-8")], path


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(config, MaskedKind)",
        "isinstance(batch, (int, CausalBatch))",
        "match config:\n    case SentenceRunsConfig(): ...",
        "reader.config.kind in ('masked_pairs', 'causal')",
        "config.kind == 'causal'",
    ],
)
def test_the_walk_would_see_a_kind(code: str) -> None:
    assert kind_tests(ast.walk(ast.parse(code))) == [1 + code.count("\n")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_answers_every_question(family: type[Family]) -> None:
    config = family(kind=family.model_fields["kind"].default)
    assert config.objective(None) is config.objectives[0]
    assert config.describe()
    assert config.year > 1950
    assert config.paper
    for objective in config.objectives:
        assert config.objective(objective.name) is objective
        assert config.page_name(objective)
        if fitting_kind(config) == "gradient":
            assert str(config.width) in config.describe()
            assert config.flops_per_token(100, 16, objective, 2.4) > 0
        assert set(objective.reads) <= set(INSTANCES)
    assert sys.modules[family.__module__].__doc__


# One of each way in which the newer families differ: what they read, and what they are prepared by.
RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "a table": ("causal", {"kind": "bigram"}),
    "a tree learnt from the text": (
        "causal",
        {"kind": "log_bilinear", "output": {"kind": "tree", "shape": "adaptive", "overlap": 0.4}},
    ),
    "classes by counts, and a state": (
        "causal",
        {"kind": "lstm", "num_layers": 1, "hidden_size": 12, "output": {"kind": "classes"}},
    ),
    "random words": ("corrupted_words", {"kind": "senna", "window": 5}),
}


def test_killed_and_resumed_on_another_number_of_workers_a_run_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    """On as many logical workers; the first checkpoint has what the text has prepared."""
    compute: dict[str, Any] = {"micro_batch_size": 2, "logical_workers": 2}
    compute["checkpoint_every_steps"] = 3
    whole: dict[str, Shared] = {}
    for name, (kind, model) in RESUMED.items():
        instances = make_instances(tmp_path / name / "instances", kind, documents=(60,))
        settings = require_gradient(
            stage(
                model,
                steps=12,
                global_batch_size=4,
                optimizer={"learning_rate": 0.03},
                precision="float32",
                validation_instances=8,
                log_every_steps=1,
            ),
            "steps",
        )
        whole[name] = Shared(settings, instances, tmp_path / name / "two", compute=compute)
    cut = [
        each._replace(output=each.output.with_name("cut"), killed_at=8) for each in whole.values()
    ]
    finished = in_turn(2, [*whole.values(), *cut])
    for (name, each), two in zip(whole.items(), finished, strict=False):
        output = each.output.with_name("cut")
        resumed = run(each.settings, each.instances, output, **compute)
        assert two is not None
        assert [attempt["workers"] for attempt in resumed.attempts] == [2, 1], name
        assert (resumed.data, resumed.history) == (two.data, two.history), name
        assert resumed.history[-1]["loss"] < resumed.history[0]["loss"], name
        assert_same_weights(each.output, output)


def stage(model: dict[str, Any], **pretrain: Any) -> PretrainStageConfig:
    return validate(PretrainStageConfig, {"model": model, "pretrain": {"steps": 2, **pretrain}})


def test_an_objective_that_is_left_out_is_the_familys_first_and_stands_in_the_config() -> None:
    assert stage({"kind": "gpt"}).pretrain.objective == "causal"
    left_out, named = stage({"kind": "bert"}), stage({"kind": "bert"}, objective="mlm_nsp")
    assert left_out.pretrain.objective == "mlm_nsp"
    assert fingerprint(left_out) == fingerprint(named)
    assert fingerprint(named) != fingerprint(stage({"kind": "bert"}, objective="mlm"))
    built = PretrainStageConfig(model=left_out.model, pretrain=GradientConfig(steps=2))
    assert built == left_out


def test_a_block_without_a_kind_is_fitted_by_gradient_and_problems_name_their_keys() -> None:
    assert stage({"kind": "gpt"}).pretrain.kind == "gradient"
    assert stage({"kind": "gpt"}, kind="gradient") == stage({"kind": "gpt"})
    kinds = "counts, asynchronous, cooccurrence, gradient, interpolation"
    with pytest.raises(
        ConfigError, match=rf"pretrain\.kind: expected one of {kinds}; found 'magic'"
    ):
        stage({"kind": "gpt"}, kind="magic")
    with pytest.raises(ConfigError, match=r"pretrain\.stepz: unknown key; did you mean 'steps'"):
        stage({"kind": "gpt"}, stepz=3)


@pytest.mark.parametrize(
    ("model", "pretrain", "takes"),
    [
        ({"kind": "ngram"}, {}, "counts"),
        ({"kind": "ngram"}, {"steps": 2}, "counts"),
        ({"kind": "gpt"}, {"kind": "counts"}, "gradient"),
        ({"kind": "gpt"}, {"kind": "counts", "steps": 2}, "gradient"),
        ({"kind": "word2vec"}, {"steps": 2}, "asynchronous"),
        ({"kind": "glove"}, {"kind": "gradient"}, "cooccurrence"),
    ],
)
def test_other_ways_of_fitting(model: dict[str, Any], pretrain: dict[str, Any], takes: str) -> None:
    other = "counts" if takes == "gradient" else "gradient"
    message = (
        rf"pretrain\.kind is {other}, but model\.kind is {model['kind']}, which is fitted by "
        rf"{takes}; set pretrain\.kind={takes}"
    )
    blocks = {"model": model, "pretrain": pretrain}
    for block, data in ((PretrainStageConfig, blocks), (Recipe, RECIPE | blocks)):
        with pytest.raises(ConfigError, match=message):
            validate(block, data)


def test_a_problem_in_a_step_has_the_path_of_the_file() -> None:
    step = {"corpus": RECIPE["corpus"], "instances": {"kind": "causal"}}
    for pretrain, message in (
        ({"objective": {"kind": "mlm"}, "steps": 1}, "objective: "),
        ({"stepz": 1, "steps": 1}, "stepz: unknown key; did you mean 'steps'"),
        ({"optimizer": {"kind": "muon", "momentun": 1}, "steps": 1}, "optimizer.momentun: unknown"),
    ):
        path = re.escape(f"config: steps.1.pretrain.{message}")
        with pytest.raises(ConfigError, match=path):
            validate(Recipe, RECIPE | {"steps": [{}, {**step, "pretrain": pretrain}]})


class Copied(Fitting):
    """A way of fitting in one class."""

    fits: ClassVar[type] = NgramConfig
    reads_tokens: ClassVar[bool] = True
    fitter: ClassVar[Any] = staticmethod(lambda config, inputs, output, context: config)

    kind: Literal["copied"] = "copied"


def test_a_way_of_fitting_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining_config, "KINDS", {"copied": Copied})
    model, way = NgramConfig(), Copied(objective="ngram")
    assert fitting_kind(model) == "copied"
    config = PretrainStageConfig.model_construct(model=model, pretrain=way)
    fit: Any = PRETRAIN.run(config, {}, Folder.at("nowhere"), Context())
    assert (fit.model, fit.pretrain) == (model, way)
    assert find_earlier(config, {}, []) is None
    assert PRETRAIN.trains_alone
    assert not PRETRAIN.trains_alone(config, ComputeConfig())
    with pytest.raises(ConfigError, match="kind is copied, which has no steps; expected gradient"):
        require_gradient(config, "steps")


def test_only_the_room_of_a_way_of_fitting_asks_which_it_is() -> None:
    ways = {block.__name__ for block in KINDS.values()}
    asked = set()
    for path in PACKAGE.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                asked |= {str(path.relative_to(PACKAGE))} if named & ways else set()
    assert asked <= {"training/fit_config.py"}


def test_what_a_family_lacks_is_refused_by_its_kind() -> None:
    counted = NgramConfig()
    for call, words in (
        (lambda: counted.build(9, counted.objectives[0]), "no weights that are learnt"),
        (lambda: counted.encoder(counted.objectives[0], 9, 0.0), "no encoder"),
    ):
        with pytest.raises(ConfigError, match=rf"model\.kind is ngram, which has {words}"):
            call()
    assert require_gradient(stage({"kind": "gpt"}), "steps").pretrain.steps == 2


SMALL = {"num_layers": 2, "hidden_size": 128}
STACK = SMALL | {"num_heads": 2, "intermediate_size": 256}
MODELS: list[dict[str, Any]] = [
    {"kind": "word2vec"},
    {"kind": "glove"},
    {"kind": "nnlm"},
    {"kind": "log_bilinear"},
    {"kind": "rnn"},
    {"kind": "lstm"} | SMALL,
    {"kind": "awd_lstm", "embedding_size": 64} | SMALL,
    {"kind": "elmo", "hidden_size": 64, "cell_size": 128, "filters": [[1, 16]], "num_highways": 1},
    *({"kind": kind} | STACK for kind in ("gpt", "llama", "bidirectional", "bert", "modern_bert")),
]
SIZE = Size(2_000_000, 6000, 60)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["kind"])
def test_suggestions_are_keys_of_a_recipe_and_follow_text_and_time(model: dict[str, Any]) -> None:
    family = model_config(model)
    passes = {}
    sizes = {"here": SIZE, "longer": SIZE._replace(seconds=600), "cores": SIZE._replace(workers=10)}
    for name, size in sizes.items():
        keys = family.suggest(size)
        blocks = {"model": model, "pretrain": {"kind": fitting_kind(family)}}
        config: Any = validate(PretrainStageConfig, with_overrides(blocks, keys))
        steps = keys.get("pretrain.epochs") or config.pretrain.steps
        passes[name] = steps
    assert passes["here"] < passes["longer"] == passes["cores"]
    little = family.suggest(SIZE._replace(tokens=20_000, seconds=1e6))
    if "pretrain.steps" in little:
        rows = little["pretrain.global_batch_size"]
        most = 20 if "bert" in model["kind"] else 4  # masks hide a part of a pass
        assert little["pretrain.steps"] == max(300, round(most * 20_000 / 64 / rows / 100) * 100)
