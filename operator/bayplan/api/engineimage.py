"""The engine's image: the form of a reference, and the least engine version that Bayplan can drive.

Bayplan always passes `--shutdown-timeout`, so that running streams end whole; an engine that does not know the flag
exits at start, after a pod has waited for a GPU and pulled an image. Where the reference tells the version, it is
refused at apply instead.
"""

import re
from typing import Annotated, Final

from pydantic import StringConstraints

from bayplan.api.rules import Rule

LEAST_ENGINE_VERSION: Final = (0, 18)
"""First release of vLLM that knows every flag Bayplan passes, `--shutdown-timeout` last."""

_NAME = "[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*"
IMAGE_PATTERN: Final = (
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?:[0-9]{1,5}/)?"
    f"{_NAME}(/{_NAME})*"
    "(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@sha256:[a-f0-9]{64})?$"
)
"""HOST:PORT/PATH/NAME:TAG@DIGEST; all but the name may be left out, and nothing may be empty."""

_MINORS_TOO_OLD = "|".join(str(minor) for minor in range(LEAST_ENGINE_VERSION[1]))
_TOO_OLD = f"(^|/)vllm-(openai|cpu)[-a-z0-9_.]*:v?0[.]({_MINORS_TOO_OLD})([-._a-z@]|$)"


def is_too_old(image: str) -> bool:
    """Whether the reference says that the engine is older than Bayplan can drive.

    Only vLLM's own image names (`vllm-openai`, `vllm-cpu` and their variants, from any registry) carry vLLM's versions
    as tags; a tag of another repository, a digest or `latest` says nothing and passes.
    """
    return re.search(_TOO_OLD, image) is not None


_LEAST = ".".join(str(part) for part in LEAST_ENGINE_VERSION)

EngineImage = Annotated[
    str,
    StringConstraints(pattern=IMAGE_PATTERN, min_length=1, max_length=512),
    Rule(
        expression=f"!self.matches('{_TOO_OLD}')",
        message=f"must be vLLM v{_LEAST}.0 or newer: older engines lack flags that Bayplan passes (--shutdown-timeout)",
        holds=lambda image: not is_too_old(image),
    ),
]
"""Container image of the engine."""
