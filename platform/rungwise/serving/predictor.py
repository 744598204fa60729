"""A trained model for inference: examples in, predictions out, and answers to typed text.

It needs only its description, weights and tokenizer, neither Ray nor the artifacts it was made
from. A fine-tuned model answers as its task says; a pretrained one:

n-gram or left-to-right       log_probability of the text and its end token, in nats, and the number
                              of tokens; with a `Sampling`, the continuation instead
text with a gap, ___          gap: the likeliest tokens for it, of a model that reads both sides
with vectors of sentences     vector: its own way; else of a bidirectional model the mean of the
                              last states, special tokens included; long text is cut
table of word vectors         of a word its vector, and the nearest words with their cosines

V vocabulary
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.examples import Neighbourhood, continue_texts, list_guesses, rate_gap
from rungwise.finetune import DESCRIPTION, build_frame, outputs, restore
from rungwise.models.device import list_devices
from rungwise.models.trained import capabilities
from rungwise.models.trained.encoders import MeanOfStates
from rungwise.models.trained.language_models import Sampling
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo, Text
from rungwise.tasks.kinds.items import Item, token_ids
from rungwise.tasks.kinds.kind import Outputs, Record
from rungwise.tokenizer import FILE as TOKENIZER
from rungwise.tokenizer import load_reader, load_tokenizer, special_ids
from rungwise.training.initial import read_training_config
from rungwise.training.pretrained import find_tokenizer, load_encoder, load_model
from rungwise.training.tensor_files import MODEL as WEIGHTS
from rungwise.training.tensor_files import load_tensors

FILES = (DESCRIPTION, WEIGHTS, TOKENIZER)
GAP = "___"
_BEST = 5


class Predictor:
    """Predictions for examples of the task that the model in a folder was fine-tuned on."""

    def __init__(self, folder: Folder, quiet: bool = False) -> None:
        """Load the model; a `quiet` one warns of no cuts. Raises DataError for a missing file."""
        for name in FILES:
            if not folder.exists(name):
                raise DataError(
                    f"{folder.uri} holds no {name}; expected a fine-tuned model, which is the "
                    f"folder of an evaluate artifact, with {', '.join(FILES)}"
                )
        description = json.loads(folder.read_bytes(DESCRIPTION))
        model = restore(description, load_tensors(folder, WEIGHTS))
        self.model = model.to(list_devices()[0])
        self.info = model.info
        self._has_warned = quiet
        self.tokenizer = load_tokenizer(folder)
        self.frame = build_frame(model.config, model.pretrained, self.tokenizer)

    def __call__(
        self, examples: Sequence[Example], sampling: Sampling | None = None
    ) -> list[dict[str, Any]]:
        """One prediction per example, in order; see tasks/kinds/ for the keys. Raises DataError for
        a `sampling`: a task's answers are not drawn."""
        if sampling is not None:
            raise DataError("a fine-tuned model answers as its task says; leave the length out")
        if not examples:
            return []
        kind = self.model.kind
        items = kind.encode(examples, self.tokenizer, self.frame)
        self._warn_of_cut(examples, items)
        answered = Outputs(outputs(self.model, items), items, examples, self.tokenizer)
        return kind.decode(answered, self.model.calibration)

    def _warn_of_cut(self, examples: Sequence[Example], items: Sequence[Item]) -> None:
        """Warn once, on standard error, that a text is longer than the model reads."""
        cut = next((item for item in items if item.cut), None)
        if cut is None or self._has_warned:
            return
        self._has_warned = True
        sys.stderr.write(
            f"{examples[cut.example].where}: the text is cut, for the model reads "
            f"{self.frame.sequence_length} tokens (finetune.sequence_length), of a question 64 at "
            "most; others that are cut are not named\n"
        )


_NEAREST = 10
_RECORD_KEYS = ("fingerprint", "label", "config", "summary")  # of the record, for the description
_PRETRAIN = "pretrain"  # the key that only the description of a pretrained model has


class PretrainedPredictor:
    """Answers for texts; `words` are those of a table of word vectors, empty for other models."""

    info = TaskInfo("regression", (), pair=False, metric="")  # an example is a text

    def __init__(self, pretrain: Artifact, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        special = special_ids(tokenizer)
        model, encoder = load_model(pretrain, special), load_encoder(pretrain)
        self.model = model
        self.words: list[str] = []
        self.writes = isinstance(model, capabilities.NextTokenLogits)
        if isinstance(model, capabilities.LanguageModel) and (encoder is None or encoder.causal):
            (end,) = special.require("end")
            self._answer = lambda ids, _: _log_probabilities(model, ids, end)
        elif isinstance(model, capabilities.SentenceVectors):
            self._answer = lambda ids, _: _sentence_vectors(model, ids)
        elif encoder is not None and encoder.num_layers:
            masks = read_training_config(pretrain).objective.masks
            marks = special.require("cls", "sep") if masks else special.require("end", "end")
            pooled = MeanOfStates(encoder.body, encoder.max_length, *marks)
            self._answer = lambda ids, _: _sentence_vectors(pooled, ids)
        else:
            assert isinstance(model, capabilities.WordVectors), "what has no states has a table"
            near = Neighbourhood(model, tokenizer)
            self.words = near.words
            self._answer = lambda _, words: [_describe_word(near, word) for word in words]

    def __call__(
        self, examples: Sequence[Example], sampling: Sampling | None = None
    ) -> list[dict[str, Any]]:
        """One answer per example, in order. Raises DataError for a word that a table lacks, and
        for `sampling` of a model that does not write."""
        texts = [example.text for example in examples if isinstance(example, Text)]
        model = self.model
        if sampling is not None:
            if not isinstance(model, capabilities.NextTokenLogits):
                raise DataError(
                    "this model does not write from left to right; leave the length out"
                )
            continuations = continue_texts(model, self.tokenizer, texts, sampling)
            return [{"continuation": text} for text in continuations]
        if not isinstance(model, capabilities.BlankLogits):
            return self._reply(texts)
        others = iter(self._reply([text for text in texts if GAP not in text]))
        return [
            {"gap": fill_gap(model, self.tokenizer, text)} if GAP in text else next(others)
            for text in texts
        ]

    def _reply(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        return self._answer(token_ids(self.tokenizer, texts), texts)


def _log_probabilities(model: capabilities.LanguageModel, texts: list[list[int]], end: int) -> Any:
    rows = model.log_probabilities([[*ids, end] for ids in texts])
    return [{"log_probability": float(row.sum()), "tokens": len(row)} for row in rows]


def _sentence_vectors(model: capabilities.SentenceVectors, texts: list[list[int]]) -> Any:
    return [{"vector": row.tolist()} for row in model.sentence_vectors(texts)]


def _describe_word(near: Neighbourhood, word: str) -> dict[str, Any]:
    nearest = near.nearest(word, _NEAREST)
    words, cosines = [each.word for each in nearest], [each.cosine for each in nearest]
    return {"vector": near.vector(word).tolist(), "nearest": words, "cosines": cosines}


def describe_model(pretrain: Artifact) -> dict[str, Any]:
    """The JSON description of the model without its tensors; `load` reads it."""
    return {_PRETRAIN: {name: pretrain.record[name] for name in _RECORD_KEYS}}


Model = Predictor | PretrainedPredictor


def require_artifact(folder: Folder) -> Artifact:
    """Load a model's artifact, or its copy. Raises DataError without a record to check it by."""
    artifact = artifacts.load(folder)
    if artifact is None:
        raise DataError(
            f"{folder.uri} has no {artifacts.RECORD}, so nothing says that its files are those "
            "that were written; build the model again, or register it again"
        )
    return artifact


def load_predictor(folder: Folder) -> Model:
    """Load the model of an artifact, or a registry's copy. Raises DataError for a missing file."""
    artifact = require_artifact(folder)
    if artifact.stage == _PRETRAIN:
        return PretrainedPredictor(artifact, load_reader(find_tokenizer(artifact).folder))
    if (copy := read_pretrained_copy(artifact)) is not None:
        return PretrainedPredictor(copy, load_reader(copy.folder))
    return Predictor(artifact.folder)


def read_pretrained_copy(served: Artifact) -> Artifact | None:
    """Return the pretrain artifact that a registry's files are a copy of; None for others."""
    folder = served.folder  # checks every file against the record
    description = json.loads(folder.read_bytes(DESCRIPTION)) if folder.exists(DESCRIPTION) else {}
    record = description.get(_PRETRAIN)
    return Artifact(_PRETRAIN, record["fingerprint"], folder, record) if record else None


def fill_gap(model: capabilities.BlankLogits, tokenizer: Tokenizer, text: str) -> dict[str, float]:
    """Return the likeliest tokens for a gap. Raises DataError unless there is one that fits."""
    before, gap, after = text.partition(GAP)
    if not gap or GAP in after:
        raise DataError(f"expected one gap, written {GAP}, found {text!r}; this model fills gaps")
    left, right = token_ids(tokenizer, [before.strip(), after.strip()])
    return list_guesses(tokenizer, rate_gap(model, tokenizer, left, right))


def try_texts(predictor: Model, texts: Sequence[str], sampling: Sampling) -> str:
    """Answer the texts that a person typed, one for each field of the task, in a line. A pretrained
    model fills a gap, goes on with a text, rates it, or names the neighbours of a word. Raises
    DataError for one that can only be fine-tuned."""
    if isinstance(predictor, Predictor):
        kind = task_kind(predictor.info)
        values = dict(zip(kind.fields, texts, strict=True))
        (prediction,) = predictor([kind.parse(Record(values, "the text", kind.columns))])
        return _describe(prediction)
    (text,), tokenizer = texts, predictor.tokenizer
    match model := predictor.model:
        case capabilities.BlankLogits():
            return _join(fill_gap(model, tokenizer, text).items())
        case capabilities.NextTokenLogits():
            return text + continue_texts(model, tokenizer, [text], sampling)[0]
        case capabilities.LanguageModel():
            end = special_ids(tokenizer).require("end")
            (row,) = model.log_probabilities([[*token_ids(tokenizer, [text])[0], *end]])
            perplexity = math.exp(-row.mean())
            return f"perplexity {perplexity:,.1f} over {len(row)} tokens, its end included"
        case capabilities.WordVectors():
            return list_neighbours(Neighbourhood(model, tokenizer), text, _BEST)
    raise DataError("this model predicts no tokens and has no vectors of words; fine-tune it first")


def list_neighbours(near: Neighbourhood, word: str, count: int) -> str:
    nearest = near.nearest(word, count)
    words = "  ".join(f"{each.word} {each.cosine:.3f}" for each in nearest)
    pieces = near.pieces(word)
    # A word that the vocabulary lacks has the mean vector of its pieces.
    return f"{' '.join(pieces)}: {words}" if len(pieces) > 1 else words


def _describe(prediction: dict[str, Any]) -> str:
    """One line: the answer, and its probabilities from high to low."""
    shares = prediction.get("probabilities")
    if isinstance(shares, dict):
        return _join(sorted(shares.items(), key=lambda item: -item[1])[:_BEST])
    values = [value for name, value in prediction.items() if name != "probabilities"]
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "  ".join(texts)


def _join(shares: Iterable[tuple[str, float]]) -> str:
    return "  ".join(f"{name} {share:.1%}" for name, share in shares)
