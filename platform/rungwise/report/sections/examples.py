"""Examples of the model on held-out text, gathered once for the page and its plots.

A model fitted on tokens without instances has none, except nearest neighbours of words if it has
vectors of words and its objective predicts no text. A masking objective has one masked instance.
The rest depends on the model's capabilities: blanks to fill in, continuations of prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.evaluation.page import fill_in, generation, held_out
from rungwise.evaluation.page.fill_in import BlankResult, choose_blanks, fill_blanks
from rungwise.evaluation.page.generation import Continuation, choose_prompts, continue_prompts
from rungwise.evaluation.page.neighbours import Neighbours, neighbours_of_text
from rungwise.evaluation.page.spelling import MINIMUM_LETTERS, token_text
from rungwise.instances.kind import PieceKind, ShownRow
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary, read_kind
from rungwise.models.trained.capabilities import BlankLogits, NextTokenLogits, WordVectors
from rungwise.report import palette, style
from rungwise.report.page import Section
from rungwise.report.sections.variants import Row
from rungwise.training.pretrained import load_model, read_training_config
from rungwise.training.summary import PretrainSummary

_NEAREST = 6  # neighbours shown per word
_CANDIDATES = 256  # of the specimen


@dataclass(frozen=True)
class TextPiece:
    """One position. `original` is the token to predict, None if there is none."""

    text: str
    kind: PieceKind
    segment: int
    original: str | None


@dataclass(frozen=True)
class Specimen:
    """One instance. `answer` is its pair label in words, empty without one."""

    instance: int
    pieces: tuple[TextPiece, ...]
    answer: str

    def count(self, kind: PieceKind) -> int:
        return sum(piece.kind == kind for piece in self.pieces)


@dataclass(frozen=True)
class Baseline:
    """The accuracy of always guessing the most frequent token."""

    token: str
    share: float
    instances: int


@dataclass(frozen=True)
class Examples:
    """Examples of a model; None or empty for those it does not have."""

    baseline: Baseline | None = None
    specimen: Specimen | None = None
    blanks: tuple[BlankResult, ...] = ()
    continuations: tuple[Continuation, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()


def gather_examples(
    pretrain: Artifact,
    instances: Artifact | None,
    tokenizer: Tokenizer,
    blanks: int,
    prompts: int,
    words: int,
    seed: int,
) -> Examples:
    """Draw `blanks`, `prompts` and `words` examples of a pretrained model with `seed`."""
    config = read_training_config(pretrain)
    if instances is None:
        if config.objective.predicts_text:
            return Examples()
        model, tokens = load_model(pretrain), find_input(pretrain, "tokens")
        if not isinstance(model, WordVectors):
            return Examples()
        nearest = neighbours_of_text(model, tokenizer, tokens, words, _NEAREST, seed)
        return Examples(neighbours=tuple(nearest))
    model = load_model(pretrain, InstancesSummary.of(instances).special)
    count, mask_seed = config.pretrain.validated_rows or (held_out.MOST_INSTANCES, 0)
    specimen, continuations, results = None, [], []
    reader = InstanceReader(instances, "validation")
    if config.objective.masks:
        specimen = choose_specimen(reader, tokenizer, mask_seed)
    elif isinstance(model, NextTokenLogits):
        texts = choose_prompts(reader, tokenizer, prompts, seed)
        continuations = continue_prompts(model, tokenizer, texts, reader.vocabulary.end, seed)
    if isinstance(model, BlankLogits):
        results = fill_blanks(model, tokenizer, choose_blanks(reader, tokenizer, blanks, seed))
    return Examples(
        _baseline(reader, tokenizer, count, mask_seed),
        specimen,
        tuple(results),
        tuple(continuations),
    )


def choose_specimen(reader: InstanceReader, tokenizer: Tokenizer, seed: int) -> Specimen:
    """The first instance whose masking has all three outcomes ([MASK], a random token, kept), or
    the first of all if the first 256 have none such; masked as in validation."""
    count = min(_CANDIDATES, len(reader))
    batch = held_out.read_as_validated(reader, np.arange(count), seed)

    def show_row(row: int) -> ShownRow:
        return reader.config.show(batch, row, reader.vocabulary, str)

    outcomes = {"masked", "random", "kept"}
    instance = next(
        (row for row in range(count) if outcomes <= {piece.kind for piece in show_row(row).pieces}),
        0,
    )
    row = show_row(instance)
    pieces = (
        TextPiece(
            token_text(tokenizer, piece.token),
            piece.kind,
            piece.segment,
            None if piece.original is None else token_text(tokenizer, piece.original),
        )
        for piece in row.pieces
    )
    return Specimen(instance, tuple(pieces), row.answer)


def _baseline(
    reader: InstanceReader, tokenizer: Tokenizer, count: int, seed: int
) -> Baseline | None:
    count = min(count, held_out.MOST_INSTANCES, len(reader))
    if (frequent := held_out.most_frequent_share(reader, count, seed)) is None:
        return None
    token, share = frequent
    return Baseline(token_text(tokenizer, token), share, count)


def write_examples(
    examples: Examples, pretrain: PretrainSummary, instances: Artifact | None, tokenizer: str
) -> list[Section]:
    """A section for each kind of examples that the model has; `tokenizer` is the kind of its
    tokenizer."""
    sections = []
    objective, final = pretrain.model.objective(pretrain.objective), pretrain.final
    summary = InstancesSummary.of(instances) if instances else None
    if examples.specimen and instances and summary:
        figures = read_kind(instances).figures(summary.statistics)
        fields = {"specimen": examples.specimen, "instances": summary, "figures": figures}
        plots = {"lengths": draw_lengths(summary)}
        sections.append(
            Section("reads", "What the model reads", fields | {"tokenizer": tokenizer}, plots)
        )
    if examples.continuations:
        fields = {"continuations": examples.continuations, "temperature": generation.TEMPERATURE}
        csv = {"continuations": _continuation_rows(examples.continuations)}
        sections.append(Section("continuations", "Continuations", fields, csv=csv))
    if examples.blanks:
        shown = {"blanks": examples.blanks, "baseline": examples.baseline, "instances": summary}
        fields = shown | {
            "masks": objective.masks,
            "accuracy": final[objective.tokens.accuracy_key],
            "vocab_size": pretrain.vocab_size,
            "minimum_letters": MINIMUM_LETTERS,
            "top": fill_in.TOP,
        }
        csv = {"fill_in": _guess_rows(examples.blanks)}
        sections.append(Section("blanks", "Fill in the blank", fields, csv=csv))
    if examples.neighbours:
        fields = {"neighbours": examples.neighbours, "minimum_letters": MINIMUM_LETTERS}
        rows = [
            {"word": word.word, "near": each.word, "cosine": each.cosine}
            for word in examples.neighbours
            for each in word.nearest
        ]
        csv = {"neighbours": rows}
        sections.append(Section("neighbours", "Nearest words", fields, csv=csv))
    return sections


def _guess_rows(results: Sequence[BlankResult]) -> list[Row]:
    """Every guess for every blank."""
    return [
        {
            "instance": result.blank.instance,
            "position": result.blank.position,
            "before": result.blank.before,
            "after": result.blank.after,
            "answer": result.blank.answer,
            "answer_rank": result.rank,
            "answer_probability": result.probability,
            "guess_rank": place,
            "guess": guess.text,
            "guess_probability": guess.probability,
            "right": guess.right,
        }
        for result in results
        for place, guess in enumerate(result.guesses, start=1)
    ]


def _continuation_rows(continuations: Sequence[Continuation]) -> list[Row]:
    """Every prompt with its true and generated continuations."""
    return [
        {
            "instance": each.prompt.instance,
            "prompt": each.prompt.text,
            "text": each.prompt.truth,
            "greedy": each.greedy,
            "sampled": each.sampled,
        }
        for each in continuations
    ]


def draw_lengths(instances: InstancesSummary) -> bytes:
    """Histogram of instance lengths in tokens."""
    counts, longest = np.array(instances.length_histogram), instances.sequence_length
    assert longest is not None, f"{instances.kind} have no rows"
    edges = np.linspace(0, longest, len(counts) + 1)
    share = 100 * counts / counts.sum()
    figure, axes = style.new_axes()
    axes.bar(edges[:-1], share, width=np.diff(edges) * 0.92, align="edge", color=palette.BLUE)
    title = f"{share[-1]:.0f}% of instances are {edges[-2]:.0f} to {longest} tokens long"
    style.dress(axes, title, "instance length (tokens)", "instances (%)")
    axes.set_xlim(0, longest)
    return style.png(figure)
