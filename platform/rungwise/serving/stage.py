"""The stage that registers a model, for planning: its settings, and where the model went."""

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import Summary
from rungwise.core.stages.stage import LazyFunction, StageType


class RegistryConfig(Config):
    """Where models go in the MLflow registry."""

    # followed by the task, or by the model.kind of a pretraining: rungwise-sst-2, rungwise-ngram
    name: str = Field(default="rungwise", pattern=r"^[^/:.%\"']+$")
    alias: str = "champion"  # alias of the version to use

    def name_model(self, what: str) -> str:
        """The name of a model of this task or kind."""
        # MLflow refuses some characters that a task's name may have.
        return f"{self.name}-{what.replace('.', '-')}"


class RegisterConfig(RegistryConfig):
    """The whole name, and the licences of the sources of each corpus, by its fingerprint."""

    licences: dict[str, tuple[str | None, ...]] = Field(default_factory=dict)


class RegisterSummary(Summary):
    """A version in the registry, without an alias if another keeps it or a baseline is as good."""

    name: str
    version: str
    alias: str | None
    model_uri: str
    tags: dict[str, str]


_REGISTER = LazyFunction("rungwise.serving.registry:register_model")
REGISTER = StageType("register", 8, _REGISTER, RegisterSummary, place="driver")
