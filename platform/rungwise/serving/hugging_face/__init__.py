"""Models in the format of Hugging Face, out and in, without their library.

    export(model, config, tokenizer_file, folder)    config.json  model.safetensors
                                                     tokenizer.json  tokenizer_config.json
    config, state = load(folder)
    INITIAL_WEIGHTS.stage(ImportConfig(path=folder), {"tokenizer": tokenizer})     stage.py

What is written loads with `AutoModelForPreTraining.from_pretrained(folder)` (or the class of the
head) and `AutoTokenizer`, and the same weights give the same logits. names.py lists the classes.
"""

from rungwise.serving.hugging_face.reading import load, load_config
from rungwise.serving.hugging_face.writing import export

__all__ = ["export", "load", "load_config"]
