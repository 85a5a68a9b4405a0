"""Checkpoints as the control plane sees them: storage, format, catalogue, verification, retention and hand-over. Never imports torch.

The bytes are written and read by `samite_workloads.checkpoint`; the format itself is described in docs/checkpoint-format.md.
"""

from samite.checkpoint.catalog import Catalog, Entry, State
from samite.checkpoint.store import Store, StoreOptions, open_store
from samite.checkpoint.verify import Level, VerifyReport

__all__ = ["Catalog", "Entry", "Level", "State", "Store", "StoreOptions", "VerifyReport", "open_store"]
