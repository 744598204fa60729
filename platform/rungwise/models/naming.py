"""Names of models as people write them, for a set of variants: GPT, word2vec, 3-gram."""

from collections.abc import Mapping

from rungwise.models.family import Family
from rungwise.models.losses.objectives import Objective


def name_models(models: Mapping[str, tuple[Family, Objective]]) -> dict[str, str]:
    """Name the model of each variant, `{"bert_frozen": "BERT (frozen)"}`: by its kind, and in
    brackets by what the variant's own name adds if several are of that kind."""
    kinds = {
        variant: model.page_name(objective).removesuffix(" model")
        for variant, (model, objective) in models.items()
    }
    names: dict[str, str] = {}
    for variant, kind in kinds.items():
        addition = variant.removeprefix(models[variant][0].kind).replace("_", " ").strip()
        is_alone = list(kinds.values()).count(kind) == 1
        names[variant] = kind if is_alone or not addition else f"{kind} ({addition})"
    return names
