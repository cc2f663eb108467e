"""Names of pods behind headless Services (`HOST.SUBDOMAIN[.NAMESPACE[.svc[.cluster.local]]]`), without a DNS server."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_TOKEN = re.compile(rf"(?<![A-Za-z0-9_.\-])({_LABEL}(?:\.{_LABEL})+)\.?(?![A-Za-z0-9_\-]|\.[A-Za-z0-9_\-])")
_SUFFIXES = ((), ("svc",), ("svc", "cluster", "local"))


@dataclass(frozen=True, order=True)
class PodName:
    """What identifies a pod in DNS."""

    host: str
    subdomain: str
    namespace: str


def parse_name(text: str, namespace: str) -> PodName | None:
    """Read a dotted name as a pod's, seen from `namespace`; None when its form is another."""
    host, subdomain, *rest = text.split(".")
    if not rest:
        return PodName(host, subdomain, namespace)
    return PodName(host, subdomain, rest[0]) if tuple(rest[1:]) in _SUFFIXES else None


def pod_names(text: str, *, namespace: str, subdomains: Collection[tuple[str, str]]) -> set[PodName]:
    """Return the pod names in a text.

    A dotted word counts only when (subdomain, namespace) is in `subdomains`: `registry.example` is none of ours, and a
    name whose pod does not exist yet still has to be recognised.
    """
    found = (parse_name(match.group(1), namespace) for match in _TOKEN.finditer(text))
    return {name for name in found if name is not None and (name.subdomain, name.namespace) in subdomains}


def substitute(
    text: str,
    *,
    namespace: str,
    addresses: Mapping[PodName, str],
) -> str:
    """Replace each pod name that `addresses` knows by its address."""

    def address(match: re.Match[str]) -> str:
        name = parse_name(match.group(1), namespace)
        return addresses.get(name, match.group(0)) if name is not None else match.group(0)

    return _TOKEN.sub(address, text)
