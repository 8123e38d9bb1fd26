"""The durable vbuckets of a node: on LMDB, and on dicts as the oracle. What a store is stands in `contract`.

    LmdbWriter, LmdbReader, open_store  the store on LMDB                      lmdb_store, writing, environment
    Backfill                            a vbucket read for a stream            backfill
    WriterProcess                       the same writer, in a child process    writer_process, writer_child, framing
    DictStore                           the same contract on dicts             dict_store
    Unflushed, DirectoryLock            what else lies in a data directory     unflushed, lock
    records                             an item as memory and disk keep it     records, places
    layout                              what is in the files, drawn            layout

Names are imported when they are first asked for: the writer process needs few of these modules and starts the sooner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.store import layout, records
    from headrace.store.backfill import Backfill
    from headrace.store.contract import (
        Changes,
        Expiring,
        FormatError,
        Reader,
        Snapshot,
        StoreError,
        VBucketRecord,
        Writer,
    )
    from headrace.store.dict_store import DictStore
    from headrace.store.lmdb_store import LmdbReader, LmdbSnapshot, LmdbWriter, open_store
    from headrace.store.lock import DirectoryLock
    from headrace.store.unflushed import Unflushed
    from headrace.store.writer_process import WriterProcess

__all__ = [
    "Backfill",
    "Changes",
    "DictStore",
    "DirectoryLock",
    "Expiring",
    "FormatError",
    "LmdbReader",
    "LmdbSnapshot",
    "LmdbWriter",
    "Reader",
    "Snapshot",
    "StoreError",
    "Unflushed",
    "VBucketRecord",
    "Writer",
    "WriterProcess",
    "layout",
    "open_store",
    "records",
]

_HOMES = {
    "Backfill": "backfill",
    "DictStore": "dict_store",
    "DirectoryLock": "lock",
    "LmdbReader": "lmdb_store",
    "LmdbSnapshot": "lmdb_store",
    "LmdbWriter": "lmdb_store",
    "Unflushed": "unflushed",
    "WriterProcess": "writer_process",
    "open_store": "lmdb_store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in {"layout", "records"}:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'contract')}"), name)
