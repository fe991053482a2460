"""The ledger against a model of it, under random histories with restarts and stale leases."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journeyman.store import Lease, Ledger, LedgerError, State, Store
from journeyman.types import (
    Batch,
    Episode,
    Message,
    PolicyVersion,
    Sample,
    StopReason,
    TokenStream,
)

PROMPTS = ("p0", "p1", "p2", "p3")
EPOCHS = (0, 1)
STREAM = TokenStream(token_ids=(1,), loss_mask=(True,), logprobs=(-0.5,), versions=(0,))
ENDS = (State.APPLIED, State.DROPPED)


def episode_of(lease: Lease) -> Episode:
    return Episode(
        id=f"{lease.group}#{lease.attempt}",
        task=lease.prompt,
        group=lease.group,
        kind="train",
        prompt=(Message(role="user", content="mend it"),),
        turns=(),
        streams=(STREAM,),
        stop=StopReason.SUBMITTED,
        started_at=float(lease.attempt),
    )


class LedgerMachine(RuleBasedStateMachine):
    """`expected` holds, per group, the state, the living lease and the step."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # no waiting for a disk
        self.directory = tempfile.TemporaryDirectory(prefix="ledger-", dir=memory)
        self.url = f"sqlite:///{Path(self.directory.name) / 'store.db'}"
        self.store = Store(self.url)
        self.ledger = Ledger(self.store, "r")
        self.expected: dict[str, State] = {}
        self.leases: dict[str, Lease] = {}
        self.old_leases: list[Lease] = []
        self.batches: dict[int, Batch] = {}
        self.applied = 0
        self.checkpoint = 0

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    def attempt(self, legal: bool, call) -> None:
        if legal:
            call()
        else:
            with pytest.raises(LedgerError):
                call()

    def move(self, lease: Lease, before: tuple[State, ...], after: State, call) -> None:
        living = self.leases[lease.group] == lease
        legal = living and self.expected[lease.group] in before
        self.attempt(legal, call)
        if legal:
            self.expected[lease.group] = after

    def choose(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(list(self.leases.values()) + self.old_leases))

    @rule(epoch=st.sampled_from(EPOCHS), prompts=st.lists(st.sampled_from(PROMPTS), max_size=3))
    def lease(self, epoch: int, prompts: list[str]) -> None:
        taken = any(f"r/{epoch}/{prompt}" in self.expected for prompt in prompts)
        if taken or len(set(prompts)) < len(prompts):
            self.attempt(False, lambda: self.ledger.lease(epoch, prompts))
            return
        for lease in self.ledger.lease(epoch, prompts):
            self.expected[lease.group] = State.LEASED
            self.leases[lease.group] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def running(self, data: st.DataObject) -> None:
        lease = self.choose(data)
        self.move(lease, (State.LEASED,), State.RUNNING, lambda: self.ledger.running(lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def graded(self, data: st.DataObject) -> None:
        lease = self.choose(data)
        group = [episode_of(lease)]
        self.move(lease, (State.RUNNING,), State.GRADED, lambda: self.ledger.graded(lease, group))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def dropped(self, data: st.DataObject) -> None:
        lease = self.choose(data)
        before = (State.LEASED, State.RUNNING, State.GRADED)
        self.move(lease, before, State.DROPPED, lambda: self.ledger.dropped(lease, "because"))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def batched(self, data: st.DataObject) -> None:
        groups = data.draw(
            st.lists(st.sampled_from(sorted(self.leases)), min_size=1, max_size=3, unique=True)
        )
        samples = tuple(
            Sample(episode=group, group=group, stream=STREAM, advantage=1.0) for group in groups
        )
        step = max(self.batches, default=0) + 1
        batch = Batch(step=step, samples=samples)
        legal = all(self.expected[group] == State.GRADED for group in groups)
        self.attempt(legal, lambda: self.ledger.batched(batch))
        if legal:
            self.batches[step] = batch
            self.expected.update(dict.fromkeys(groups, State.BATCHED))

    @precondition(lambda self: self.batches)
    @rule(step=st.integers(1, 4))
    def apply(self, step: int) -> None:
        legal = step in self.batches and step <= self.applied + 1
        version = PolicyVersion(number=step, digest=str(step))
        self.attempt(legal, lambda: self.ledger.applied(step, version))
        if legal:
            self.applied = max(self.applied, step)
            for sample in self.batches[step].samples:
                self.expected[sample.group] = State.APPLIED

    @rule()
    def save_checkpoint(self) -> None:
        self.checkpoint = self.applied

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store(self.url)
        self.ledger = Ledger(self.store, "r")
        recovery = self.ledger.recover(self.checkpoint)
        assert [batch.step for batch in recovery.replay] == [
            step for step in sorted(self.batches) if step > self.checkpoint
        ]
        assert all(batch == self.batches[batch.step] for batch in recovery.replay)
        assert recovery.unrecorded == ()
        expected_graded = {g for g, state in self.expected.items() if state == State.GRADED}
        assert {g.lease.group for g in recovery.graded} == expected_graded
        for group in recovery.graded:
            assert group.lease == self.leases[group.lease.group]
            assert group.episodes == (episode_of(group.lease),)
        again = (State.LEASED, State.RUNNING)
        assert {x.group for x in recovery.leases} == {
            group for group, state in self.expected.items() if state in again
        }
        for lease in recovery.leases:
            self.old_leases.append(self.leases[lease.group])
            self.leases[lease.group] = lease
            self.expected[lease.group] = State.LEASED

    @invariant()
    def states_agree(self) -> None:
        assert self.ledger.states() == self.expected

    @invariant()
    def every_epoch_is_accounted_for(self) -> None:
        for epoch in EPOCHS:
            audit = self.ledger.audit(epoch, PROMPTS)
            mine = {g: s for g, s in self.expected.items() if g.startswith(f"r/{epoch}/")}
            assert audit.applied == sum(state == State.APPLIED for state in mine.values())
            assert sum(audit.dropped.values()) == sum(s == State.DROPPED for s in mine.values())
            assert len(audit.unfinished) == sum(s not in ENDS for s in mine.values())
            assert len(audit.missing) == len(PROMPTS) - len(mine)


TestLedgerStates = LedgerMachine.TestCase
TestLedgerStates.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
