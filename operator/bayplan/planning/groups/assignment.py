"""A group's reservation as its rank 0 carries it: which node each rank takes, and what was decided beside that."""

import hashlib
import json
from dataclasses import dataclass

from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.split import Split

MAX_RANKS = 64
MAX_NAME = 253
MAX_FACT = 1024
"""Longest fact; whoever writes an assignment cuts longer ones."""


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """One rank's place: whole GPUs of one node."""

    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A whole group's reservation, as stored on rank 0. `ranks[i]` is the place of rank i."""

    group: str
    revision: str
    template: str
    tensor: int
    pipeline: int
    gpu_product: str
    gpu_resource: str
    ranks: tuple[RankAssignment, ...]
    attempt: int = 0
    failures: int = 0
    """Engine failures in a row up to this attempt; decides the back-off of the next one."""
    data: int = 1
    expert: bool = False
    decode_context: int = 1
    replaces: str = ""
    """Group whose GPUs this one takes over node by node; empty when the GPUs were free."""
    facts: tuple[str, ...] = ()

    @property
    def split(self) -> Split:
        """How the replica is divided over its GPUs."""
        return Split(self.tensor, self.pipeline, self.data, self.expert, self.decode_context)

    @property
    def plan_id(self) -> str:
        """Digest of everything that the plan fixes: equal plans are one plan, whoever made them."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Canonical JSON, the annotation's value."""
        return json.dumps(
            {
                "group": self.group,
                "revision": self.revision,
                "template": self.template,
                "layout": RecordedLayout(self.split).as_json(),
                "gpuProduct": self.gpu_product,
                "gpuResource": self.gpu_resource,
                "ranks": [{"node": rank.node, "gpus": rank.gpus} for rank in self.ranks],
                "attempt": self.attempt,
                "failures": self.failures,
                "replaces": self.replaces,
                "facts": list(self.facts),
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "Assignment":
        """Read the annotation; raises ValueError with the reason on anything that is not a whole assignment."""
        try:
            raw = json.loads(text)
            found = cls(
                group=_text(raw["group"]),
                revision=_text(raw["revision"]),
                template=_text(raw["template"]),
                tensor=_count(raw["layout"]["tensor"], 1),
                pipeline=_count(raw["layout"]["pipeline"], 1),
                data=_count(raw["layout"].get("data", 1), 1),
                expert=raw["layout"].get("expert") is True,
                decode_context=_count(raw["layout"].get("decodeContext", 1), 1),
                gpu_product=_text(raw["gpuProduct"], least=0),
                gpu_resource=_text(raw["gpuResource"]),
                ranks=tuple(RankAssignment(node=_text(r["node"]), gpus=_count(r["gpus"], 1)) for r in raw["ranks"]),
                attempt=_count(raw["attempt"], 0),
                failures=_count(raw["failures"], 0),
                replaces=_text(raw["replaces"], least=0),
                facts=tuple(_text(fact, most=MAX_FACT) for fact in raw["facts"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"unreadable assignment: {error!r}") from None
        ranks = found.ranks
        if not ranks or len(ranks) > MAX_RANKS or len({rank.node for rank in ranks}) != len(ranks):
            raise ValueError(f"unreadable assignment: ranks must name 1 to {MAX_RANKS} different nodes")
        if len({rank.gpus for rank in ranks}) > 1 or len(ranks) * ranks[0].gpus != found.split.gpus:
            raise ValueError("unreadable assignment: the ranks must hold the layout's GPUs in equal parts")
        return found


def _text(value: object, *, least: int = 1, most: int = MAX_NAME) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        raise ValueError(f"unreadable assignment: expected text of {least} to {most} characters, found {value!r:.80}")
    return value


def _count(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
        raise ValueError(f"unreadable assignment: expected a whole number from {least}, found {value!r:.80}")
    return value
