"""Near-duplicates: against exact Jaccard indices, the formula of the bands, and any order."""

import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.corpus.cleaning.duplicates import (
    band_keys,
    band_rows,
    estimate_similarity,
    mark_duplicates,
    sign_texts,
)
from tests.conftest import REPOSITORY


def shingles(text: str, size: int = 9) -> set[str]:
    text = text.lower().ljust(size, "\0")
    return {text[at : at + size] for at in range(len(text) - size + 1)}


def jaccard(one: str, other: str) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def digest(number: int) -> bytes:
    return number.to_bytes(16)


def marks_among(texts: list[str], partitions: int = 1) -> set[int]:
    """Who is marked among `texts`, whose digests are their numbers."""
    signed = sign_texts(texts)
    keys = band_keys(signed).astype("<u8")
    rows = pa.table(
        {
            "digest": pa.array([digest(number) for number in range(len(texts))], pa.binary(16)),
            "bands": pa.array([key.tobytes() for key in keys], pa.binary()),
            "signature": pa.array([one.tobytes() for one in signed.astype(np.uint8)], pa.binary()),
        }
    )
    split = band_rows(rows, 0, partitions)
    found: set[int] = set()
    for partition in range(partitions):
        part = split.filter(pa.array(split["partition"].to_numpy() == partition))
        if part.num_rows:
            found |= {int.from_bytes(one) for one in mark_duplicates(part)}
    return found


def pair(rng: random.Random, wanted: float, length: int = 3000) -> tuple[str, str]:
    """Two random texts with about this resemblance: the same, but for replaced stretches."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    text = "".join(rng.choices(letters, k=length))
    # Shared of the union: s = x / (2 - x) for a share x of each that is the same.
    other = list(text)
    changed = int(length * (1 - 2 * wanted / (1 + wanted)))
    other[:changed] = rng.choices(letters, k=changed)
    return text, "".join(other)


@pytest.mark.parametrize("length", [3000, 700])
def test_a_similarity_is_estimated_without_bias(length: int) -> None:
    rng = random.Random(0)
    errors = []
    for one, other in (pair(rng, rng.random(), length) for _ in range(300)):
        low = sign_texts([one, other]).astype(np.uint8)
        errors.append(float(estimate_similarity(low[0], low[1:])[0]) - jaccard(one, other))
    assert abs(np.mean(errors)) < 3 * np.std(errors) / len(errors) ** 0.5 + 0.002
    # At most sqrt(1/4 / P) for each, as of independent draws.
    assert np.sqrt(np.mean(np.square(errors))) < 1.1 * 0.5 / 128**0.5


def test_pairs_meet_as_often_as_the_bands_say() -> None:
    rng = random.Random(2)
    expected, met = [], []
    for wanted in (0.4, 0.5, 0.6, 0.7, 0.8):
        for _ in range(150):
            one, other = pair(rng, wanted, length=1000)
            keys = band_keys(sign_texts([one, other]))
            expected.append(1 - (1 - jaccard(one, other) ** 8) ** 16)
            met.append(bool((keys[0] == keys[1]).any()))
    for start in range(0, 750, 150):
        share = np.mean(expected[start : start + 150])
        margin = 4 * (share * (1 - share) / 150) ** 0.5 + 0.03
        assert abs(np.mean(met[start : start + 150]) - share) < margin


def test_one_of_a_cluster_is_kept() -> None:
    rng = random.Random(3)
    first, second = (pair(rng, 0)[0] for _ in range(2))
    texts = [first, second, first + " x", second + " y", first.upper() + " zz"]
    assert marks_among(texts) == {2, 3, 4}
    # Chinese needs no blanks.
    first, second = ("".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(800)) for _ in "ab")
    assert marks_among([first, second, first[:-30]]) == {2}


@given(seed=st.integers(0, 10**6), partitions=st.integers(1, 7))
def test_marks_are_the_same_in_any_order_and_number_of_parts(seed: int, partitions: int) -> None:
    rng = random.Random(seed)
    texts = []
    for _ in range(4):
        texts += pair(rng, rng.choice((0.7, 0.85, 0.95)), length=400)
    expected = marks_among(texts)
    assert marks_among(texts, partitions=partitions) == expected
    signed = sign_texts(texts)
    order = rng.sample(range(len(texts)), len(texts))
    assert (sign_texts([texts[at] for at in order]) == signed[order]).all()


def test_a_bucket_with_several_kinds_compares_each_with_its_own() -> None:
    # One band for all, whatever they are: only signatures tell them apart.
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (3, 128), dtype=np.uint8)
    signature = [kinds[number % 3].tobytes() for number in range(9)]
    rows = pa.table(
        {
            "band": np.zeros(9, np.uint64),
            "digest": pa.array([digest(n) for n in range(9)], pa.binary(16)),
            "signature": pa.array(signature, pa.binary()),
            "range": np.zeros(9, np.int32),
            "row": np.arange(9, dtype=np.int32),
        }
    )
    assert mark_duplicates(rows) == {digest(n) for n in range(3, 9)}


def test_long_texts_are_cut_nowhere() -> None:
    rng = random.Random(5)
    text = "".join(rng.choices("abcdefgh ", k=600_000))
    (whole,) = sign_texts([text])
    overlapping = [text[start : start + 100_008] for start in range(0, 600_000, 100_000)]
    assert (whole == sign_texts(overlapping).min(axis=0)).all()


def test_signatures_are_the_same_in_every_process_and_for_good() -> None:
    code = (
        "from rungwise.corpus.cleaning.duplicates import *\n"
        "print(sign_texts(['The quick brown fox.', '\\u4f60\\u597d' * 9])"
        "[:, :3].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(REPOSITORY / "platform"), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    # Written down once; another number here means that stored corpora cannot be rebuilt.
    assert json.loads(done.stdout) == [[2423413466, 4204624344, 3726884448], [3629287423] * 3]
