"""Who computes how many tokens in the next step.

Sequences that decode come first, one token each; prompts fill the rest of the step in chunks.
A sequence whose prefix another one is computing waits for it, so that the prompt of a group is
computed once. When blocks run out, the youngest sequence loses its cache and is computed again
later: its tokens and their log-probabilities are kept.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from journeyman.inference.blocks import BlockPool, Key, next_key, root_key
from journeyman.inference.sequence import Sequence
from journeyman.model import BLOCK
from journeyman.types import PolicyVersion


@dataclass(frozen=True)
class Chunk:
    """`num_tokens` tokens of a sequence, from its first uncached one on."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_sampled(self) -> bool:
        """Whether the step reaches the sequence's last known token."""
        return self.num_tokens == self.sequence.num_uncached


class Scheduler:
    """Queues, admission and preemption. Owned by the engine's thread."""

    def __init__(
        self, pool: BlockPool, *, max_sequences: int, step_tokens: int, version: PolicyVersion
    ) -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_reused_tokens = 0
        self._max_sequences = max_sequences
        self._step_tokens = step_tokens
        self._root = root_key(version)
        self._claims: dict[Key, Sequence] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, at most `step_tokens` tokens; empty when nothing waits."""
        chunks: list[Chunk] = []
        room = self._step_tokens
        preemptions = self.num_preemptions
        decoding = [s for s in self.running if s.num_uncached == 1]
        prefilling = [s for s in self.running if s.num_uncached > 1]
        for sequence in decoding + prefilling:
            if room and sequence in self.running:
                room -= self._extend(sequence, room, chunks)
        if self.num_preemptions > preemptions:
            return chunks
        for sequence in self._admissible():
            full = not room or len(self.running) >= self._max_sequences
            if full or not self._admit(sequence):
                break
            room -= self._extend(sequence, room, chunks)
        return chunks

    def advance(self, chunk: Chunk) -> None:
        """The chunk's keys and values are computed; full blocks become known to others."""
        sequence = chunk.sequence
        sequence.num_cached += chunk.num_tokens
        self._extend_keys(sequence, sequence.num_cached)
        full = sequence.num_cached // BLOCK
        for index in range(sequence.num_published, full):
            key = sequence.keys[index]
            self.pool.publish(sequence.blocks[index], key)
            if self._claims.get(key) is sequence:
                del self._claims[key]
        sequence.num_published = full

    def remove(self, sequence: Sequence) -> bool:
        """Forget a finished or cancelled sequence and free its blocks at once."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
            return True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return True
        return False

    def change_version(self, version: PolicyVersion) -> None:
        """Everything cached came from other weights: forget it and compute it again."""
        for sequence in reversed(list(self.running)):
            self._requeue(sequence)
        self.pool.forget()
        self._root = root_key(version)
        for sequence in self.waiting:
            sequence.keys.clear()

    def drain(self) -> list[Sequence]:
        """Remove and return all sequences."""
        everyone = [*self.running, *self.waiting]
        for sequence in everyone:
            self.remove(sequence)
        return everyone

    def _extend(self, sequence: Sequence, room: int, chunks: list[Chunk]) -> int:
        """Give the sequence blocks for its next chunk. Returns the chunk's tokens, 0 if it had
        to be preempted."""
        count = min(room, sequence.num_uncached)
        needed = -(-(sequence.num_cached + count) // BLOCK)
        while len(sequence.blocks) < needed:
            block = self.pool.allocate()
            if block is not None:
                sequence.blocks.append(block)
                continue
            youngest = self.running[-1]
            self._requeue(youngest)
            chunks[:] = [chunk for chunk in chunks if chunk.sequence is not youngest]
            self.num_preemptions += 1
            if youngest is sequence:
                return 0
        chunks.append(Chunk(sequence, count))
        return count

    def _admissible(self) -> Iterable[Sequence]:
        """Waiting sequences, oldest first, whose next block nobody else is computing."""
        for sequence in list(self.waiting):
            self._extend_keys(sequence, len(sequence.tokens) - 1)
            missing = next((k for k in sequence.keys if self.pool.find(k) is None), None)
            if missing is None or missing not in self._claims:
                yield sequence

    def _admit(self, sequence: Sequence) -> bool:
        """Start a waiting sequence on the blocks that are known, if the rest will fit too."""
        found: list[int] = []
        # The last known token is always computed: its logits are what is sampled from.
        for key in sequence.keys[: (len(sequence.tokens) - 1) // BLOCK]:
            block = self.pool.find(key)
            if block is None:
                break
            found.append(block)
        for block in found:
            self.pool.share(block)
        # One spare block for each running sequence, or admission would preempt at once.
        needed = -(-(len(sequence.tokens) + 1) // BLOCK) - len(found)
        if self.running and self.pool.num_available < needed + len(self.running):
            self.pool.deallocate(found)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.blocks = found
        sequence.num_cached = len(found) * BLOCK
        sequence.num_published = len(found)
        self.num_reused_tokens += sequence.num_cached
        for key in sequence.keys[len(found) :]:
            self._claims.setdefault(key, sequence)
        return True

    def _requeue(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        for key in sequence.keys[sequence.num_published :]:
            if self._claims.get(key) is sequence:
                del self._claims[key]
        self.pool.deallocate(sequence.forget_cache())

    def _extend_keys(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the keys of the full blocks among the first `num_tokens` tokens."""
        keys = sequence.keys
        while (len(keys) + 1) * BLOCK <= num_tokens:
            start = len(keys) * BLOCK
            previous = keys[-1] if keys else self._root
            keys.append(next_key(previous, sequence.tokens[start : start + BLOCK]))
