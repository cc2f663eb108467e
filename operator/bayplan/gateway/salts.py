"""The `cache_salt` that each request gets: prefix reuse stays inside one trust domain of one model."""

import secrets
from pathlib import Path

from bayplan.planning.admission.prefix import LEAST_SECRET_BYTES, PrefixScope, derive_cache_salt

NO_ADAPTER = "none"
MOST_KNOWN = 10_000


class SecretError(Exception):
    """The secret file cannot be used; the message names it."""


def read_secret(path: Path | None) -> bytes:
    """Read the secret; without a file a random one, whose salts live as long as this process. Raises SecretError."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SecretError(f"{path}: {error}") from None
    if len(secret) < LEAST_SECRET_BYTES:
        raise SecretError(f"{path}: must hold at least {LEAST_SECRET_BYTES} bytes, has {len(secret)}")
    return secret


class Salts:
    """Salts by what an engine runs (a model and its revision hash) and trust domain."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: dict[tuple[str, str], str] = {}

    def of(self, engine: str, trust_domain: str) -> str:
        """Return the salt. The revision hash covers weights, tokenizer, template and adapters alike."""
        key = (engine, trust_domain)
        salt = self._known.get(key)
        if salt is None:
            scope = PrefixScope(
                weights_revision=engine,
                tokenizer_revision=engine,
                template_revision=engine,
                adapter_revision=NO_ADAPTER,
                trust_domain=trust_domain,
            )
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            salt = self._known[key] = derive_cache_salt(self._secret, scope)
        return salt
