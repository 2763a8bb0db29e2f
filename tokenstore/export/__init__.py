"""Whole directories as files that training tools read: JSONL, Parquet, npz; entries as recorded, or trajectories.

`exporting` walks over the rollouts, `columns` says what a row is, `jsonl`, `parquet` and `npz` write rows, `work` keeps
the files of an export that is not finished.

1. Nothing half is ever under the name that was asked for: the file is written beside it, synced, and renamed.
2. An export that was killed goes on where it was, rollout by rollout; what has changed since is read again.
3. Memory is bounded by the largest rollout, however many there are.
4. Nothing of the store is changed: rollouts are read as `peek` reads them.
"""

from __future__ import annotations

from tokenstore.export.columns import Records
from tokenstore.export.exporting import ExportReport, Format, export
from tokenstore.export.reading import reader_of
from tokenstore.export.work import ExportBusyError

__all__ = ["ExportBusyError", "ExportReport", "Format", "Records", "export", "reader_of"]
