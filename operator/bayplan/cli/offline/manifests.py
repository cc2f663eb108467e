"""What is to be planned: manifests of our kinds from files, folders and standard input; others are passed over."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bayplan.api import names
from bayplan.planning.numbers import InvalidInput

KINDS = (names.INFERENCEMODEL_KIND, names.ROLLOUT_KIND, names.CAPACITYPLAN_KIND)
SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 16 * 2**20
MAX_MANIFESTS = 10_000
STDIN = "-"
# Safe, and in C where there is one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of ours, as written."""

    source: str
    """File and number of the document in it."""
    kind: str
    namespace: str
    name: str
    spec: object


def read_manifests(paths: Sequence[str], *, namespace: str) -> tuple[Manifest, ...]:
    """Read all documents; one without a namespace is in `namespace`.

    Raises InvalidInput that names the file for what cannot be read, for a document of ours without a name, for an
    object that is there twice, and when there is none of ours.
    """
    found: dict[tuple[str, str, str], Manifest] = {}
    for source, text in _texts(paths):
        for number, document in enumerate(_documents(source, text), start=1):
            for manifest in _ours(f"{source}#{number}", document, namespace):
                key = (manifest.kind, manifest.namespace, manifest.name)
                if key in found:
                    text_of = f"{manifest.kind} {manifest.namespace}/{manifest.name} is in {found[key].source} already"
                    raise InvalidInput(manifest.source, text_of)
                found[key] = manifest
                if len(found) > MAX_MANIFESTS:
                    raise InvalidInput(source, f"more than {MAX_MANIFESTS} manifests")
    if not found:
        raise InvalidInput(", ".join(paths), f"holds no {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return tuple(found[key] for key in sorted(found))


def _texts(paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if path == STDIN:
            yield "stdin", _bounded("stdin", sys.stdin.buffer.read(MAX_BYTES + 1))
            continue
        for file in _files(Path(path)):
            try:
                with file.open("rb") as opened:
                    yield str(file), _bounded(str(file), opened.read(MAX_BYTES + 1))
            except OSError as error:
                raise InvalidInput(str(file), f"cannot be read: {error.strerror}") from None


def _files(path: Path) -> Iterable[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    return (path,)


def _bounded(name: str, text: bytes) -> bytes:
    if len(text) > MAX_BYTES:
        raise InvalidInput(name, f"is longer than {MAX_BYTES} bytes")
    return text


def _documents(source: str, text: bytes) -> Iterator[object]:
    try:
        yield from yaml.load_all(text, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        first = " ".join(str(error).split())
        raise InvalidInput(source, f"is no YAML: {first[:300]}") from None


def _ours(source: str, document: object, namespace: str) -> Iterator[Manifest]:
    if not isinstance(document, Mapping):
        return
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _ours(source, item, namespace)
        return
    group = str(document.get("apiVersion", "")).partition("/")[0]
    kind = document.get("kind")
    if group != names.GROUP or kind not in KINDS:
        return
    if document["apiVersion"] != names.API_VERSION:
        raise InvalidInput(source, f"apiVersion must be {names.API_VERSION}, not {document['apiVersion']}")
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidInput(source, "metadata.name is missing")
    where = meta.get("namespace") if isinstance(meta, Mapping) else None
    yield Manifest(source, str(kind), str(where or namespace), name, document.get("spec"))
