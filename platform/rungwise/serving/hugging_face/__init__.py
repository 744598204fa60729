"""Export to and import from the Hugging Face format, without their library."""

from rungwise.serving.hugging_face.reading import load_config, load_model
from rungwise.serving.hugging_face.writing import export_model

__all__ = ["export_model", "load_config", "load_model"]
