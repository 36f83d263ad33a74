"""Arrow record batches in bounded memory: a few are kept, more go to a temporary file that is mapped."""

from __future__ import annotations

import tempfile
from typing import final

import pyarrow as pa

IN_MEMORY = 16 * 2**20
"""Bytes of columns kept in memory. Python lists of numbers take about ten times as much."""


@final
class Spool:
    """Record batches in order, of any schemas. Beyond `most` bytes they are written to a temporary Arrow file
    (in the directory of TMPDIR) without compression, so that they are read by mapping it. `OSError` if the
    disk is full.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = IN_MEMORY if most is None else most
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch at the end."""
        self._bytes += batch.nbytes
        self._kept.append(batch)
        if self._bytes <= self.most:
            return
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="ratchet-", suffix=".arrow")  # noqa: SIM115
        for one in self._kept:
            with pa.ipc.new_stream(self._file, one.schema) as stream:
                stream.write_batch(one)
        self._kept = []

    def batches(self) -> list[pa.RecordBatch]:
        """All batches; nothing may be added after. The file has no name any more and its space is free again
        when the last batch is gone.
        """
        if self._file is None:
            return self._kept
        self._file.flush()
        mapped = pa.memory_map(self._file.name)
        self._file.close()
        found, end = [], mapped.size()
        while mapped.tell() < end:
            found += list(pa.ipc.open_stream(mapped))
        return found
