"""The README.md of an exported model: its card, below the metadata that the Hugging Face hub reads.

The metadata names no licence: those of the texts are in the card, and that of a model is for its
owner to choose.
"""

HUB_CARD = "README.md"
_PIPELINES = {  # the hub's tags of what a model does, by the class that loads it
    "AutoModel": "sentence-similarity",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMultipleChoice": "multiple-choice",
}


def hub_card(card: str, auto: str, sentences: bool) -> str:
    """Return `card` below its metadata. `auto` is the class of transformers that loads the model;
    `sentences`, whether sentence-transformers does."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=_PIPELINES[auto],
        tags=["rungwise"],
    )
    return f"---\n{data.to_yaml()}\n---\n\n{card}"
