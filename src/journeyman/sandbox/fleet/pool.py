"""Random choice in proportion to changing weights, in O(log n) for a choice and for a change."""

from random import Random


class WeightedPool:
    """Members 0…n-1 with integer weights, so that sums stay exact. A binary tree of sums."""

    def __init__(self) -> None:
        self._size = 1
        self._sums = [0, 0]

    @property
    def total(self) -> int:
        return self._sums[1]

    def weight(self, member: int) -> int:
        return self._sums[self._size + member] if member < self._size else 0

    def set(self, member: int, weight: int) -> None:
        """Weight 0 takes the member out."""
        while member >= self._size:
            self._grow()
        sums, at = self._sums, self._size + member
        change = weight - sums[at]
        while at and change:
            sums[at] += change
            at >>= 1

    def choose(self, random: Random) -> int:
        """A member, each with probability weight / total. `total` must not be 0."""
        sums, size = self._sums, self._size
        point = int(random.random() * sums[1])
        at = 1
        while at < size:
            at <<= 1
            if point >= sums[at]:
                point -= sums[at]
                at += 1
        return at - size

    def _grow(self) -> None:
        leaves = self._sums[self._size :]
        self._size *= 2
        self._sums = [0] * self._size + leaves + [0] * (self._size - len(leaves))
        for at in range(self._size - 1, 0, -1):
            self._sums[at] = self._sums[2 * at] + self._sums[2 * at + 1]
