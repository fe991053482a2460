"""A toy run over the real ledger, to be killed at any moment and started again.

Its weights are a chain of hashes over the batches' bytes, so two runs end in the same weights
exactly when they applied the same batches in the same order, each once.
Usage: ledger_worker.py DIRECTORY [STORE_URL]   (prints "ready", then works until done)
"""

import hashlib
import json
import os
import sys
from pathlib import Path

from journeyman.store import Ledger, Store
from journeyman.types import (
    Batch,
    Episode,
    Message,
    PolicyVersion,
    Sample,
    StopReason,
    TokenStream,
    Verdict,
)

PROMPTS = [f"p{i:02}" for i in range(8)]
EPOCHS = 2
GROUPS_IN_BATCH = 2
CHECKPOINT_EVERY = 3


def run(directory: Path, url: str | None = None) -> str:
    """Start or resume; returns the final weights."""
    ledger = Ledger(Store(url or f"sqlite:///{directory}/store.db"), "r")
    step, weights = read_checkpoint(directory)
    recovery = ledger.recover(step or None)
    for number in recovery.unrecorded:
        ledger.applied(number, PolicyVersion(number=number, digest=weights))
    for batch in recovery.replay:
        step, weights = apply(ledger, directory, batch, weights)
    graded = {group.lease.group: list(group.episodes) for group in recovery.graded}
    again = {lease.group: lease for lease in recovery.leases}
    for epoch in range(EPOCHS):
        known = ledger.leased_prompts(epoch)
        for lease in ledger.lease(epoch, [prompt for prompt in PROMPTS if prompt not in known]):
            again[lease.group] = lease
        for prompt in PROMPTS:
            group = f"r/{epoch}/{prompt}"
            if group in again:
                work(ledger, again.pop(group), graded)
            if len(graded) >= GROUPS_IN_BATCH:
                chosen = sorted(graded)[:GROUPS_IN_BATCH]
                batch = make_batch(step + 1, {name: graded.pop(name) for name in chosen})
                ledger.batched(batch)
                step, weights = apply(ledger, directory, batch, weights)
    return weights


def work(ledger, lease, graded) -> None:
    ledger.running(lease)
    if lease.prompt == PROMPTS[3]:
        ledger.dropped(lease, "infra", [episode_of(lease, "failed")])
        return
    group = [episode_of(lease, name) for name in ("one", "two")]
    ledger.graded(lease, group)
    graded[lease.group] = group


def episode_of(lease, name: str) -> Episode:
    stream = TokenStream(
        token_ids=(1, 2), loss_mask=(False, True), logprobs=(0.0, -0.25), versions=(-1, 0)
    )
    return Episode(
        id=f"{lease.group}/{name}",
        task=lease.prompt,
        group=lease.group,
        kind="train",
        prompt=(Message(role="user", content=lease.prompt),),
        turns=(),
        streams=(stream,),
        stop=StopReason.SUBMITTED,
        verdict=Verdict(reward=float(name == "one"), tree=name),
        started_at=0.0 if name == "one" else 1.0,
    )


def make_batch(step: int, groups: dict[str, list[Episode]]) -> Batch:
    samples = [
        Sample(
            episode=episode.id,
            group=episode.group,
            stream=episode.streams[0],
            advantage=episode.verdict.reward - 0.5,
        )
        for episodes in groups.values()
        for episode in episodes
    ]
    return Batch(step=step, samples=tuple(samples))


def apply(ledger, directory: Path, batch: Batch, weights: str) -> tuple[int, str]:
    weights = hashlib.sha256((weights + batch.model_dump_json()).encode()).hexdigest()
    if batch.step % CHECKPOINT_EVERY == 0:
        write_checkpoint(directory, batch.step, weights)
    ledger.applied(batch.step, PolicyVersion(number=batch.step, digest=weights))
    return batch.step, weights


def read_checkpoint(directory: Path) -> tuple[int, str]:
    path = directory / "checkpoint.json"
    step, weights = json.loads(path.read_text()) if path.exists() else (0, "first")
    return step, weights


def write_checkpoint(directory: Path, step: int, weights: str) -> None:
    (directory / "next.json").write_text(json.dumps([step, weights]))
    os.replace(directory / "next.json", directory / "checkpoint.json")


if __name__ == "__main__":
    print("ready", flush=True)
    print(run(Path(sys.argv[1]), *sys.argv[2:]))
