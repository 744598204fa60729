"""Shares of a file, label budgets and overlaps: properties that hold for any data."""

import random
from collections import Counter
from typing import get_args

import pytest

from rungwise.tasks.config import Draw
from rungwise.tasks.data.files import draw_examples, find_overlap, split_examples
from rungwise.tasks.kinds.examples import (
    ChoiceExample,
    Example,
    Question,
    Tagged,
    Text,
    joined_parts,
)


def texts(count: int, labels: str = "abc") -> list[Text]:
    return [Text(f"f:{n}", f"text {n}", None, labels[n % len(labels)]) for n in range(count)]


def test_shares_are_about_the_fractions_and_a_partition() -> None:
    examples = texts(4000)
    splits = split_examples(examples, {"validation": 0.1, "test": 0.3}, seed=0)
    assert sorted(e.where for split in splits.values() for e in split) == sorted(
        e.where for e in examples
    )
    # Four standard deviations of a binomial: 76 of 400, 116 of 1200.
    assert abs(len(splits["validation"]) - 400) < 76
    assert abs(len(splits["test"]) - 1200) < 116


def test_a_share_depends_neither_on_the_order_nor_on_the_other_examples() -> None:
    examples = texts(300)
    first = split_examples(examples, {"test": 0.5}, seed=3)["test"]
    shuffled = examples[:]
    random.Random(0).shuffle(shuffled)
    again = split_examples(shuffled[:200], {"test": 0.5}, seed=3)["test"]
    assert {e.where for e in again} == {e.where for e in first} & {e.where for e in shuffled[:200]}
    other = split_examples(examples, {"test": 0.5}, seed=4)["test"]
    assert {e.where for e in other} != {e.where for e in first}


def test_questions_about_one_context_stay_together() -> None:
    examples = [Question(f"f:{n}", str(n), f"q{n}?", f"context {n // 5}", ()) for n in range(200)]
    splits = split_examples(examples, {"test": 0.5}, seed=0)
    places = [{e.context for e in split if isinstance(e, Question)} for split in splits.values()]
    assert all(places)
    assert not places[0] & places[1]


def test_a_budget_is_balanced_and_holds_the_smaller_ones() -> None:
    examples = [*texts(300, "a"), *texts(30, "b"), *texts(4, "c")]
    budgets = {n: draw_examples(examples, n, 0, "balanced") for n in (3, 9, 30, 60)}
    assert Counter(e.gold for e in budgets[9]) == {"a": 3, "b": 3, "c": 3}
    # The third label has run out, the other two go on taking turns.
    assert Counter(e.gold for e in budgets[30]) == {"a": 13, "b": 13, "c": 4}
    for smaller, larger in ((3, 9), (9, 30), (30, 60)):
        assert {id(e) for e in budgets[smaller]} <= {id(e) for e in budgets[larger]}


def test_a_stratified_budget_has_the_shares_of_the_whole_and_holds_the_smaller_ones() -> None:
    examples = [*texts(300, "a"), *texts(90, "b"), *texts(10, "c")]
    budgets = {n: draw_examples(examples, n, 0, "stratified") for n in (40, 80, 200)}
    for number, budget in budgets.items():
        counts = Counter(e.gold for e in budget)
        for label, share in (("a", 0.75), ("b", 0.225), ("c", 0.025)):
            assert abs(counts[label] - share * number) <= 1
    assert (
        {id(e) for e in budgets[40]} < {id(e) for e in budgets[80]} < {id(e) for e in budgets[200]}
    )


@pytest.mark.parametrize("draw", get_args(Draw))
def test_what_is_drawn_keeps_its_order_and_is_no_more_than_there_is(draw: Draw) -> None:
    examples: list[Example] = [*texts(50)]
    budget = draw_examples(examples, 20, 1, draw)
    assert len(budget) == 20
    assert [examples.index(e) for e in budget] == sorted(examples.index(e) for e in budget)
    assert draw_examples(examples, 99, 1, draw) == examples


def test_overlap_counts_inputs_and_not_labels() -> None:
    train = [Text("a", "one", "two", "x"), Text("b", "three", None, "x")]
    other = [Text("c", "one", "two", "y"), Text("d", "one", None, "x"), Text("e", "two", "one")]
    assert find_overlap(train, other).sum() == 1
    assert find_overlap(train, [Text("f", "three", None, "y")] * 3).all()


def test_no_two_inputs_have_the_same_whole_text() -> None:
    examples = [
        Text("a", "one two", None),
        Text("a", "one", "two"),
        Tagged("a", ("one two",)),
        Tagged("a", ("one", "two", "x")),
        ChoiceExample("a", "one", None, ("two", "x")),
        ChoiceExample("a", "one", "two", ("x", "y")),
    ]
    assert len({(type(e), joined_parts(e)) for e in examples}) == len(examples)
