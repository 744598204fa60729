"""Export to and import from the Hugging Face format, without their library.

    export(model, config, tokenizer_file, folder)    config.json  model.safetensors
                                                     tokenizer.json  tokenizer_config.json
    config, state = load(folder)
    INITIAL_WEIGHTS.stage(ImportConfig(path=folder), {"tokenizer": tokenizer})     stage.py

An export loads with `AutoModelForPreTraining.from_pretrained(folder)` (or the class of the head)
and `AutoTokenizer`, and gives the same logits. names.py lists the classes.
"""

from rungwise.serving.hugging_face.reading import load, load_config
from rungwise.serving.hugging_face.writing import export

__all__ = ["export", "load", "load_config"]
