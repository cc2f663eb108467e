"""Texts that users write into ConfigMaps and files: YAML, and so JSON, in which a time stays the text that it is."""

import yaml

from bayplan.planning.numbers import InvalidInput

MAX_TEXT_CHARACTERS = 1_000_000
"""The API server keeps no more in one object either."""


class _PlainLoader(yaml.SafeLoader):
    """Without the implicit reading of times."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_plain_yaml(text: str, name: str) -> object:
    """Return what the text says. Raises InvalidInput under `name` when it is too long or not YAML."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidInput(name, f"must have at most {MAX_TEXT_CHARACTERS} characters")
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(name, f"is not readable: {' '.join(str(error).split())[:200]}") from None
