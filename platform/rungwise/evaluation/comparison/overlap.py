"""Test examples that a model has met before: in the training split, or in the text it was
pretrained on; and its score without them.

An example stands in the training split if one there has the same input. It stands in a text if all
its runs of `RUN` words do, whatever the punctuation (corpus/cleaning/decontamination.py); one of
fewer words is not searched for, because it may stand in any text.

N test examples
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, chain
from rungwise.corpus.cleaning.decontamination import find_texts
from rungwise.corpus.summary import CORPORA, read_split
from rungwise.evaluation.comparison.inputs import VariantInputs
from rungwise.evaluation.comparison.summary import Overlap
from rungwise.tasks.data.files import find_overlap
from rungwise.tasks.kinds.examples import Example, read_examples

RUN = 8


def find_met(
    variants: Mapping[str, VariantInputs], task: Artifact, examples: Sequence[Example]
) -> dict[str, tuple[Overlap, NDArray[np.bool_]]]:
    """Return the overlap of each variant, and which test examples (N,) it has not met before."""
    trained = find_overlap(read_examples(task, "train"), examples)
    texts = [" ".join(example.parts) for example in examples]
    by_corpora: dict[tuple[str, ...], NDArray[np.bool_]] = {}
    result = {}
    for name, variant in variants.items():
        in_pretraining = np.zeros(len(examples), dtype=bool)
        has_corpora = True
        if variant.finetune.initialisation == "pretrained":
            try:
                corpora = [each for each in chain(variant.pretrains[0]) if each.stage in CORPORA]
                key = tuple(each.fingerprint for each in corpora)
                if key not in by_corpora:
                    documents = (each for corpus in corpora for each in read_split(corpus, "train"))
                    sentences = (document.sentences for document in documents)
                    by_corpora[key] = find_texts(texts, sentences, RUN)
                in_pretraining = by_corpora[key]
            except (DataError, KeyError):
                has_corpora = False
        counts = Overlap(
            training=int(trained.sum()),
            pretraining=int(in_pretraining.sum()) if has_corpora else None,
        )
        result[name] = (counts, ~(trained | in_pretraining))
    return result
