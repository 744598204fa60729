"""How often two equally good models are called different by the perplexity of held-out documents.

    python -m benchmarks.perplexity                          five minutes of a core
    python -m benchmarks.perplexity artifacts/measure/*      reads the documents of a ladder anew

The documents are those of the ladder on a bare machine (results/DATE-held-out-documents.json): the
largest of 548 has 9 % of the tokens. Two models are equally good

    signs    on its documents, evenly spread: the differences of two rungs have random signs, since
             either model may be the better one on a document
    centred  likewise, with the differences less their mean
    drawn    on documents drawn from its own, where the differences less their mean keep their signs
    heavy    on documents whose tokens are log-normal, their differences a token normal

The interval in use allows for documents as heavy as the heaviest that were missed: a third of 548
drawn documents miss the largest. Beside it stands the jackknife, which does not. Power is how often
each calls models different of which one is better by 0.1 nats a token. A page judges every claim by
perplexity, with each comparison at its threshold and Holm's correction.

N documents
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, print_rows, results_path, write_results
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.claims import compare, decide_claims, registered_claims
from rungwise.evaluation.statistics import Contrast, Error
from rungwise.evaluation.suites.items import Items, contrast, read_items
from rungwise.instances.order import evenly
from rungwise.pipeline.loading import find_built

METRIC, DOCUMENTS = "perplexity", "held-out-documents"
NUMBERS, PAGES = (10, 30, 100, 200, 548), (30, 548)  # of documents
LEVELS = (0.05, 0.005)
BETTER = 0.1  # nats a token, of the better model where power is measured
SPREAD = 1.5  # of the logarithm of the tokens of heavy documents
NATS = 4.0  # a token, of heavy documents

Vector = NDArray[np.float64]
Pair = tuple[Items, Items]
Null = Callable[[int, np.random.Generator], Pair]


class Documents:
    """The tokens of held-out documents (N,), and the nats of each rung."""

    def __init__(self, tokens: Sequence[float], nats: Sequence[Sequence[float]]) -> None:
        self.tokens_N = np.array(tokens, np.float64)
        self.nats_RN = np.array(nats, np.float64)

    def signs(self, count: int, rng: np.random.Generator) -> Pair:
        return self._flip(self._difference(rng), count, rng)

    def centred(self, count: int, rng: np.random.Generator) -> Pair:
        return self._flip(self._centre(self._difference(rng)), count, rng)

    def drawn(self, count: int, rng: np.random.Generator) -> Pair:
        places = rng.integers(len(self.tokens_N), size=count)
        return self._pair(places, self._centre(self._difference(rng))[places])

    def _difference(self, rng: np.random.Generator) -> Vector:
        """The differences of two rungs in nats."""
        first, second = rng.choice(len(self.nats_RN), 2, replace=False)
        return self.nats_RN[first] - self.nats_RN[second]

    def _centre(self, nats_N: Vector) -> Vector:
        return nats_N - nats_N.sum() / self.tokens_N.sum() * self.tokens_N

    def _flip(self, nats_N: Vector, count: int, rng: np.random.Generator) -> Pair:
        places = evenly(len(self.tokens_N), count)
        return self._pair(places, nats_N[places] * rng.choice([-1.0, 1.0], count))

    def _pair(self, places: NDArray[np.int64], more_N: Vector) -> Pair:
        tokens_N, nats_N = self.tokens_N[places], self.nats_RN[0, places]
        return make_items(nats_N, tokens_N), make_items(nats_N + more_N, tokens_N)


def draw_heavy(count: int, rng: np.random.Generator) -> Pair:
    tokens_N = np.ceil(np.exp(rng.normal(6, SPREAD, count)))
    more_N = tokens_N * rng.normal(0, 0.2, count)
    return make_items(NATS * tokens_N, tokens_N), make_items(NATS * tokens_N + more_N, tokens_N)


def make_items(nats_N: Vector, tokens_N: Vector) -> Items:
    names = [str(number) for number in range(len(nats_N))]
    return Items(METRIC, METRIC, names, names, np.stack([nats_N, tokens_N], axis=1))


def leave_documents_out(first: Items, second: Items) -> Contrast:
    return contrast([(1.0, [first]), (-1.0, [second])], log=True)


def jackknife(first: Items, second: Items) -> Contrast:
    result, tokens_N = leave_documents_out(first, second), first.numbers[:, 1]
    odds_N = tokens_N / (tokens_N.sum() - tokens_N)
    moves_N = odds_N * ((first.numbers - second.numbers)[:, 0] / tokens_N - result.mean)
    size = math.sqrt((1 - 1 / len(tokens_N)) * (moves_N @ moves_N))
    return replace(result, examples=Error(size, result.examples.freedom))


INTERVALS = {"jackknife": jackknife, "in use": leave_documents_out}


def count_calls(null: Null, count: int, trials: int, worse: float = 0.0) -> dict[str, list[float]]:
    """Which share of comparisons each interval calls different, at each level, the second
    model being `worse` by so many nats a token."""
    rng = np.random.default_rng(count)
    pairs = [null(count, rng) for _ in range(trials)]
    for _, second in pairs:
        second.numbers[:, 0] += worse * second.numbers[:, 1]
    shares = {}
    for name, interval in INTERVALS.items():
        contrasts = [interval(*pair) for pair in pairs]
        ps = np.array([2 * min(each.p_above(), each.p_below()) for each in contrasts])
        shares[name] = [float((ps < level).mean()) for level in LEVELS]
    return shares


def count_pages(documents: Documents, count: int, trials: int) -> float:
    """Which share of pages has a verdict on any claim by perplexity."""
    rng = np.random.default_rng(count)
    claims = {
        name: claim
        for name, claim in registered_claims().claims.items()
        if all(each.of == METRIC for each in claim.comparisons)
    }
    comparisons = {
        name: [each.model_copy(update={"threshold": 0.0}) for each in claim.comparisons]
        for name, claim in claims.items()
    }
    rungs = sorted({rung for each in comparisons.values() for one in each for rung in one.terms})
    called = 0
    for _ in range(trials):
        measured = {
            rung: {(METRIC, "", METRIC): [documents.signs(count, rng)[1]]} for rung in rungs
        }
        results = {
            name: [compare(one, measured, {}, ()) for one in each]
            for name, each in comparisons.items()
        }
        called += any(claim.verdict != "undecided" for claim in decide_claims(claims, results))
    return called / trials


def read_documents() -> Documents:
    """The documents of the last results."""
    content = json.loads(sorted(RESULTS.glob(f"*-{DOCUMENTS}.json"))[-1].read_text())
    return Documents(content["tokens"], [*content["nats"].values()])


def write_documents(measured: Sequence[Artifact]) -> None:
    """Write the documents that rungs have measured as results of today."""
    nats, tokens = {}, []
    for artifact in measured:
        for items in read_items(artifact).values():
            if items.metric == METRIC and not items.part:
                tokens = items.numbers[:, 1].astype(int).tolist()
                rung = artifact.record["title"].partition("/")[2] or "ngram1"
                nats[rung] = items.numbers[:, 0].round(2).tolist()
    results_path(DOCUMENTS).write_text(json.dumps({"tokens": tokens, "nats": nats}) + "\n")


def simulate(trials: int, pages: int) -> Iterator[tuple[str, Any]]:
    """Yield each table's row with its shares."""
    documents = read_documents()
    nulls: dict[str, Null] = {
        "signs": documents.signs,
        "centred": documents.centred,
        "drawn": documents.drawn,
        "heavy": draw_heavy,
    }
    for name, null in nulls.items():
        for count in NUMBERS:
            yield f"{name}, {count} documents", count_calls(null, count, trials)
            yield f"{name}, {count} documents, power", count_calls(null, count, trials, BETTER)
    for count in PAGES:
        yield f"pages, {count} documents", {"in use": [count_pages(documents, count, pages)]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("measured", nargs="*", help="folders of measure artifacts of a ladder")
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--pages", type=int, default=1000)
    options = parser.parse_args(arguments)
    if options.measured:
        write_documents([find_built(folder, "artifacts") for folder in options.measured])
    shares = {}
    for name, row in simulate(options.trials, options.pages):
        shares[name] = row
        cells = [f"{each} " + ", ".join(f"{100 * x:.1f} %" for x in row[each]) for each in row]
        print_rows(name, [("called", "; ".join(cells))])
    made_by = {"trials": options.trials, "pages": options.pages, "levels": LEVELS}
    write_results("perplexity", {"made_by": made_by, "found": shares})
    return 0


if __name__ == "__main__":
    sys.exit(main())
