"""From an engine's numbers to what demand needs of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from bayplan.planning.measurements import Measured, Unknown, moment
from bayplan.planning.scaling.demand import NOT_REPORTED, EngineReading
from bayplan.telemetry.aliases import NEEDED, Aliases, Signal
from bayplan.telemetry.exposition import first_of, nearest_name
from bayplan.telemetry.sources import EngineAnswer, EngineSource, Trouble, TroubleKind


def engine_answer(
    source: EngineSource,
    values: Mapping[str, Measured],
    *,
    aliases: Aliases,
    at_seconds: float,
    present: Callable[[], Iterable[str]],
) -> EngineAnswer:
    """Read one engine's answer: sums by metric name as they stood `at_seconds`; `present` names what else is there."""
    found = {signal: first_of(values, names) for signal, names in aliases.by_signal.items()}
    trouble = _missing(source, found, aliases, present) or _invalid(source, found)
    served = _plus(found[Signal.PROMPT_TOKENS], found[Signal.OUTPUT_TOKENS])
    length = _plus(
        _mean(found[Signal.PROMPT_LENGTH_SUM], found[Signal.PROMPT_LENGTH_COUNT]),
        _mean(found[Signal.OUTPUT_LENGTH_SUM], found[Signal.OUTPUT_LENGTH_COUNT]),
    )
    waiting = _times(found[Signal.WAITING], length)
    reading = EngineReading(
        at_seconds=moment(at_seconds),
        incarnation=f"{source.container or source.uid} {_start(found[Signal.PROCESS_START])}",
        served_tokens=served,
        waiting_tokens=waiting,
        remaining_tokens=_plus(_running_tokens(source, found, length), waiting),
        ended_tokens=_known(found[Signal.OUTPUT_LENGTH_SUM]),
        promised_tokens=_known(found[Signal.OUTPUT_LIMIT_SUM]),
    )
    return EngineAnswer(reading, trouble)


def _running_tokens(source: EngineSource, found: Mapping[Signal, Measured | None], length: Measured) -> Measured:
    """Tokens in the KV cache where its size is known; else running requests of mean length."""
    usage = found[Signal.KV_USAGE]
    if source.kv_tokens is not None and isinstance(usage, Fraction):
        return usage * source.kv_tokens
    return _times(found[Signal.RUNNING], length)


def _missing(
    source: EngineSource,
    found: Mapping[Signal, Measured | None],
    aliases: Aliases,
    present: Callable[[], Iterable[str]],
) -> Trouble | None:
    signal = next((signal for signal in NEEDED if found[signal] is None), None)
    if signal is None:
        return None
    return Trouble(TroubleKind.MISSING, missing_text(source.pod, signal.value, aliases.by_signal[signal], present()))


def missing_text(pod: str, what: str, names: Sequence[str], present: Iterable[str]) -> str:
    """Say which metric a pod lacks, and which one of those that it has is most like it."""
    near = nearest_name(names, present)
    has = f"the nearest that it has is {near}" if near else "and it has none that is like it"
    return f"pod {pod} reports no {names[0]} ({what}); {has}"


def _invalid(source: EngineSource, found: Mapping[Signal, Measured | None]) -> Trouble | None:
    for signal in NEEDED:
        value = found[signal]
        if isinstance(value, Unknown):
            return Trouble(TroubleKind.INVALID, f"pod {source.pod}: {value.reason}")
    return None


def _start(value: Measured | None) -> str:
    return str(value.numerator // value.denominator) if isinstance(value, Fraction) else ""


def _known(value: Measured | None) -> Measured:
    return NOT_REPORTED if value is None else value


def _plus(one: Measured | None, other: Measured | None) -> Measured:
    left, right = _known(one), _known(other)
    if isinstance(left, Unknown):
        return left
    return right if isinstance(right, Unknown) else left + right


def _times(count: Measured | None, length: Measured) -> Measured:
    """Requests times their mean length; none at all need no length."""
    requests = _known(count)
    if isinstance(requests, Unknown) or requests == 0:
        return requests
    return length if isinstance(length, Unknown) else requests * length


def _mean(total: Measured | None, count: Measured | None) -> Measured:
    whole, requests = _known(total), _known(count)
    if isinstance(whole, Unknown) or isinstance(requests, Unknown):
        return whole if isinstance(whole, Unknown) else requests
    return whole / requests if requests else Unknown("no request has ended yet, so their length is not known")
