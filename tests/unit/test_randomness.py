"""The counter-based generator: uniform, its streams unrelated, and the numbers of its reference."""

import math

import numpy as np

from rungwise.core.randomness import bits, uniform


def test_the_generator_is_uniform_and_its_streams_are_unrelated() -> None:
    draws = uniform(1, np.arange(200_000))
    histogram = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert abs(((histogram - 2000) ** 2 / 2000).sum() - 99) < 5 * math.sqrt(2 * 99)
    other = uniform(2, np.arange(200_000))
    assert abs(np.corrcoef(draws, other)[0, 1]) < 5 / math.sqrt(200_000)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(200_000)


def test_splitmix64_gives_the_published_numbers() -> None:
    """The first output for state 0 is 16294208416658607535 (Vigna's reference, splitmix64.c)."""
    assert int(bits(0)) == 16294208416658607535
