"""The fields of a config.json: nested ones first, each with a check of its type."""

from collections.abc import Mapping
from typing import Any

from bayplan.planning.memory.architecture import UnknownArchitecture
from bayplan.planning.numbers import InvalidInput, whole

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class ConfigFields:
    """The fields of one config.json, nested ones first, then what the class assumes; each with a check of its type."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, int]) -> None:
        nested = config.get("text_config") or config.get("llm_config")
        if nested and not isinstance(nested, Mapping):
            raise InvalidInput("text_config", f"must be a JSON object, not {str(nested)[:40]!r}")
        own = (nested, config) if isinstance(nested, Mapping) else (config,)
        self._levels: tuple[Mapping[str, Any], ...] = (*own, defaults)
        self.missing: list[str] = []

    def raw(self, name: str) -> Any:
        """The value as it stands, or None."""
        return next((level[name] for level in self._levels if level.get(name) is not None), None)

    def number(self, *names: str) -> int | None:
        """The first of `names` that is there, as a whole number; raises InvalidInput for anything else."""
        for name in names:
            value = self.raw(name)
            if value is not None:
                return whole(value, name)
        return None

    def needed(self, *names: str) -> int:
        """As `number`; a field that is not there is noted in `missing` and read as 1."""
        value = self.number(*names)
        if value is None:
            self.missing.append(" or ".join(names))
            return 1
        return value

    def require(self, name: str) -> None:
        """Raise UnknownArchitecture naming every field that was needed so far and is not there."""
        if self.missing:
            missing = tuple(self.missing)
            raise UnknownArchitecture(name, missing, f"{name} needs {', '.join(missing)} in its config.json")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A true or false; raises InvalidInput for anything else."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidInput(name, f"must be true or false, not {value!r}")
        return value
