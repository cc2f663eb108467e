"""The steps of a walk, computed from the schema: one property each, set to what it accepts or refuses."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.specwalk.boundaries import Case, cases_of, paths, rules
from e2e.specwalk.kinds import Json, Kind


@dataclass(frozen=True)
class Step:
    """One changed spec; the schema alone accepts it, or does not."""

    case: Case

    @property
    def legal(self) -> bool:
        """Whether the schema accepts it; a rule over several fields may refuse it all the same."""
        return self.case.refusal is None

    @property
    def spec(self) -> Json:
        """The whole spec after the change."""
        return self.case.body

    def __str__(self) -> str:
        return f"{self.case.path} {self.case.keyword} {'legal' if self.legal else 'illegal'}"


def steps_of(kind: Kind) -> list[Step]:
    """Return every step that changes the spec, in the order of the schema."""
    schema, valid = kind.schema(), kind.valid()
    found: list[Step] = []
    seen = {_text(valid)}
    for path in paths(schema, "spec"):
        for case in cases_of(path, schema=schema, full=kind.valid_at(path), root="spec"):
            if (text := _text(case.body)) not in seen:
                seen.add(text)
                found.append(Step(case))
    return found


def _text(spec: Json) -> str:
    """Return a spec as text: unlike values, texts tell 1 from 1.0 and from true."""
    return json.dumps(spec, sort_keys=True)


def rule_messages(kind: Kind) -> list[str]:
    """Return the messages of the schema's rules: a legal value may be refused with one of these and with no other."""
    return [message for _, message in rules(kind.schema(), "spec")]


def choose(steps: Sequence[Step], count: int, *, seed: int) -> list[Step]:
    """Return `count` steps in random order (0: all), legal and illegal ones in equal numbers."""
    draw = random.Random(seed)
    legal = draw.sample([s for s in steps if s.legal], sum(s.legal for s in steps))
    illegal = draw.sample([s for s in steps if not s.legal], sum(not s.legal for s in steps))
    if not count or count >= len(steps):
        chosen = [*legal, *illegal]
    else:
        chosen = [*legal[: -(-count // 2)], *illegal[: count // 2]]
    draw.shuffle(chosen)
    return chosen
