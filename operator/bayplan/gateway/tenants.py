"""Whose request it is: tenants by API key, read from a file that holds only the keys' SHA-256 digests.

The file is YAML (so JSON as well) and is looked at again every few seconds, because a mounted Secret changes under the
running process. A file that has become unreadable changes nothing: the last good one stays in force.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from bayplan.gateway.refusals import RefusalCode, Refused
from bayplan.gateway.settings import DEFAULT_CLASS
from bayplan.planning.admission.records import TenantPolicy

logger = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""The one tenant of a gateway without a key file."""
_BEARER = re.compile(r"^bearer +(\S{1,512})$", re.IGNORECASE)

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[a-f0-9]{64}$")]
Positive = Annotated[int, Field(ge=1, le=10**12, strict=True)]


class TenantsError(Exception):
    """The key file cannot be used; the message names the file and the field."""


class TenantEntry(BaseModel):
    """One tenant as the file states it."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    name: Name
    keys: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=64)]
    workload_class: str = DEFAULT_CLASS
    trust_domain: Name | None = None
    weight: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 1
    max_tokens_per_request: Positive | None = None
    max_live_tokens: Positive | None = None
    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = None
    max_wait_seconds: Annotated[int, Field(ge=0, le=3600, strict=True)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenants: Annotated[tuple[TenantEntry, ...], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: accounted and limited by `name`, cached prefixes shared inside `trust_domain`."""

    name: str
    workload_class: str
    trust_domain: str


@dataclass(frozen=True, slots=True)
class Tenants:
    """All tenants. Without any key everybody is the anonymous one."""

    by_key_digest: Mapping[bytes, Tenant] = field(default_factory=dict)
    policies: Mapping[str, TenantPolicy] = field(default_factory=dict)
    anonymous: Tenant | None = None

    def identify(self, authorization: str | None) -> Tenant:
        """Return the tenant of an Authorization header; raises Refused (401)."""
        if self.anonymous is not None:
            return self.anonymous
        match = _BEARER.match(authorization or "")
        if match is None:
            raise Refused(RefusalCode.INVALID_API_KEY, "an API key is needed: Authorization: Bearer KEY")
        # Looked up by digest: how long that takes says nothing about any key.
        tenant = self.by_key_digest.get(hashlib.sha256(match.group(1).encode(errors="replace")).digest())
        if tenant is None:
            raise Refused(RefusalCode.INVALID_API_KEY, "this API key is not known")
        return tenant


def anonymous_tenants() -> Tenants:
    """Everybody is one tenant."""
    return Tenants(anonymous=Tenant(ANONYMOUS, DEFAULT_CLASS, ANONYMOUS))


def parse_tenants(text: str, *, classes: Mapping[str, object], source: str = "tenants") -> Tenants:
    """Read the file's text. Raises TenantsError that names the field and what would be accepted."""
    try:
        raw: Any = yaml.safe_load(text)
        entries = _File.model_validate(raw if isinstance(raw, dict) else {}).tenants
    except yaml.YAMLError as error:
        raise TenantsError(f"{source}: {error}") from None
    except ValidationError as error:
        # What was given is left out: it may be a key that somebody forgot to hash.
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise TenantsError(f"{source}: {faults}") from None
    by_digest: dict[bytes, Tenant] = {}
    policies: dict[str, TenantPolicy] = {}
    for position, entry in enumerate(entries):
        at = f"{source}: tenants.{position}"
        if entry.name in policies:
            raise TenantsError(f"{at}.name: {entry.name} is there twice")
        if entry.workload_class not in classes:
            raise TenantsError(f"{at}.workloadClass: must be one of {', '.join(sorted(classes))}")
        tenant = Tenant(entry.name, entry.workload_class, entry.trust_domain or entry.name)
        policies[entry.name] = TenantPolicy(
            weight=entry.weight,
            max_tokens_per_request=entry.max_tokens_per_request,
            max_live_tokens=entry.max_live_tokens,
            max_queued_requests=entry.max_queued_requests,
            max_wait_seconds=entry.max_wait_seconds,
        )
        for digest in entry.keys:
            key = bytes.fromhex(digest.removeprefix("sha256:"))
            if key in by_digest:
                raise TenantsError(f"{at}.keys: a key of {by_digest[key].name} is repeated")
            by_digest[key] = tenant
    return Tenants(by_digest, policies)


class TenantsFile:
    """A key file that is read again when it changes."""

    def __init__(self, path: Path, *, classes: Mapping[str, object]) -> None:
        self._path = path
        self._classes = classes
        self._seen: str | None = None

    def load(self) -> Tenants | None:
        """Return the tenants when the text differs from the last one read, else None. Raises TenantsError."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TenantsError(f"{self._path}: {error}") from None
        if text == self._seen:
            return None
        self._seen = text
        return parse_tenants(text, classes=self._classes, source=str(self._path))
