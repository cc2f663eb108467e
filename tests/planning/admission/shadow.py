"""A second account of the pool, kept from the decisions alone: it shares no code with the core's ledger."""

from dataclasses import dataclass, field

from bayplan.planning.admission.records import AdmissionRequest, Admitted, Decision, Queued, Readings, Settled
from bayplan.planning.admission.sheds import Shed


@dataclass
class ShadowReplica:
    blocks: int
    sequences: int
    draining: bool = False


@dataclass
class Shadow:
    """Who waits and who holds what. Raises AssertionError as soon as something is held twice or over budget."""

    block_size: int
    replicas: dict[str, ShadowReplica] = field(default_factory=dict)
    held: dict[int, tuple[str, AdmissionRequest]] = field(default_factory=dict)
    waiting: dict[int, AdmissionRequest] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Every ticket ever given out."""

    def blocks(self, request: AdmissionRequest) -> int:
        one = request.prompt_tokens + request.max_output_tokens
        return (one // self.block_size + (one % self.block_size > 0)) * request.sequences

    def load(self, uid: str) -> tuple[int, int]:
        """Blocks and sequences held on this replica, recounted."""
        mine = [request for where, request in self.held.values() if where == uid]
        return sum(self.blocks(request) for request in mine), sum(request.sequences for request in mine)

    def decided(self, request: AdmissionRequest, decision: Decision) -> None:
        if isinstance(decision, Admitted | Queued):
            assert decision.ticket not in self.used, "a ticket was given out twice"
            self.used.add(decision.ticket)
            self.waiting[decision.ticket] = request
        if isinstance(decision, Admitted):
            self._enter(decision)

    def settled(self, settled: tuple[Settled, ...]) -> None:
        for one in settled:
            assert one.ticket in self.waiting, "settled without waiting"
            if isinstance(one.decision, Shed):
                del self.waiting[one.ticket]
            else:
                assert one.decision.ticket == one.ticket
                self._enter(one.decision)

    def _enter(self, admitted: Admitted) -> None:
        request = self.waiting.pop(admitted.ticket)
        self.enter(admitted, request)

    def enter(self, admitted: Admitted, request: AdmissionRequest) -> None:
        assert admitted.ticket not in self.held, "held twice"
        self.held[admitted.ticket] = (admitted.replica, request)
        replica = self.replicas[admitted.replica]
        blocks, sequences = self.load(admitted.replica)
        assert not replica.draining, "admitted to a draining replica"
        assert blocks <= replica.blocks, f"{blocks} of {replica.blocks} blocks promised"
        assert sequences <= replica.sequences, f"{sequences} of {replica.sequences} sequences promised"

    def agrees(self, readings: Readings) -> None:
        assert readings.replicas.keys() == self.replicas.keys()
        loads: dict[str, list[int]] = {uid: [0, 0, 0, 0] for uid in self.replicas}
        for uid, request in self.held.values():
            load = loads[uid]
            load[0] += 1
            load[1] += self.blocks(request)
            load[2] += request.sequences
            load[3] += (request.prompt_tokens + request.max_output_tokens) * request.sequences
        for uid, reading in readings.replicas.items():
            assert [reading.holds, reading.kv_blocks, reading.sequences, reading.tokens] == loads[uid], uid
        assert readings.queued_requests == len(self.waiting)
        tokens = sum((one.prompt_tokens + one.max_output_tokens) * one.sequences for one in self.waiting.values())
        assert readings.queued_tokens == tokens
