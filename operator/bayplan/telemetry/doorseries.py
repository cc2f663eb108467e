"""What gateways count at the door, as Prometheus keeps it.

The gateway labels its series with the model's namespace. The target's own label has the same name, so Prometheus moves
the gateway's aside (`exported_namespace`) unless the target honours labels.
"""

from collections.abc import Sequence
from typing import Final

from bayplan.planning.measurements import Measured, Unknown, measured, moment
from bayplan.planning.scaling.demand import DoorReading
from bayplan.telemetry.series import Dates, Series
from bayplan.telemetry.sources import GatewayAnswer, GatewaySource, Trouble, TroubleKind

DEMAND: Final = "bayplan_gateway_demand_tokens_total"
QUEUED: Final = "bayplan_gateway_queued_tokens"
START: Final = "process_start_time_seconds"
DOOR_NAMES: Final = (DEMAND, QUEUED, START)
KINDS: Final = ("prompt", "output")


def gateway_answers(
    sources: Sequence[GatewaySource], series: Sequence[Series], *, dates: Dates
) -> dict[str, GatewayAnswer]:
    """Return the answer of each gateway, by uid."""
    return {source.uid: _answer(source, [s for s in series if _is_of(s, source)], dates) for source in sources}


def _is_of(series: Series, source: GatewaySource) -> bool:
    aside = "exported_namespace" in series.labels
    mine = not aside or series.labels.get("namespace") == source.namespace
    return series.labels.get("pod") == source.pod and mine


def _answer(source: GatewaySource, series: Sequence[Series], dates: Dates) -> GatewayAnswer:
    if not series:
        text = f"Prometheus has no sample of gateway {source.pod}; is it a target, with labels namespace and pod?"
        return GatewayAnswer(trouble=Trouble(TroubleKind.UNREACHABLE, text))
    stamp = max(one.stamp for one in series)
    if dates.is_future(stamp):
        return GatewayAnswer(trouble=Trouble(TroubleKind.INVALID, f"gateway {source.pod}: scraped in the future"))
    fresh = [one for one in series if one.stamp == stamp]
    started = next((int(one.value) for one in fresh if one.name == START and one.value == one.value), "")
    models = sorted({_model(one) for one in fresh if one.name in (DEMAND, QUEUED)})
    readings, trouble = {}, None
    for model in models:
        mine = [one for one in fresh if _model(one) == model]
        prompt, output = (_demand(mine, kind) for kind in KINDS)
        queued = _queued(mine)
        at = moment(dates.to_clock(stamp))
        readings[model] = DoorReading(at, f"{source.uid} {started}", prompt, output, queued)
        for value in (prompt, output, queued):
            if isinstance(value, Unknown):
                trouble = trouble or Trouble(TroubleKind.INVALID, f"gateway {source.pod}: {model}: {value.reason}")
    return GatewayAnswer(readings, None, trouble)


def _model(series: Series) -> str:
    labels = series.labels
    return f"{labels.get('exported_namespace', labels.get('namespace', ''))}/{labels.get('model', '')}"


def _demand(series: Sequence[Series], kind: str) -> Measured:
    found = (one.value for one in series if one.name == DEMAND and one.labels.get("kind") == kind)
    return measured(next(found, None), f"{DEMAND} of kind {kind}")


def _queued(series: Sequence[Series]) -> Measured:
    return measured(next((one.value for one in series if one.name == QUEUED), None), QUEUED)
