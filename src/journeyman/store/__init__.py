"""The system of record: interactions, episodes, verdicts, metrics and the run ledger."""

from journeyman.store.database import default_url
from journeyman.store.errors import LedgerError
from journeyman.store.ledger import Audit, GradedGroup, Lease, Ledger, PastPrompt, Recovery, State
from journeyman.store.store import EpisodeSummary, Store

__all__ = [
    "Audit",
    "EpisodeSummary",
    "GradedGroup",
    "Lease",
    "Ledger",
    "LedgerError",
    "PastPrompt",
    "Recovery",
    "State",
    "Store",
    "default_url",
]
