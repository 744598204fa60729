"""Export to and import from the Hugging Face format, without their library.

    export_model(model, config, tokenizer_file, folder)    config.json  model.safetensors
                                                           tokenizer.json  tokenizer_config.json
    config, state = load_model(folder)
    INITIAL_WEIGHTS.stage(ImportConfig(path=folder), {"tokenizer": tokenizer})     stage.py

An export loads with `AutoModelForPreTraining.from_pretrained(folder)` (or the class of the head)
and `AutoTokenizer`, and gives the same logits. A family says in `counterparts` what it is there.
"""

from rungwise.serving.hugging_face.reading import load_config, load_model, weights_folder
from rungwise.serving.hugging_face.writing import export_model

__all__ = ["export_model", "load_config", "load_model", "weights_folder"]
