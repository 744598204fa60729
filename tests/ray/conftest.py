"""One local Ray for the tests of this folder, which ends with the last of them."""

import contextlib

import pytest
import ray

from rungwise.cluster.session import session
from rungwise.core.configuration.overrides import ComputeConfig

_RAY = contextlib.ExitStack()


@pytest.fixture(scope="module")
def ray_session() -> None:
    """A local Ray in this process, which tests share."""
    if not ray.is_initialized():
        _RAY.enter_context(session(ComputeConfig(object_store_megabytes=200)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Ray with the last test, since its idle processes take a tenth of a core."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _RAY.close()
