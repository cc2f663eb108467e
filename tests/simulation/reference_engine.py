"""The scheduler once more, as plainly as it can be said: every sequence counted token by token, no plans ahead.

Shares no code with the simulator and knows no prefix cache; the property tests compare both step by step.
"""

from dataclasses import dataclass, field


@dataclass
class Plain:
    name: str
    prompt: int
    limit: int
    computed: int = 0
    outputs: int = 0
    blocks: int = 0
    decoding: bool = False

    @property
    def total(self):
        return self.prompt + self.outputs


@dataclass
class ReferenceEngine:
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    waiting: list = field(default_factory=list)
    running: list = field(default_factory=list)

    @property
    def free(self):
        return self.num_blocks - sum(sequence.blocks for sequence in self.running)

    def add(self, name, prompt, limit):
        self.waiting.append(Plain(name, prompt, limit))

    def abort(self, name):
        self.waiting = [sequence for sequence in self.waiting if sequence.name != name]
        self.running = [sequence for sequence in self.running if sequence.name != name]

    def needed(self, tokens):
        return (tokens + self.block_size - 1) // self.block_size

    def step(self):
        """(admitted, emitted, preempted, finished, prefill tokens)."""
        budget = self.max_num_batched_tokens
        scheduled, admitted, preempted = [], [], []
        prefill = 0
        index = 0
        while index < len(self.running) and budget:
            sequence = self.running[index]
            tokens = min(sequence.total - sequence.computed, budget)
            while self.needed(sequence.computed + tokens) - sequence.blocks > self.free:
                victim = self.running.pop()
                victim.blocks = victim.computed = 0
                victim.decoding = False
                self.waiting.insert(0, victim)
                preempted.append(victim.name)
                if victim is sequence:
                    break
            if sequence not in self.running:
                break
            sequence.blocks = self.needed(sequence.computed + tokens)
            scheduled.append((sequence, tokens))
            budget -= tokens
            index += 1
        while not preempted and self.waiting and budget and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if self.needed(sequence.total) > self.free:
                break
            self.waiting.pop(0)
            tokens = min(sequence.total, budget)
            sequence.blocks = self.needed(tokens)
            self.running.append(sequence)
            scheduled.append((sequence, tokens))
            admitted.append(sequence.name)
            budget -= tokens
        emitted, finished = [], []
        for sequence, tokens in scheduled:
            prefill += 0 if sequence.decoding else tokens
            sequence.computed += tokens
            if sequence.computed == sequence.total:
                sequence.outputs += 1
                sequence.decoding = True
                emitted.append(sequence.name)
                if sequence.outputs == sequence.limit:
                    finished.append((sequence.name, sequence.outputs))
        gone = {name for name, _ in finished}
        self.running = [sequence for sequence in self.running if sequence.name not in gone]
        return admitted, emitted, preempted, finished, prefill
