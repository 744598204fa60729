"""Every name that rungwise takes from Ray's internals, and what for.

Any minor version may change them, so pyproject.toml pins the minor version that they come from.
Each is imported on first use, without loading the others.
"""

import pkgutil
from typing import Any

_TOKENS = "ray._private.authentication.authentication_token_setup"
_PLACES = {
    # Start a local Ray without the servers that a run does not use.
    "Node": "ray._private.node:Node",
    "RayParams": "ray._private.parameter:RayParams",
    "enable_token_auth_by_default": f"{_TOKENS}:enable_token_auth_by_default",
    "ensure_token_if_auth_enabled": f"{_TOKENS}:ensure_token_if_auth_enabled",
    # Chooses gloo's network interface before Ray Train connects its workers.
    "TorchBackend": "ray.train.torch.config:_TorchBackend",
    # Saves a checkpoint before Ray Train's controller ends a healthy group of workers to resize it.
    "ControllerCallback": "ray.train.v2._internal.execution.callback:ControllerCallback",
    "ResizingState": "ray.train.v2._internal.execution.controller.state:ResizingState",
    # Drains a node at a cloud's notice, as `ray drain-node` does, without starting a process.
    "GcsClient": "ray._raylet:GcsClient",
    "GcsNodeInfo": "ray.core.generated.gcs_pb2:GcsNodeInfo",
    "DrainNodeReason": "ray.core.generated.autoscaler_pb2:DrainNodeReason",
    # Lists the files that Ray would pack of a working folder, before anything is uploaded.
    "default_excludes": "ray._private.ray_constants:get_runtime_env_default_excludes",
    "walk_folder": "ray._private.runtime_env.packaging:_dir_travel",
    "folder_excludes": "ray._private.runtime_env.packaging:_get_excludes",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return pkgutil.resolve_name(_PLACES[name])
