"""The run ledger: what became of every prompt of every epoch, whatever is killed when.

    leased → running → graded → batched(step) → applied(step, version)
       └────────┴─────────┴──→ dropped(reason)

A transition is one transaction together with the data that belongs to it: `graded` stores the
group's episodes, `batched` the batch's exact bytes, `applied` the policy version and metrics.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, func, insert, outerjoin, select, update
from sqlalchemy.exc import IntegrityError

from journeyman.store.codec import pack, unpack
from journeyman.store.errors import LedgerError
from journeyman.store.schema import batches, episodes, ledger
from journeyman.store.store import Store, put_episodes, put_metrics
from journeyman.types import Batch, Episode, PolicyVersion, Value


class State(StrEnum):
    """Where a group of episodes stands. The last two are ends."""

    LEASED = "leased"
    RUNNING = "running"
    GRADED = "graded"
    BATCHED = "batched"
    APPLIED = "applied"
    DROPPED = "dropped"


ENDS = (State.APPLIED, State.DROPPED)


class Lease(Value):
    """The right to run one prompt of one epoch. A newer `attempt` makes older leases void."""

    epoch: int
    prompt: str
    group: str
    attempt: int = 0


class GradedGroup(Value):
    """A group whose verdicts are in, not yet used by a batch."""

    lease: Lease
    episodes: tuple[Episode, ...]


class Recovery(Value):
    """What a restarted run has to do, in this order: replay, use the graded, run the leases."""

    replay: tuple[Batch, ...]
    """Batches to apply again or for the first time, by step; the checkpoint holds none of them."""
    unrecorded: tuple[int, ...]
    """Steps the checkpoint holds whose application was not recorded yet: the process died in
    between. Call `applied` with the checkpoint's version; do not step again."""
    graded: tuple[GradedGroup, ...]
    leases: tuple[Lease, ...]
    """Prompts that were leased or running, leased anew."""


class PastPrompt(Value):
    """One use of a prompt."""

    epoch: int
    prompt: str
    ended: bool
    """Applied or dropped."""
    both_outcomes: bool
    """Whether the verifier gave the group's episodes different rewards."""


class Audit(Value):
    """How the prompts of one epoch ended."""

    applied: int
    dropped: dict[str, int]
    """Reason → count."""
    unfinished: tuple[str, ...]
    missing: tuple[str, ...]
    """Asked for, and never leased."""
    unexpected: tuple[str, ...]
    """Leased, and not among those asked for."""

    @property
    def whole(self) -> bool:
        """Every prompt asked for ended exactly once, and no other was touched."""
        return not (self.unfinished or self.missing or self.unexpected)


class Ledger:
    """The ledger of one run. Calls block as those of `Store` do; LedgerError marks an illegal
    transition, and then nothing has changed."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._database = store.database
        self._run = run

    def lease(self, epoch: int, prompts: Sequence[str]) -> list[Lease]:
        """Lease prompts, all or none. Raises LedgerError if one was leased before in the epoch."""
        leases = [
            Lease(epoch=epoch, prompt=prompt, group=f"{self._run}/{epoch}/{prompt}")
            for prompt in prompts
        ]
        if not leases:
            return []
        try:
            with self._database.write() as connection:
                last = connection.scalar(
                    select(func.max(ledger.c.position)).where(ledger.c.run == self._run)
                )
                first = 0 if last is None else last + 1
                rows = [self._row(lease, first + i) for i, lease in enumerate(leases)]
                connection.execute(insert(ledger), rows)
        except IntegrityError as error:
            raise LedgerError(
                f"a prompt of epoch {epoch} of run {self._run!r} was leased twice", str(error.orig)
            ) from error
        return leases

    def running(self, lease: Lease) -> None:
        """leased → running."""
        with self._database.write() as connection:
            self._move(connection, lease, (State.LEASED,), State.RUNNING)

    def graded(self, lease: Lease, group: Sequence[Episode]) -> None:
        """running → graded, with the group's episodes."""
        self._check_group(lease, group)
        if not group:
            raise LedgerError(f"group {lease.group} has no episodes", "drop it with a reason")
        with self._database.write() as connection:
            self._move(connection, lease, (State.RUNNING,), State.GRADED)
            self._keep(connection, lease, group)

    def dropped(self, lease: Lease, reason: str, group: Sequence[Episode] = ()) -> None:
        """leased, running or graded → dropped, with any episodes there were."""
        self._check_group(lease, group)
        if not reason:
            raise LedgerError(f"group {lease.group} cannot be dropped without a reason")
        before = (State.LEASED, State.RUNNING, State.GRADED)
        with self._database.write() as connection:
            self._move(connection, lease, before, State.DROPPED, reason=reason)
            self._keep(connection, lease, group)

    def batched(self, batch: Batch) -> None:
        """graded → batched for every group the batch's samples come from, with its bytes."""
        groups = sorted({sample.group for sample in batch.samples})
        if not groups:
            raise LedgerError(f"the batch of step {batch.step} has no samples")
        body = pack(batch)
        with self._database.write() as connection:
            self._check_next_step(connection, batch.step)
            moved = connection.execute(
                update(ledger)
                .where(ledger.c.run == self._run, ledger.c.group_id.in_(groups))
                .where(ledger.c.state == State.GRADED)
                .values(state=State.BATCHED, step=batch.step, changed_at=time.time())
            )
            if moved.rowcount != len(groups):
                raise LedgerError(
                    f"{len(groups) - moved.rowcount} of the {len(groups)} groups of step "
                    f"{batch.step} are not graded: {self._states(connection, groups)}"
                )
            digest = hashlib.sha256(body).hexdigest()
            row = {"run": self._run, "step": batch.step, "digest": digest, "body": body}
            connection.execute(insert(batches).values(row))

    def applied(
        self, step: int, version: PolicyVersion, metrics: Mapping[str, float] | None = None
    ) -> None:
        """batched → applied for the step's groups. Repeating it after a replay changes nothing,
        and raises LedgerError if the replay led to other weights than the first time."""
        with self._database.write() as connection:
            first_open = connection.scalar(
                select(func.min(batches.c.step)).where(
                    batches.c.run == self._run, batches.c.policy_version.is_(None)
                )
            )
            if first_open is not None and first_open < step:
                raise LedgerError(f"step {step} cannot be applied before step {first_open}")
            row = connection.execute(
                select(batches.c.policy_version, batches.c.policy_digest).where(
                    batches.c.run == self._run, batches.c.step == step
                )
            ).one_or_none()
            if row is None:
                raise LedgerError(f"step {step} of run {self._run!r} was never batched")
            if row.policy_version is None:
                self._apply(connection, step, version)
            elif (row.policy_version, row.policy_digest) != (version.number, version.digest):
                raise LedgerError(
                    f"replaying step {step} led to version {version.number} of digest "
                    f"{version.digest}; it was version {row.policy_version} of digest "
                    f"{row.policy_digest}",
                    "the checkpoint or the code changed since; start a new run",
                )
            put_metrics(connection, self._run, step, metrics or {})

    def recover(self, checkpoint_step: int | None) -> Recovery:
        """Take the run over after a restart. Leases of the former process become void.

        `checkpoint_step` is the last step that the restored checkpoint holds, None if there is
        no checkpoint and the run starts from its first weights.
        """
        with self._database.write() as connection:
            open_states = (State.LEASED, State.RUNNING)
            connection.execute(
                update(ledger)
                .where(ledger.c.run == self._run, ledger.c.state.in_(open_states))
                .values(state=State.LEASED, attempt=ledger.c.attempt + 1, changed_at=time.time())
            )
            leases = self._leases(connection, State.LEASED)
            graded = [
                GradedGroup(lease=lease, episodes=self._kept(connection, lease))
                for lease in self._leases(connection, State.GRADED)
            ]
            replay = self._batches_after(connection, checkpoint_step)
            unrecorded = self._unrecorded(connection, checkpoint_step)
        return Recovery(
            replay=tuple(replay),
            unrecorded=tuple(unrecorded),
            graded=tuple(graded),
            leases=tuple(leases),
        )

    def last_applied(self) -> int | None:
        """The last step applied, None before the first."""
        query = select(func.max(batches.c.step)).where(
            batches.c.run == self._run, batches.c.policy_version.is_not(None)
        )
        with self._database.read() as connection:
            step: int | None = connection.scalar(query)
        return step

    def states(self) -> dict[str, State]:
        """Group → state, in the order of leasing."""
        query = select(ledger.c.group_id, ledger.c.state).where(ledger.c.run == self._run)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(ledger.c.position))
            return {group: State(state) for group, state in rows}

    def leased_prompts(self, epoch: int) -> list[str]:
        """The prompts of the epoch that were ever leased, in order: what not to lease again."""
        query = select(ledger.c.prompt).where(ledger.c.run == self._run, ledger.c.epoch == epoch)
        with self._database.read() as connection:
            return list(connection.scalars(query.order_by(ledger.c.position)))

    def past(self) -> list[PastPrompt]:
        """Every prompt ever leased, in the order of leasing."""
        own_episodes = and_(
            episodes.c.run == ledger.c.run, episodes.c.group_id == ledger.c.group_id
        )
        query = (
            select(
                ledger.c.epoch,
                ledger.c.prompt,
                ledger.c.state.in_(ENDS).label("ended"),
                (func.max(episodes.c.reward) > func.min(episodes.c.reward)).label("differ"),
            )
            .select_from(outerjoin(ledger, episodes, own_episodes))
            .where(ledger.c.run == self._run)
            .group_by(ledger.c.position, ledger.c.epoch, ledger.c.prompt, ledger.c.state)
            .order_by(ledger.c.position)
        )
        with self._database.read() as connection:
            return [
                PastPrompt(epoch=epoch, prompt=prompt, ended=ended, both_outcomes=bool(differ))
                for epoch, prompt, ended, differ in connection.execute(query)
            ]

    def audit(self, epoch: int, prompts: Iterable[str]) -> Audit:
        """How each prompt of the epoch ended, against the prompts that should have been used."""
        query = select(ledger.c.prompt, ledger.c.state, ledger.c.reason)
        query = query.where(ledger.c.run == self._run, ledger.c.epoch == epoch)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(ledger.c.position)).all()
        wanted, seen = set(prompts), {row.prompt for row in rows}
        return Audit(
            applied=sum(row.state == State.APPLIED for row in rows),
            dropped=dict(Counter(row.reason for row in rows if row.state == State.DROPPED)),
            unfinished=tuple(row.prompt for row in rows if row.state not in ENDS),
            missing=tuple(sorted(wanted - seen)),
            unexpected=tuple(sorted(seen - wanted)),
        )

    def _row(self, lease: Lease, position: int) -> dict[str, Any]:
        return {
            "run": self._run,
            "epoch": lease.epoch,
            "prompt": lease.prompt,
            "group_id": lease.group,
            "position": position,
            "attempt": lease.attempt,
            "state": State.LEASED,
            "changed_at": time.time(),
        }

    def _check_group(self, lease: Lease, group: Sequence[Episode]) -> None:
        strangers = [episode.id for episode in group if episode.group != lease.group]
        if strangers:
            raise LedgerError(f"episodes {strangers} are not of group {lease.group}")

    def _check_next_step(self, connection: Connection, step: int) -> None:
        last = connection.scalar(select(func.max(batches.c.step)).where(batches.c.run == self._run))
        if last is not None and step != last + 1:
            raise LedgerError(f"after step {last} comes {last + 1}, not step {step}")

    def _move(
        self,
        connection: Connection,
        lease: Lease,
        before: tuple[State, ...],
        after: State,
        reason: str | None = None,
    ) -> None:
        moved = connection.execute(
            update(ledger)
            .where(ledger.c.run == self._run, ledger.c.group_id == lease.group)
            .where(ledger.c.attempt == lease.attempt, ledger.c.state.in_(before))
            .values(state=after, reason=reason, changed_at=time.time())
        )
        if moved.rowcount != 1:
            raise LedgerError(
                f"group {lease.group} (attempt {lease.attempt}) cannot become {after}: "
                f"it is {self._states(connection, [lease.group])}"
            )

    def _keep(self, connection: Connection, lease: Lease, group: Sequence[Episode]) -> None:
        put_episodes(connection, self._run, group)
        connection.execute(
            update(ledger)
            .where(ledger.c.run == self._run, ledger.c.group_id == lease.group)
            .values(episode_ids=json.dumps([episode.id for episode in group]))
        )

    def _states(self, connection: Connection, groups: Sequence[str]) -> str:
        query = select(ledger.c.group_id, ledger.c.state, ledger.c.attempt).where(
            ledger.c.run == self._run, ledger.c.group_id.in_(groups)
        )
        found = {g: f"{state} (attempt {n})" for g, state, n in connection.execute(query)}
        return ", ".join(f"{group}: {found.get(group, 'never leased')}" for group in groups)

    def _apply(self, connection: Connection, step: int, version: PolicyVersion) -> None:
        connection.execute(
            update(batches)
            .where(batches.c.run == self._run, batches.c.step == step)
            .values(policy_version=version.number, policy_digest=version.digest)
        )
        connection.execute(
            update(ledger)
            .where(ledger.c.run == self._run, ledger.c.step == step)
            .where(ledger.c.state == State.BATCHED)
            .values(state=State.APPLIED, policy_version=version.number, changed_at=time.time())
        )

    def _leases(self, connection: Connection, state: State) -> list[Lease]:
        query = select(
            ledger.c.epoch, ledger.c.prompt, ledger.c.group_id.label("group"), ledger.c.attempt
        ).where(ledger.c.run == self._run, ledger.c.state == state)
        rows = connection.execute(query.order_by(ledger.c.position)).mappings()
        return [Lease.model_validate(dict(row)) for row in rows]

    def _kept(self, connection: Connection, lease: Lease) -> tuple[Episode, ...]:
        ids: list[str] = json.loads(
            connection.execute(
                select(ledger.c.episode_ids).where(
                    ledger.c.run == self._run, ledger.c.group_id == lease.group
                )
            ).scalar_one()
        )
        rows = connection.execute(
            select(episodes.c.id, episodes.c.body).where(episodes.c.id.in_(ids))
        )
        bodies = {row.id: row.body for row in rows}
        return tuple(unpack(Episode, bodies[episode_id]) for episode_id in ids)

    def _batches_after(self, connection: Connection, checkpoint_step: int | None) -> list[Batch]:
        query = select(batches.c.step, batches.c.digest, batches.c.body).where(
            batches.c.run == self._run
        )
        if checkpoint_step is not None:
            query = query.where(batches.c.step > checkpoint_step)
        replay = []
        for step, digest, body in connection.execute(query.order_by(batches.c.step)):
            if hashlib.sha256(body).hexdigest() != digest:
                raise LedgerError(f"the stored batch of step {step} is damaged")
            replay.append(unpack(Batch, body))
        return replay

    def _unrecorded(self, connection: Connection, checkpoint_step: int | None) -> list[int]:
        if checkpoint_step is None:
            return []
        query = select(batches.c.step).where(
            batches.c.run == self._run,
            batches.c.step <= checkpoint_step,
            batches.c.policy_version.is_(None),
        )
        return list(connection.scalars(query.order_by(batches.c.step)))
