"""Reads tables of a local warehouse without Spark, by another implementation of Delta (deltalake).

It is for a quick look: a JVM takes longer to start than all of it. Jobs and reports read the tables by Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.errors import LedgerError, first_line

ROWS = 100_000  # read of one table at most


class LocalTables:
    """The tables of one schema of a local warehouse.

    Args:
        warehouse: the directory.
        schema: the schema, a directory below.
    """

    def __init__(self, warehouse: str | Path, schema: str) -> None:
        self._directory = Path(warehouse) / schema

    def are_there(self) -> bool:
        """Returns True if the schema exists."""
        return self._directory.is_dir()

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        time: str = "",
        since: datetime | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Reads columns of a table, of rows since a time; none if there is no such table.

        Args:
            table: the name of the table.
            columns: the names of its columns; one that the table does not have yet is left out.
            time: the column of `since`.
            since: the earliest time, in UTC.
            where: values that columns must have; None for all rows.

        Raises:
            LedgerError: the table can't be read.
        """
        directory = self._directory / table
        if not (directory / "_delta_log").is_dir():
            return []
        try:
            import pyarrow.dataset as ds
            from deltalake import DeltaTable

            found = DeltaTable(directory).to_pyarrow_dataset()
            there = {*found.schema.names}
            wanted = [name for name in columns if name in there]
            condition = ds.field(time) >= since if time and since else None
            for name, value in (where or {}).items():
                condition = ds.field(name) == value if condition is None else condition & (ds.field(name) == value)
            rows: list[dict[str, Any]] = found.head(ROWS, columns=wanted, filter=condition).to_pylist()
            return rows
        except ImportError:
            raise LedgerError("the tables can't be read without Spark: pip install 'mirrorlake[cli]'") from None
        except Exception as error:  # of another library, with classes of its own
            raise LedgerError(f"table {directory} can't be read: {first_line(error)}") from None
