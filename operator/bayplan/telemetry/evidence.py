"""What a gateway's `/evidence` says about demand; the rest of it is the rollout's.

The answer is judged, not trusted: what has another form than agreed makes that number Unknown.
"""

from collections.abc import Mapping
from fractions import Fraction

from bayplan.planning.measurements import Measured, Unknown, measured, moment
from bayplan.planning.scaling.demand import DoorReading
from bayplan.telemetry.sources import GatewayAnswer, GatewaySource, Trouble, TroubleKind

PATH = "/evidence"
MAX_MODELS = 10_000
MOST_TOKENS = 10**18


def gateway_answer(source: GatewaySource, body: Mapping[str, object], *, at_seconds: float) -> GatewayAnswer:
    """Read one answer as it stood `at_seconds`."""
    gateway, models = body.get("gateway"), body.get("models")
    if not isinstance(gateway, Mapping) or not isinstance(models, Mapping) or len(models) > MAX_MODELS:
        return _invalid(source, "gateway and models must be objects")
    if gateway.get("uid") != source.uid:
        return _invalid(source, f"it is the answer of gateway {str(gateway.get('uid'))[:40]}")
    incarnation = f"{source.uid} {str(gateway.get('startedAt'))[:40]}"
    found: dict[str, DoorReading] = {}
    reserved: dict[str, Fraction] = {}
    trouble = None
    for name, entry in models.items():
        entry = entry if isinstance(entry, Mapping) else {}  # noqa: PLW2901
        prompt, output = _number(entry, "demandPromptTokens"), _number(entry, "demandOutputTokens")
        queued = _number(entry, "queuedTokens")
        for value in (prompt, output, queued):
            if isinstance(value, Unknown):
                trouble = trouble or Trouble(TroubleKind.INVALID, f"gateway {source.pod}: model {name}: {value.reason}")
        found[str(name)] = DoorReading(moment(at_seconds), incarnation, prompt, output, queued)
        for uid, tokens in _reserved(entry).items():
            reserved[uid] = reserved.get(uid, Fraction(0)) + tokens
    return GatewayAnswer(found, reserved, trouble)


def _number(entry: Mapping[str, object], name: str) -> Measured:
    value = entry.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        return Unknown(f"{name} is no number")
    if value is not None and abs(value) > MOST_TOKENS:
        return Unknown(f"{name} is absurd")
    return measured(value, name)


def _reserved(entry: Mapping[str, object]) -> dict[str, Fraction]:
    pods = entry.get("pods")
    found = {}
    for uid, holds in pods.items() if isinstance(pods, Mapping) else ():
        tokens = _number(holds, "reservedTokens") if isinstance(holds, Mapping) else None
        if isinstance(tokens, Fraction):
            found[str(uid)] = tokens
    return found


def _invalid(source: GatewaySource, why: str) -> GatewayAnswer:
    return GatewayAnswer(trouble=Trouble(TroubleKind.INVALID, f"gateway {source.pod}: {PATH}: {why}"))
