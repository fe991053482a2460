"""Each transition of the ledger, the illegal ones, and recovery."""

import pytest

from journeyman.store import Audit, Lease, Ledger, LedgerError, State, Store
from journeyman.types import Batch, PolicyVersion, Sample, TokenStream

STREAM = TokenStream(
    token_ids=(1, 7), loss_mask=(False, True), logprobs=(0.0, -0.3), versions=(-1, 0)
)


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store, "r")


def batch_of(step: int, *leases: Lease) -> Batch:
    samples = tuple(
        Sample(episode=f"e-{lease.group}", group=lease.group, stream=STREAM, advantage=0.1 * step)
        for lease in leases
    )
    return Batch(step=step, samples=samples)


def version(number: int, digest: str = "d") -> PolicyVersion:
    return PolicyVersion(number=number, digest=f"{digest}{number}")


@pytest.fixture
def grade(ledger: Ledger, make_episode):
    """Bring leased groups to graded."""

    def run(*leases: Lease) -> None:
        for lease in leases:
            ledger.running(lease)
            ledger.graded(lease, [make_episode(f"e-{lease.group}", group=lease.group)])

    return run


def test_the_whole_way(ledger: Ledger, store: Store, grade) -> None:
    a, b, c = ledger.lease(0, ["a", "b", "c"])
    grade(a, b)
    ledger.batched(batch_of(1, a))
    ledger.applied(1, version(1), {"loss": 0.5})
    ledger.dropped(b, "no advantage")
    assert ledger.states() == {
        a.group: State.APPLIED,
        b.group: State.DROPPED,
        c.group: State.LEASED,
    }
    assert store.metric("r", "loss") == [(1, 0.5)]
    assert ledger.last_applied() == 1
    assert ledger.audit(0, ["a", "b", "c", "d"]) == Audit(
        applied=1,
        dropped={"no advantage": 1},
        unfinished=("c",),
        missing=("d",),
        unexpected=(),
    )
    ledger.dropped(c, "infra")
    assert ledger.audit(0, ["a", "b", "c"]).whole
    assert ledger.audit(0, ["a", "b"]).unexpected == ("c",)


def test_one_prompt_is_leased_once_in_an_epoch(ledger: Ledger) -> None:
    ledger.lease(0, ["a"])
    with pytest.raises(LedgerError, match="leased twice"):
        ledger.lease(0, ["b", "a"])
    with pytest.raises(LedgerError, match="leased twice"):
        ledger.lease(1, ["c", "c"])
    assert ledger.leased_prompts(0) == ["a"]  # "b" was not leased either
    assert ledger.leased_prompts(1) == []
    assert [lease.prompt for lease in ledger.lease(1, ["a", "b"])] == ["a", "b"]


def test_two_runs_do_not_touch(store: Store, ledger: Ledger) -> None:
    (mine,) = ledger.lease(0, ["a"])
    other = Ledger(store, "s")
    other.lease(0, ["a"])
    other.recover(None)
    ledger.running(mine)
    assert ledger.states() == {"r/0/a": State.RUNNING}
    assert other.states() == {"s/0/a": State.LEASED}


def test_illegal_transitions_change_nothing(ledger: Ledger, store: Store, make_episode, grade):
    (a,) = ledger.lease(0, ["a"])
    episode = make_episode("e", group=a.group)
    with pytest.raises(LedgerError, match=r"cannot become graded: it is r/0/a: leased"):
        ledger.graded(a, [episode])
    assert store.summaries() == []
    with pytest.raises(LedgerError, match="are not graded"):
        ledger.batched(batch_of(1, a))
    ledger.running(a)
    with pytest.raises(LedgerError, match="cannot become running"):
        ledger.running(a)
    ledger.graded(a, [episode])
    ledger.batched(batch_of(1, a))
    with pytest.raises(LedgerError, match="cannot become dropped"):
        ledger.dropped(a, "late")
    with pytest.raises(LedgerError, match="never leased"):
        ledger.running(Lease(epoch=0, prompt="x", group="r/0/x"))
    assert ledger.states() == {a.group: State.BATCHED}


def test_bad_data_is_refused(ledger: Ledger, make_episode) -> None:
    (a,) = ledger.lease(0, ["a"])
    ledger.running(a)
    with pytest.raises(LedgerError, match="no episodes"):
        ledger.graded(a, [])
    with pytest.raises(LedgerError, match=r"\['e'\] are not of group r/0/a"):
        ledger.graded(a, [make_episode("e", group="r/0/b")])
    with pytest.raises(LedgerError, match="without a reason"):
        ledger.dropped(a, "")
    with pytest.raises(LedgerError, match="no samples"):
        ledger.batched(Batch(step=1, samples=()))


def test_a_group_is_never_batched_twice(ledger: Ledger, grade) -> None:
    a, b = ledger.lease(0, ["a", "b"])
    grade(a, b)
    ledger.batched(batch_of(1, a))
    with pytest.raises(LedgerError, match="1 of the 2 groups of step 2"):
        ledger.batched(batch_of(2, a, b))
    assert ledger.states()[b.group] == State.GRADED


def test_steps_follow_each_other(ledger: Ledger, grade) -> None:
    a, b, c = ledger.lease(0, ["a", "b", "c"])
    grade(a, b, c)
    ledger.batched(batch_of(1, a))
    with pytest.raises(LedgerError, match="after step 1 comes 2, not step 3"):
        ledger.batched(batch_of(3, b))
    with pytest.raises(LedgerError, match="after step 1 comes 2, not step 1"):
        ledger.batched(batch_of(1, b))
    ledger.batched(batch_of(2, b))
    with pytest.raises(LedgerError, match="step 2 cannot be applied before step 1"):
        ledger.applied(2, version(2))
    with pytest.raises(LedgerError, match="step 3 of run 'r' was never batched"):
        ledger.applied(1, version(1))
        ledger.applied(2, version(2))
        ledger.applied(3, version(3))


def test_recovery_sorts_everything_out(ledger: Ledger, grade, make_episode) -> None:
    done, open_, kept, running, _leased, gone = ledger.lease(0, list("abcdef"))
    grade(done, open_, kept)
    ledger.running(running)
    ledger.dropped(gone, "infra")
    ledger.batched(batch_of(1, done))
    ledger.applied(1, version(1))
    ledger.batched(batch_of(2, open_))

    recovery = ledger.recover(checkpoint_step=1)
    assert recovery.replay == (batch_of(2, open_),)
    assert recovery.unrecorded == ()
    (group,) = recovery.graded
    assert group.lease == kept
    assert group.episodes == (make_episode(f"e-{kept.group}", group=kept.group),)
    assert [(x.prompt, x.attempt) for x in recovery.leases] == [("d", 1), ("e", 1)]


def test_steps_after_the_checkpoint_are_replayed_in_order(ledger: Ledger, grade) -> None:
    leases = ledger.lease(0, list("abc"))
    grade(*leases)
    for step, lease in enumerate(leases, start=1):
        ledger.batched(batch_of(step, lease))
        ledger.applied(step, version(step))
    expected = tuple(batch_of(step, lease) for step, lease in enumerate(leases, start=1))
    assert ledger.recover(checkpoint_step=None).replay == expected
    assert ledger.recover(checkpoint_step=1).replay == expected[1:]
    assert ledger.recover(checkpoint_step=3).replay == ()


def test_a_replay_must_lead_to_the_same_weights(ledger: Ledger, grade) -> None:
    (a,) = ledger.lease(0, ["a"])
    grade(a)
    ledger.batched(batch_of(1, a))
    ledger.applied(1, version(1))
    ledger.applied(1, version(1))
    with pytest.raises(LedgerError, match=r"replaying step 1 led to .* digest other1"):
        ledger.applied(1, version(1, "other"))


def test_killed_between_checkpoint_and_record(ledger: Ledger, grade) -> None:
    a, _ = ledger.lease(0, ["a", "b"])
    grade(a)
    ledger.batched(batch_of(1, a))  # the checkpoint of step 1 was written, `applied` was not
    recovery = ledger.recover(checkpoint_step=1)
    assert (recovery.replay, recovery.unrecorded) == ((), (1,))
    ledger.applied(1, version(1))
    assert ledger.recover(checkpoint_step=1).unrecorded == ()


def test_a_replaced_process_can_do_nothing_more(ledger: Ledger, make_episode, store) -> None:
    (old,) = ledger.lease(0, ["a"])
    ledger.running(old)
    (new,) = ledger.recover(None).leases
    ledger.running(new)
    with pytest.raises(LedgerError, match="attempt 0"):
        ledger.graded(old, [make_episode("stale", group=old.group)])
    with pytest.raises(LedgerError, match="attempt 0"):
        ledger.dropped(old, "late")
    ledger.graded(new, [make_episode("fresh", group=new.group)])
    assert [s.id for s in store.summaries()] == ["fresh"]


def test_graded_returns_its_own_episodes_only(ledger: Ledger, store, make_episode) -> None:
    (a,) = ledger.lease(0, ["a"])
    store.save_episode(make_episode("failed-and-replaced", group=a.group), run="r")
    ledger.running(a)
    group = [make_episode("second", group=a.group), make_episode("first", group=a.group)]
    ledger.graded(a, group)
    assert ledger.recover(None).graded[0].episodes == tuple(group)


def test_a_damaged_batch_is_noticed(ledger: Ledger, store: Store, grade) -> None:
    (a,) = ledger.lease(0, ["a"])
    grade(a)
    ledger.batched(batch_of(1, a))
    with store.database.write() as connection:
        connection.exec_driver_sql("UPDATE batches SET body = substr(body, 2)")
    with pytest.raises(LedgerError, match="stored batch of step 1 is damaged"):
        ledger.recover(None)
