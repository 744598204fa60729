"""What needs no model, by hand."""

import pytest

from rungwise.core.errors import DataError
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Answer, ChoiceExample, Question, Tagged, TaskInfo, Text


def test_the_majority_is_that_of_the_training_split() -> None:
    info = TaskInfo("classification", ("no", "yes"), False, "accuracy")
    train = [Text("a", "a", target=label) for label in ("yes", "no", "yes")]
    test = [Text("a", "a", target=label) for label in ("no", "no", "yes", "no")]
    scores = task_kind(info).baselines(train, test)
    assert scores["majority"] == pytest.approx(
        {"accuracy": 1 / 4, "macro_f1": 0.4 / 2, "matthews": 0, "f1": 0.4}
    )
    assert scores["chance"] == {"accuracy": 1 / 2}


def test_of_several_labels_the_best_that_needs_no_text_is_found() -> None:
    info = TaskInfo("multilabel", ("a", "b", "c"), False, "micro_f1")
    train = [Text("a", "a", target=t) for t in ((), ("a", "b"), ("a", "b"), ("a",), (), ("c",), ())]
    test = [Text("a", "a", target=t) for t in ((), ("a",), ("a", "b"))]
    # Of seven texts three have a, two b: F1 of a is 6/13, of a and b 10/20, of all 12/27.
    assert task_kind(info).baselines(train, test) == {
        "no_label": {"micro_f1": 0, "macro_f1": 0, "exact_match": pytest.approx(1 / 3)},
        "majority": {"micro_f1": 0, "macro_f1": 0, "exact_match": pytest.approx(1 / 3)},
        "most_frequent": pytest.approx(
            {"micro_f1": 6 / 9, "macro_f1": (4 / 5 + 2 / 4) / 3, "exact_match": 1 / 3}
        ),
        "every_label": pytest.approx(
            {"micro_f1": 6 / 12, "macro_f1": (4 / 5 + 2 / 4) / 3, "exact_match": 0}
        ),
    }


def test_the_mean_score_correlates_with_nothing() -> None:
    info = TaskInfo("regression", (), True, "pearson")
    train = [Text("a", "a", "b", score) for score in (1.0, 3.0)]
    test = [Text("a", "a", "b", score) for score in (0.0, 4.0)]
    assert task_kind(info).baselines(train, test) == {
        "mean": {"pearson": 0, "spearman": 0, "mean_squared_error": 4}
    }


def test_each_word_has_its_commonest_tag() -> None:
    info = TaskInfo("tagging", ("O", "B-X"), False, "f1")
    train = [
        Tagged("a", ("a", "b", "b", "b"), ("O", "B-X", "B-X", "O")),
        Tagged("b", ("a",), ("O",)),
    ]
    test = [Tagged("c", ("a", "b", "new"), ("O", "B-X", "O"))]
    scores = task_kind(info).baselines(train, test)
    assert scores["word_majority"] == {"accuracy": 1, "precision": 1, "recall": 1, "f1": 1}
    assert scores["majority"] == pytest.approx(
        {"accuracy": 2 / 3, "precision": 0, "recall": 0, "f1": 0}
    )


def test_answers_are_guessed_from_where_contexts_begin() -> None:
    info = TaskInfo("span", (), False, "f1")

    def asked(context: str, *answers: str) -> Question:
        return Question("a", "a", "?", context, tuple(Answer(text, 0) for text in answers))

    train = [asked("a", "two words"), asked("a", "here two"), asked("a", "one more two three")]
    test = [
        asked("Big cats sleep. They do.", "Big cats sleep"),
        asked(" Red 1.5 it is?", "Red 1.5"),
    ]
    scores = task_kind(info).baselines(train, test)
    assert scores["first_sentence"]["exact_match"] == 1 / 2
    assert scores["first_words"]["exact_match"] == 1 / 2
    assert scores["no_answer"] == {"exact_match": 0, "f1": 0}
    chinese = [asked("猫在睡觉。狗不睡。", "猫在")]
    assert task_kind(info).baselines(train, chinese)["first_words"]["exact_match"] == 1
    with_none = task_kind(info).baselines(train, [*test, asked("a"), asked("")])
    assert with_none["no_answer"]["unanswerable_accuracy"] == 1


def test_options_are_guessed_by_place_and_by_length() -> None:
    info = TaskInfo("choice", (), False, "accuracy")
    train = [ChoiceExample("a", "a", None, ("b", "c"), target) for target in (1, 1, 0)]
    test = [
        ChoiceExample("a", "a", None, ("long", "b"), 0),
        ChoiceExample("a", "a", None, ("b", "c", "long", "d"), 1),
    ]
    assert task_kind(info).baselines(train, test) == {
        "majority": {"accuracy": 1 / 2},
        "longest": {"accuracy": 1 / 2},
        "chance": {"accuracy": 3 / 8},
    }


def test_a_test_split_without_targets_is_refused() -> None:
    info = TaskInfo("classification", ("no", "yes"), False, "accuracy")
    with pytest.raises(DataError, match="t:1: there is no target"):
        task_kind(info).baselines([Text("a", "a", target="no")], [Text("t:1", "a")])
