"""Reads tables of a local warehouse without Spark, by another implementation of Delta (deltalake).

It is for a quick look: a JVM takes longer to start than all of it. Jobs and reports read the tables by Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.errors import LedgerError, first_line

ROWS_AT_ONCE = 100_000  # of which the newest ones are found


class LocalTables:
    """The tables of one schema of a local warehouse.

    Args:
        warehouse: the directory.
        schema: the schema, a directory below.
    """

    def __init__(self, warehouse: str | Path, schema: str) -> None:
        self._directory = Path(warehouse) / schema

    def are_there(self) -> bool:
        """Returns True if the schema exists.

        Raises:
            LedgerError: this user may not look.
        """
        try:
            return self._directory.is_dir()
        except OSError as error:
            raise LedgerError(f"warehouse {self._directory.parent} can't be read: {error.strerror}") from None

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
        with self._reading(table):
            return [row for part in self._parts(table, columns, time, since, where) for row in part.to_pylist()]

    def newest(
        self,
        table: str,
        of: Sequence[str],
        columns: Sequence[str],
        time: str,
        since: datetime,
        where: Mapping[str, Any] | None = None,
        until: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """Reads the newest row for each value of the columns `of`, since a time; none if there is no such table.

        However many rows there are, each is looked at, and only the newest ones are kept in memory.

        Args:
            table: the name of the table.
            of: the names of columns.
            columns: the names of further columns, beside `of` and `time`.
            time: the column by which a row is newer.
            since: the earliest time, in UTC.
            where: values that columns must have; None for all rows.
            until: the time before which a row must be; None for any.

        Returns:
            The columns, and `rows`: the number of rows that have the same values of `of`.

        Raises:
            LedgerError: the table can't be read.
        """
        with self._reading(table):
            found, waiting = list[Any](), 0
            for part in self._parts(table, (*of, *columns, time), time, since, where, until):
                found.append(part.append_column("rows", [[1] * part.num_rows]))
                waiting += part.num_rows
                if waiting >= ROWS_AT_ONCE:
                    found, waiting = [_newest(found, of, time)], 0
            rows: list[dict[str, Any]] = _newest(found, of, time).to_pylist() if found else []
            return rows

    def _parts(
        self,
        table: str,
        columns: Sequence[str],
        time: str,
        since: datetime | None,
        where: Mapping[str, Any] | None,
        until: datetime | None = None,
    ) -> Iterator[Any]:
        """Yields the rows of a table in parts (pyarrow.Table), as they are read."""
        directory = self._directory / table
        if not (directory / "_delta_log").is_dir():
            return
        import pyarrow as pa
        import pyarrow.dataset as ds
        from deltalake import DeltaTable

        found = DeltaTable(directory).to_pyarrow_dataset()
        there = {*found.schema.names}
        condition = ds.field(time) >= since if time and since else None
        if until is not None:
            condition = ds.field(time) < until if condition is None else condition & (ds.field(time) < until)
        for name, value in (where or {}).items():
            condition = ds.field(name) == value if condition is None else condition & (ds.field(name) == value)
        for batch in found.to_batches(columns=[name for name in columns if name in there], filter=condition):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Raises a LedgerError about the table in place of an error of another library."""
        try:
            yield
        except ImportError:
            raise LedgerError("the tables can't be read without Spark: pip install 'mirrorlake[cli]'") from None
        except Exception as error:  # of another library, with classes of its own
            raise LedgerError(f"table {self._directory / table} can't be read: {first_line(error)}") from None


def _newest(parts: list[Any], of: Sequence[str], time: str) -> Any:
    """Returns the newest row for each value of the columns `of`, with the sum of `rows`."""
    import pyarrow as pa

    rows = pa.concat_tables(parts).sort_by([(time, "descending")])
    numbered = rows.append_column("first", [range(rows.num_rows)])
    groups = numbered.group_by([*of], use_threads=False).aggregate([("first", "min"), ("rows", "sum")])
    return rows.take(groups["first_min"]).drop_columns("rows").append_column("rows", groups["rows_sum"])
