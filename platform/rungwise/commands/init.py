"""`rungwise data|tasks|init`: public data sets, and text and labelled data of one's own.

`data` lists the sets that recipes and the pages name, or gets them; `tasks` prints the block of a
recipe that reads labelled data, `init` writes a recipe for text."""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rungwise.commands.parser import Commands, add_verb
from rungwise.core.configuration.secrecy import list_texts
from rungwise.core.errors import UserError, format_count, list_first
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.corpus.description import FileGroup
    from rungwise.models.family import Size
    from rungwise.tasks.formats.guess import Guess

# Up to how many characters of text, and the vocabulary size that they can fill.
_VOCABULARIES = ((1e5, 1000), (1e6, 2000), (4e6, 4000), (4e7, 8000), (4e8, 16000), (1e99, 30522))
_SECONDS, _CORES = 120.0, 2  # that a model is to take
_RUNG_SECONDS = 120.0  # of one core, that a rung is to take
_FEW = 40  # documents
_HELD_OUT = 0.1  # of the words of few documents, and for a ladder
_LADDER_WORDS, _MOST_HELD_OUT = 6000, 0.3  # held out for the test examples of its tasks; at most
_FEWEST_CHARACTERS = 4000  # whose held-out tenth is some sentences long (held_out.py)
_LADDER = "ladder"  # the recipe whose rungs `--ladder` writes
_BATCHES, _LENGTH = (32, 16, 8, 4), 64
_ROW = _LENGTH * 0.75  # tokens of a row, on average
_DECODERS = ("gpt", "llama")  # read text as bytes, code too


def add(commands: Commands) -> None:
    parser = add_verb(commands, init, "look at text and write a recipe for it")
    help_text = "a folder, file or glob, local, s3:// or hf://"
    parser.add_argument("paths", metavar="PATH", nargs="+", help=help_text)
    help_text = "labelled data to fine-tune on; see rungwise tasks"
    parser.add_argument("--labels", metavar="FILE", help=help_text)
    parser.add_argument("--name", help="name of the recipe; default: from the first path")
    help_text = "any kind of model, such as lstm, bert or llama; default: gpt for code, else "
    parser.add_argument("--model", metavar="KIND", help=f"{help_text}modern_bert")
    help_text = "compare the history of pretraining on the text, from n-grams to ModernBERT"
    parser.add_argument("--ladder", action="store_true", help=help_text)
    help_text = "inspect labelled data, print the recipe block that reads it"
    parser = add_verb(commands, tasks, help_text)
    help_text = "a file, folder or glob, local, s3:// or hf://, also in an archive"
    parser.add_argument("path", metavar="PATH", help=help_text)
    parser = add_verb(commands, data, "list public data sets, or put them where recipes look")
    parser.add_argument("action", choices=("list", "get"), nargs="?", default="list")
    help_text = "a set of the list, or a recipe: all that it reads"
    parser.add_argument("names", metavar="NAME", nargs="*", help=help_text)
    parser.add_argument("--yes", action="store_true", help="agree to the licences")
    parser.add_argument("--folder", type=Path, default="data", help="where to put them: data")
    help_text = "a server with copies, to use for https://"
    parser.add_argument("--mirror", metavar="URL", default="", help=help_text)


def init(options: argparse.Namespace) -> None:
    """Write NAME.yaml here. Raises UserError if it exists or is no name, or for too little text."""
    from rungwise.core.public_data import how_to_get
    from rungwise.core.storage.source_files import find_files
    from rungwise.corpus.description import describe_files
    from rungwise.pipeline.recipe import NAME
    from rungwise.pipeline.workflow import estimate as estimate_run
    from rungwise.pipeline.workflow import load_recipe
    from rungwise.tasks.formats.guess import guess_format

    if options.ladder and (options.labels or options.model):
        raise UserError(
            "--ladder trains every model, on tasks that it makes of the text; leave out --labels "
            "and --model"
        )
    labels = guess_format(options.labels) if options.labels else None
    sources, others = describe_files(options.paths)
    if missing := [path for path in options.paths if not find_files(path)]:
        raise UserError(
            f"no file matches {', '.join(missing)}; expected a file, folder or glob"
            f"{how_to_get(missing[0])}"
        )
    if not sources:
        files = f"; found: {', '.join(others)}" if others else ""
        raise UserError(f"no text below {', '.join(options.paths)}{files}")
    if (characters := sum(each.characters for each in sources)) < _FEWEST_CHARACTERS:
        raise UserError(
            f"about {characters:,} characters of text below {', '.join(options.paths)}; expected "
            f"{_FEWEST_CHARACTERS:,} or more to learn from and to hold a part of out"
        )
    name = options.name or derive_name(options.paths[0])
    if not re.fullmatch(NAME, name):
        raise UserError(
            f"--name: expected letters, digits, . _ and -, the first a letter or a digit, found "
            f"{name!r}"
        )
    path = Path(f"{name}.yaml")
    if path.exists():
        raise UserError(f"{path} already exists; give another name with --name, or delete it")
    workflow = "ladder" if options.ladder else "finetune" if labels else "pretrain"
    held_out = choose_held_out(sources, workflow)
    if held_out is not None:
        for each in sources:
            each.count_documents(held_out)
    say = plain_console().print
    for each in sources:
        say(_describe(each))
    if others:
        say(f"skipped, since they hold no plain text: {', '.join(others)}")
    model = options.model or ("gpt" if sources[0].is_code else "modern_bert")
    text = write_recipe(name, sources, model, workflow, held_out)
    if labels:
        say(f"\n{options.labels}")
        for line in describe_examples(labels, 1):
            say(f"  {line}".rstrip())
        text += write_task(derive_name(options.labels), labels.block)
    with tempfile.TemporaryDirectory() as scratch:  # a recipe that cannot be planned is none
        draft = Path(scratch) / path
        draft.write_text(text, encoding="utf-8")
        estimate = estimate_run(workflow, load_recipe(draft))
    path.write_text(text, encoding="utf-8")
    say(f"\nwrote {path}; to train on it:\n")
    say(f"  rungwise run {workflow} {shlex.quote(str(path))}\n")
    say(f"It takes {estimate.line}.", soft_wrap=True)


def choose_held_out(sources: Sequence[FileGroup], workflow: str) -> float | None:
    """The share of the text to hold out, None for the default."""
    if workflow == "ladder":
        words = sum(each.characters if _is_chinese(sources) else each.words for each in sources)
        share = max(_HELD_OUT, round(_LADDER_WORDS / max(1, words), 2))
        return min(_MOST_HELD_OUT, share)
    return _HELD_OUT if sum(each.documents for each in sources) < _FEW else None


def write_task(name: str, data: dict[str, Any]) -> str:
    """The YAML that fine-tunes on a task, compares with random weights, and registers the model."""
    return f"""
tasks: # the validation part chooses the epoch, the test part gives the score; labels as in the file
  {name}: {{data: {flow(data)}}}

variants: # what to compare: keys of this file with other values
  pretrained: {{}}
  random: {{finetune.initialisation: random}}

finetune:
  {{pooling: mean, learning_rate: 1.0e-3, batch_size: 16, epochs: 8, sequence_length: {_LENGTH},
   stride: {_LENGTH // 2}}}
registry: {{}} # rungwise-{name}@champion
"""


def _describe(source: FileGroup) -> str:
    from rungwise.corpus.summary import format_amount

    files = f"{format_count(source.files, 'file')} of {source.kind}"
    size = f"{source.bytes / 1e6:,.1f} MB unpacked: {source.language}"
    amount = format_amount([(source.words, source.characters)])
    first = f"{files}, {size}, about {source.documents:,} documents and {amount}"
    return "\n".join([first, *(f"  {note}" for note in source.notes)])


def _is_chinese(sources: Sequence[FileGroup]) -> bool:
    """Whether a character is a token."""
    return sources[0].language in ("Chinese", "Japanese")


def write_recipe(
    name: str, sources: Sequence[FileGroup], model: str, workflow: str, held_out: float | None
) -> str:
    """The YAML of a recipe: only the keys that differ from the defaults."""
    from rungwise.corpus.config import DocumentRules
    from rungwise.models.family import Size

    characters = sum(each.characters for each in sources)
    documents = sum(each.documents for each in sources)
    chinese = _is_chinese(sources)
    fitting = next(size for most, size in _VOCABULARIES if characters <= most)
    # Room for special tokens, every byte (BPE) or every character at the start of a word and
    # inside one (WordPiece), and as many words as the text surely fills.
    needed = 10 + (256 if model in _DECODERS else 2 * sources[0].letters)
    vocabulary = max(16, needed, min(fitting, needed + round(sources[0].frequent_words * 0.9)))
    tokenizer = "byte_bpe" if model in _DECODERS else "wordpiece"
    if chinese:  # a token per character; some may occur only in held-out text
        tokenizer, vocabulary = "character", max(16, round(sources[0].letters * 0.9))
    tokens = characters if chinese else characters / 4
    rest = 1 - (held_out or DocumentRules().held_out_fraction)
    size = Size(round(tokens * rest), vocabulary, _SECONDS, _CORES, documents)
    blocks = []
    for each in sources:
        title = {"name": each.kind} if len(sources) > 1 else {}
        blocks.append({"kind": each.kind} | title | {"paths": list(each.paths)} | each.source)
    lines = [
        "# Written by `rungwise init`; change what you like.",
        "#",
        f"#   rungwise run {workflow} {shlex.quote(f'{name}.yaml')}",
        f"name: {flow(name)}",
        "",
        "corpus:",
        "  sources:",
        *(f"    - {flow(block)}" for block in blocks),
        *([f"  held_out_fraction: {held_out} # of the bytes"] if held_out else []),
        "",
        f"tokenizer: {{kind: {tokenizer}, vocab_size: {vocabulary}}}",
    ]
    if workflow == "ladder":
        return (
            "\n".join(lines) + "\n" + write_rungs(size._replace(seconds=_RUNG_SECONDS, workers=1))
        )
    steps, instances, block, pretrain = _read_blocks(model)
    block, pretrain = suggest(block, pretrain, size)
    lines += [
        *([f"instances: {flow(instances)}"] if instances else []),
        "",
        "# Two CPU cores train this model in minutes. For a GPU see docs/how-to/pretraining.md.",
        f"model: {flow(block)}",
        "",
        "pretrain:",
        *(f"  {key}: {flow(value)}" for key, value in pretrain.items()),
        *([f"steps: {flow(steps)}"] if steps else []),
    ]
    return "\n".join(lines) + "\n"


def _read_blocks(kind: str) -> list[dict[str, Any]]:
    """The blocks steps, instances, model and pretrain of a kind of model, at the size of two CPU
    cores. Raises UserError for a kind without a recipe, or that needs more than a corpus."""
    from rungwise.core.configuration.overrides import read_mapping, with_overrides
    from rungwise.pipeline.places import recipe_file

    ladder = recipe_file(_LADDER)
    data = read_mapping(ladder)
    recipes = {}
    for changes in data["variants"].values():
        rung = with_overrides(data, changes)
        if not any(key.startswith("finetune") for key in changes):  # the last has the most layers
            recipes[rung["model"]["kind"]] = rung
    others = sorted(ladder.parent.glob("*.yaml")) if kind not in recipes else ()
    for recipe in map(read_mapping, others):
        recipes.setdefault(recipe.get("model", {}).get("kind"), recipe)
    if kind not in recipes:
        raise UserError(f"--model: expected {', '.join(filter(None, recipes))}, found {kind}")
    if any("task" in step for step in recipes[kind].get("steps", [])):
        raise UserError(
            f"--model: a {kind} learns from files that are labelled or aligned, not from a corpus "
            f"alone; copy {ladder.with_name(recipes[kind]['name'])}.yaml and change its paths"
        )
    blocks = ("steps", "instances", "model", "pretrain")
    return [recipes[kind].get(block, {}) for block in blocks]


def suggest(
    model: dict[str, Any], pretrain: dict[str, Any], size: Size
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The blocks with what the family suggests; no batch is larger than a tenth of the rows."""
    from rungwise.core.configuration.overrides import with_overrides
    from rungwise.models.config import model_config

    keys = model_config(model).suggest(size)
    settings = pretrain | {key.removeprefix("pretrain."): value for key, value in keys.items()}
    if "steps" in settings:
        most = settings.get("global_batch_size", _BATCHES[0])
        fitting = (each for each in _BATCHES if each <= most and size.tokens >= 10 * each * _ROW)
        rows = next(fitting, min(most, _BATCHES[-1]))
        keys["pretrain.global_batch_size"] = max(rows, size.workers)
        keys["pretrain.validation_every_steps"] = max(1, settings["steps"] // 4)
    both = with_overrides({"model": model, "pretrain": pretrain}, keys)
    return both["model"], both["pretrain"]


def write_rungs(size: Size) -> str:
    """The YAML of the ladder's rungs, as their families suggest them, suites and tasks, without the
    task of labels."""
    from rungwise.core.configuration.overrides import read_mapping, with_overrides
    from rungwise.pipeline.places import recipe_file

    ladder = recipe_file(_LADDER)
    whole, data = ladder.read_text(encoding="utf-8"), read_mapping(ladder)
    lines = ["variants: # the rungs in historical order, as they suit the text"]
    for name, changes in data["variants"].items():
        rung = with_overrides(data, changes)
        blocks = dict(
            zip(("model", "pretrain"), suggest(rung["model"], rung["pretrain"], size), strict=True)
        )
        rest = {key: value for key, value in changes.items() if key.split(".")[0] not in blocks}
        lines.append(f"  {name}:")
        lines += [f"    {key}: {flow(value)}" for key, value in (blocks | rest).items()]
    before, after = whole.index("\nvariants:"), whole.index("\nmeasure:")
    rungs = whole[whole.index("instances:") : before + 1] + "\n".join(lines) + "\n" + whole[after:]
    return re.sub(r"  library: .*\n", "", rungs)


_EXAMPLES, _CHARACTERS, _MOST_LABELS = 3, 300, 12
_LONGEST_NAME = 40
_PARTS = {"train": "to train on", "validation": "to validate on", "test": "to test on"}


def tasks(options: argparse.Namespace) -> None:
    """Print the block, what it reads, and three examples. Raises DataError if no format fits."""
    from rungwise.tasks.formats.guess import guess_format

    guess = guess_format(options.path)
    plain_console().print(describe_data(options.path, guess))


def describe_data(path: str, guess: Guess) -> str:
    """The block as YAML of a recipe, then as comments what it reads."""
    lines = [
        "# In a recipe; the keys are in docs/reference/tasks.md.",
        "tasks:",
        f"  {flow(derive_name(path))}:",
        "    data:",
        *(f"      {key}: {flow(value)}" for key, value in guess.block.items()),
        "",
        *(f"# {line}".rstrip() for line in describe_examples(guess, _EXAMPLES)),
    ]
    return "\n".join(lines)


def describe_examples(guess: Guess, most: int) -> Iterator[str]:
    """Yield what a block reads: the sizes of its parts, labels, notes, and so many examples."""
    parts = [f"{count:,} {_PARTS[split]}" for split, count in guess.sizes.items()]
    fractions = {split: guess.block.get(f"{split}_fraction") for split in _PARTS}
    parts += [f"{part:.0%} of them {_PARTS[split]}" for split, part in fractions.items() if part]
    dropped = f", skipped {guess.damaged:,} that are damaged" if guess.damaged else ""
    yield f"examples: {', '.join(parts)}{dropped}; {guess.form.get('encoding', 'utf-8')}"
    if labels := guess.labels:
        total = labels.total()
        shares = [f"{_clip(name)}: {n:,} ({n / total:.0%})" for name, n in labels.most_common()]
        yield f"labels: {list_first(shares, _MOST_LABELS)}"
    yield from map(_clip, guess.notes)
    step = max(1, len(guess.examples) // most)  # from all over, since a file may be sorted
    for example in guess.examples[::step][:most]:
        fields = asdict(example)
        yield from ("", fields.pop("where"))
        yield from (f"  {name}: {_clip(each)}" for name, each in fields.items() if each is not None)


def derive_name(path: str) -> str:
    """A name that recipes and MLflow accept, from that of a file; Latin letters lose accents."""
    stem = unicodedata.normalize("NFKD", Path(path.rstrip("/")).name.partition(".")[0])
    stem = unicodedata.normalize("NFKC", re.sub("([A-Za-z])[\u0300-\u036f]+", r"\1", stem))
    return re.sub(r"[^\w-]+", "-", stem).strip("-_")[:_LONGEST_NAME] or "mine"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def flow(value: Any) -> str:
    """Format a value in YAML's flow style, on one line."""
    options: dict[str, Any] = {"width": float("inf"), "allow_unicode": True, "sort_keys": False}
    # A list of one: alone, a scalar would be a document with an end mark.
    return yaml.dump([value], Dumper=_Dumper, default_flow_style=True, **options)[1:-2]


def _escape(character: str) -> str:
    # YAML has no control characters, not even in comments.
    if unicodedata.category(character) in ("Cc", "Cs"):
        return character.encode("unicode_escape").decode()
    return character


def _clip(value: Any) -> str:
    if isinstance(value, tuple | list):
        each = [each["text"] if isinstance(each, dict) else each for each in value]
        value = " | ".join(each) or "none"
    text = "".join(map(_escape, " ".join(str(value).split())))
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


def data(options: argparse.Namespace) -> None:
    """List sets, or download them. Raises UserError for an unknown name or without consent."""
    from rungwise.core.public_data import PublicSet, fetch_set, missing_files, public_sets

    say, folder = plain_console().print, options.folder
    if options.action == "list":
        _list_sets(folder)
        return
    if not options.names:
        raise UserError("rungwise data get: expected names of sets, found none")
    missing: dict[str, PublicSet] = {}
    for name in dict.fromkeys(chain.from_iterable(map(_set_names, options.names))):
        public = public_sets()[name]
        if missing_files(public, folder):
            missing[name] = public
        else:
            say(f"{name}: all {format_count(len(public.files), 'file')} are in {folder}")
    limited = {name: public for name, public in missing.items() if public.consent}
    if limited and not options.yes:
        say("The use of these is limited, or their source states no licence:")
        for name, public in limited.items():
            say(f"  {name}: {public.licence}")
        raise UserError("nothing was downloaded; read the licences above, and give --yes to agree")
    for name, public in missing.items():
        say(f"{name}: {public.title}; licence: {public.licence}")
        if public.note:
            say(f"  {public.note}")
        fetch_set(public, folder, options.mirror, lambda line: say(f"  {line}"))


def _list_sets(folder: Path) -> None:
    from rich.filesize import decimal

    from rungwise.core.public_data import missing_files, public_sets

    say = plain_console().print
    for name, public in public_sets().items():
        missing = len(missing_files(public, folder))
        here = "" if missing == len(public.files) else "in part" if missing else "here"
        say(f"{name:<17}{decimal(public.bytes):>9}  {here:<8}{public.title}; {public.licence}")
    say(
        "\nrungwise data get NAME... downloads sets; a recipe in place of a name, all that it reads"
    )


def _set_names(name: str) -> list[str]:
    from rungwise.core.public_data import find_sets, public_sets

    sets = public_sets()
    if name in sets:
        return [name]
    if name.endswith((".yaml", ".yml")):
        from rungwise.pipeline.workflow import load_recipe

        texts = list_texts(load_recipe(name).raw)
        names = [each for _, path in texts for each in find_sets(path)]
        if not names:
            raise UserError(f"{name} reads no file below data/ that is in `rungwise data list`")
        return names
    raise UserError(f"there is no public data set {name!r}; `rungwise data list` names them")
