"""Tasks that a rule makes of any corpus, without labels from people.

    next_paragraph    a pair   does the second paragraph follow the first in its document?
    capitals          tags     which words begin with a capital, and which end a sentence?
    paragraph_label   a label  which origin (library) of the corpus does the paragraph have?

Test examples come from the held-out text. A paragraph whose text occurs again is left out, or for
`paragraph_label` in another split or with another label; the name of the library is replaced."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from rungwise.core.errors import DataError
from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.config import MadeTaskConfig, ParagraphTaskConfig
from rungwise.tasks.kinds.examples import SPLITS, Example, Kind, LoadedTask, Tagged, TaskInfo, Text
from rungwise.tokenizer.mask_units import HAN
from rungwise.tokenizer.token_text import document_hash

# A Han character, or a run of letters with their marks: what is neither blank, digit nor
# punctuation. An apostrophe is part of a word. A plain word is no part of a name such as `max_iter`
# and has no punctuation beside it.
_PUNCTUATION = (
    "!-&(-/:-@\\[-`{-\xbf\u0964\u0965\u2000-\u2018\u201a-\u206f\u3000-\u3020\uff00-\uff20"
)
_LETTERS = rf"[^\s\d{HAN}{_PUNCTUATION}]+"
WORD = re.compile(rf"[{HAN}]|{_LETTERS}")
PLAIN_WORD = re.compile(rf"[{HAN}]|(?<!\S){_LETTERS}(?!\S)")


@dataclass(frozen=True)
class Paragraph:
    """Paragraph `number` of a document; `label` is the document's origin."""

    document: str
    label: str
    number: int
    sentences: tuple[str, ...]
    held_out: bool

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def read_paragraphs(corpus: Artifact) -> Iterator[Paragraph]:
    """Yield the paragraphs of the corpus in order."""
    for row in CorpusSummary.of(corpus).files:
        for document in read_documents(corpus.folder, row.file):
            for number, sentences in enumerate(document.paragraphs()):
                yield Paragraph(
                    document.id, document.label, number, sentences, row.split == "validation"
                )


def text_hash(*parts: object) -> int:
    """Hash the parts to 64 bits, for draws that depend on them alone."""
    return document_hash("\0".join(map(str, parts)))


def in_turns(pool: Iterable[Paragraph], seed: int) -> list[Paragraph]:
    """Order by the hash of the text, independent of the order of the pool; documents take turns, so
    that a large one does not crowd out the small ones."""
    turns: Counter[str] = Counter()
    ranked = []
    for each in sorted(pool, key=lambda each: float(uniform(seed, text_hash(each.text)))):
        ranked.append((turns[each.document], each))
        turns[each.document] += 1
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


class LikeWords:
    """The words of a text with nearly the same frequency as a given one, of those in small letters
    that occur `least` times or more."""

    def __init__(self, counts: Mapping[str, int], least: int) -> None:
        self._words = sorted(
            (word for word, count in counts.items() if count >= least and word == word.lower()),
            key=lambda word: (counts[word], word),
        )
        self._ranks = {word: rank for rank, word in enumerate(self._words)}

    def __contains__(self, word: str) -> bool:
        return word in self._ranks

    def draw(self, word: str, number: int, reach: int, *parts: object) -> list[str]:
        """Draw `number` others among the `reach` nearest in rank; fewer if there are fewer."""
        first = max(0, min(self._ranks[word] - reach // 2, len(self._words) - reach - 1))
        near = [each for each in self._words[first : first + reach + 1] if each != word]
        near.sort(key=lambda each: text_hash(each, *parts))
        return near[:number]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the plain words."""
    return Counter(match[0] for text in texts for match in PLAIN_WORD.finditer(text))


_VALIDATION = 0.3  # share of the stretches of training text
_STRETCH = 50  # paragraphs
_FEWEST = 20  # examples of a split
FOLLOWS, ELSEWHERE = "follows", "elsewhere"
# Tags of one word, so that the score is the F1 of marked words and not the many unmarked ones.
CAPITAL, END, BOTH, PLAIN = "S-capital", "S-end", "S-capital_end", "O"

_UNIT = re.compile(rf"[{HAN}]|[^\s{HAN}]+")  # a word with its punctuation
_END_MARKS = " .!?\u2026\u3002\uff01\uff1f\u0964\"'\u201d\u2019"


def load(config: MadeTaskConfig, corpus: Artifact) -> LoadedTask:
    """Make the task. Raises DataError if the corpus has too little text for it."""
    paragraphs = list(read_paragraphs(corpus))
    repeated = Counter(each.text for each in paragraphs)
    pools: dict[str, list[Paragraph]] = {split: [] for split in SPLITS}
    for each in paragraphs:
        size = len(WORD.findall(each.text))
        if repeated[each.text] == 1 and config.minimum_words <= size <= config.maximum_words:
            stretch = each.number // _STRETCH
            pools[_draw_split(each, _VALIDATION, config.seed, stretch)].append(each)
    kind, metric, labels, make = _RULES[config.kind]
    splits: dict[str, list[Example]] = {}
    notes = []
    for split in SPLITS:
        number = getattr(config, f"{split}_examples")
        splits[split] = list(islice(make(pools[split], number, config.seed), number))
        result = f"the corpus gives {len(splits[split])} examples of {config.kind} for {split}"
        if len(splits[split]) < min(number, _FEWEST):
            raise DataError(
                f"{result}, expected {_FEWEST} or more of its {len(pools[split])} paragraphs of "
                f"{config.minimum_words} to {config.maximum_words} words; add text, change "
                "data.minimum_words or data.maximum_words, or raise corpus.held_out_fraction"
            )
        if len(splits[split]) < number:
            notes.append(f"{result}, and data.{split}_examples is {number}")
    pair = config.kind == "next_paragraph"
    return LoadedTask(TaskInfo(kind, labels, pair=pair, metric=metric), splits, notes=notes)


def pair_paragraphs(pool: Sequence[Paragraph], number: int, seed: int) -> Iterator[Example]:
    """Two paragraphs: half of them neighbours, half with the second of another such pair. Seconds
    change places with each other, so that no second tells by itself which kind it is of."""
    seconds = {
        first: second
        for first, second in pairwise(pool)
        if second.document == first.document and second.number == first.number + 1
    }
    neighbours = [(first, seconds[first]) for first in in_turns(seconds, seed)[:number]]
    apart = sorted(neighbours[1::2], key=lambda pair: (pair[0].document, pair[0].number))
    turn = len(apart) // 2
    others = dict(zip(apart, (second for _, second in apart[turn:] + apart[:turn]), strict=True))
    for first, second in neighbours:
        other = others.get((first, second), second)
        target = FOLLOWS if other is second else ELSEWHERE
        yield Text(_where(first), first.text, other.text, target=target)


def mark_capitals(pool: Sequence[Paragraph], number: int, seed: int) -> Iterator[Example]:
    """The words of a paragraph in small letters, without the marks that end its sentences."""
    for paragraph in in_turns(pool, seed):
        pairs = [pair for sentence in paragraph.sentences for pair in _tag_words(sentence)]
        if len(paragraph.sentences) > 1 and pairs:
            units, tags = zip(*pairs, strict=True)
            yield Tagged(_where(paragraph), units, tags)


def _tag_words(sentence: str) -> list[tuple[str, str]]:
    """Each word of a sentence in small letters, with its tag."""
    units = _UNIT.findall(sentence.rstrip(_END_MARKS))
    tags = []
    for unit in units:
        initial = next(filter(str.isalpha, unit), "")
        tags.append(PLAIN if initial == initial.lower() else CAPITAL)
    if tags:
        tags[-1] = END if tags[-1] == PLAIN else BOTH
    return list(zip(map(str.lower, units), tags, strict=True))


def _draw_split(paragraph: Paragraph, share: float, seed: int, *parts: object) -> str:
    """Draw the split of a training paragraph by its document and `parts`; `share` validates."""
    if paragraph.held_out:
        return "test"
    draw = uniform(seed, text_hash(paragraph.document, *parts))
    return "validation" if draw < share else "train"


def _where(paragraph: Paragraph) -> str:
    return f"{paragraph.document}, paragraph {paragraph.number + 1}"


_Rule = Callable[[Sequence[Paragraph], int, int], Iterator[Example]]
_RULES: Mapping[str, tuple[Kind, str, tuple[str, ...], _Rule]] = {
    "next_paragraph": ("classification", "accuracy", (ELSEWHERE, FOLLOWS), pair_paragraphs),
    "capitals": ("tagging", "f1", (PLAIN, CAPITAL, BOTH, END), mark_capitals),
}


_VALIDATION_DOCUMENTS = 0.4  # share of the training documents
_NEUTRAL = "library"


def load_paragraphs(config: ParagraphTaskConfig, corpus: Artifact) -> LoadedTask:
    """Make a `paragraph_label` task; `where` of an example is the id of its document. Raises
    DataError if fewer labels than asked have enough paragraphs."""
    pools = _pools(config, corpus)
    needed: dict[str, int] = {split: getattr(config, f"{split}_per_label") for split in SPLITS}
    enough = [
        label
        for label in sorted(pools)
        if all(len(pools[label][split]) >= number for split, number in needed.items())
    ]
    # Prefer the labels with the most test paragraphs.
    enough.sort(key=lambda label: (-len(pools[label]["test"]), label))
    labels = sorted(enough[: config.num_labels])
    if len(labels) < config.num_labels:
        raise DataError(
            f"data.num_labels is {config.num_labels}, but only {len(labels)} labels of the corpus "
            f"have the paragraphs asked for ({needed}); lower num_labels or the *_per_label "
            "numbers, raise corpus.held_out_fraction, or add text"
        )
    splits = {
        split: [
            Text(each.document, each.text, target=label)
            for label in labels
            for each in in_turns(pools[label][split], config.seed)[:number]
        ]
        for split, number in needed.items()
    }
    return LoadedTask(
        TaskInfo("classification", tuple(labels), pair=False, metric="accuracy"), splits
    )


def hide_name(text: str, label: str) -> str:
    """Replace the library's name in `text`, in any case and inside dotted names."""
    return re.sub(rf"(?i)(?<![a-z0-9]){re.escape(label)}(?![a-z0-9])", _NEUTRAL, text)


def _pools(config: ParagraphTaskConfig, corpus: Artifact) -> dict[str, dict[str, list[Paragraph]]]:
    """The paragraphs by label and split, without texts of several labels or splits."""
    places: dict[str, list[tuple[str, str, Paragraph]]] = {}
    for paragraph in read_paragraphs(corpus):
        split = _draw_split(paragraph, _VALIDATION_DOCUMENTS, config.seed)
        text = hide_name(paragraph.text, paragraph.label)
        if config.minimum_words <= len(text.split()) <= config.maximum_words:
            hidden = replace(paragraph, sentences=(text,))
            places.setdefault(text, []).append((paragraph.label, split, hidden))
    pools: dict[str, dict[str, list[Paragraph]]] = {}
    for same_text in places.values():
        if len({(label, split) for label, split, _ in same_text}) == 1:
            label, split, paragraph = min(same_text, key=lambda place: place[2].document)
            pools.setdefault(label, {name: [] for name in SPLITS})[split].append(paragraph)
    return pools
