"""Files beside the weights: JSON, and what sentence-transformers reads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rungwise.core.configuration.canonical import canonical_json
from rungwise.serving.hugging_face.names import CONFIG, MODULES, POOLING, SENTENCES


def write_pooling(folder: Path, width: int, longest: int, mode: str) -> dict[str, str]:
    """Write the files of sentence-transformers beside a Transformer; return its modules."""
    (folder / POOLING).mkdir()
    pooling = {"word_embedding_dimension": width, f"pooling_mode_{mode}": True}
    write_json(folder / POOLING / CONFIG, pooling)
    write_json(folder / SENTENCES, {"max_seq_length": longest, "do_lower_case": False})
    return {"": "Transformer", POOLING: "Pooling"}


def write_modules(folder: Path, classes: Mapping[str, str]) -> None:
    """Write which class of sentence-transformers loads each folder, in the order of use."""
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (path, name) in enumerate(classes.items())
    ]
    write_json(folder / MODULES, modules)


def write_json(path: Path, data: Any) -> None:
    text = json.dumps(json.loads(canonical_json(data)), indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
