"""A real vLLM (CPU build, tiny random model) in its own cached environment, beside the engine simulator."""

from e2e.realengine.arguments import UnsupportedArgumentsError, argv, is_real_engine_image
from e2e.realengine.environment import (
    Installation,
    InstallError,
    NotInstalledError,
    install,
    installed,
    locations,
)
from e2e.realengine.recipe import ENGINE_VERSION, UnsupportedMachineError

__all__ = [
    "ENGINE_VERSION",
    "InstallError",
    "Installation",
    "NotInstalledError",
    "UnsupportedArgumentsError",
    "UnsupportedMachineError",
    "argv",
    "install",
    "installed",
    "is_real_engine_image",
    "locations",
]
