"""Views and functions in SQL for audits, beside the tables: see docs/sql.md.

Each is a file of `sql/`. Its head describes the view and its columns; these texts become the comments in the catalog.
The rest is the query, with names of tables and other views in braces. The same text runs on Databricks SQL and in a
local session. On Databricks the views are permanent. A local session forgets its catalog, so they are created again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.errors import LedgerError, first_line
from mirrorlake.ledger.sql_text import filled, literal, literals
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import event
from mirrorlake.model.gap import EXPLAINED, LOSS, RESETS, GapKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# In the order of their dependencies.
VIEWS = (
    "resets",
    "expired",
    "offset_sync_runs",
    "offset_sync_gaps",
    "current_runs",
    "current_gaps",
    "offset_map",
    "group_history",
    "current_position",
    "lag",
    "lag_now",
    "unmirrored",
    "unverified",
    "completeness",
)
FUNCTIONS = ("translate", "translate_time")
UNFOLDED = {"offset_sync_runs": "offset_syncs", "offset_sync_gaps": "gaps"}  # the table of each view that unfolds one


class UnrecordedKind(StrEnum):
    """Kinds of the view unmirrored for ranges without a row in the table gaps."""

    BEFORE_MIRROR = "before_mirror"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


UNRECORDED: Mapping[UnrecordedKind, str] = {
    UnrecordedKind.BEFORE_MIRROR: "before the first mirrored record: the source had already deleted these offsets, or "
    "the flow started later",
    UnrecordedKind.EXPIRED: "the map of these offsets has expired (maintain.ipynb); what of them was mirrored is not "
    "known any more",
    UnrecordedKind.UNKNOWN: "not recorded: an earlier version without the table gaps mirrored this range, or another "
    "mirror did (see anomalies of the take-over)",
}

CAUSES: Mapping[str, str] = dict((*EXPLAINED.items(), *LOSS.items(), *UNRECORDED.items()))

UNCOUNTED = "records of this hour may have left a log before they were counted"

COLUMN = re.compile(r"^(\w+)(?: ([A-Z]+))?: (.*?)(?=\n\w+(?: [A-Z]+)?: |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """The definition of a view or a function, from its file.

    Attributes:
        name: the name of the view or function.
        comment: its description.
        columns: name, type (for functions only) and comment of each column of the result.
        parameters: the same of each parameter.
        query: the query, with names in braces.
    """

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    parameters: tuple[tuple[str, str, str], ...]
    query: str

    @classmethod
    def load(cls, name: str) -> Definition:
        """Loads the definition from its file."""
        lines = (Path(__file__).parent / f"sql/{name}.sql").read_text().splitlines()
        head = next(number for number, line in enumerate(lines) if not line.startswith("--"))
        paragraphs = "\n".join(line[2:].strip() for line in lines[:head]).split("\n\n")
        columns = [
            tuple((name, kind or "", " ".join(says.split())) for name, kind, says in COLUMN.findall(paragraph))
            for paragraph in paragraphs[1:]
        ]
        return cls(
            name=name,
            comment=" ".join(paragraphs[0].split()),
            columns=columns[-1],
            parameters=columns[0] if len(columns) > 1 else (),
            query="\n".join(lines[head:]),
        )

    def filled(self, name_of: Callable[[str], str]) -> str:
        """Returns the query with the names that `name_of` returns for tables and views."""
        causes = " ".join(f"WHEN {literal(kind)} THEN {literal(why)}" for kind, why in CAUSES.items())
        words = {
            "explained": literals(EXPLAINED),
            "loss": literals(LOSS),
            "reset_kinds": literals(RESETS),
            "target_recreated": literal(GapKind.TARGET_RECREATED),
            "causes": causes,
            "uncounted": literal(UNCOUNTED),
        }
        return filled(self.query, lambda name: words.get(name) or name_of(name))

    def statement(self, ledger: Ledger) -> str:
        """Returns the statement that creates the view or function in the schema of a ledger."""
        query = self.filled(ledger.table)
        columns, parameters = (
            ", ".join(f"{name} {kind} COMMENT {literal(says)}" for name, kind, says in given)
            for given in (self.columns, self.parameters)
        )
        if self.parameters:
            return (
                f"CREATE OR REPLACE FUNCTION {ledger.table(self.name)} ({parameters}) RETURNS TABLE ({columns}) "
                f"COMMENT {literal(self.comment)} RETURN {query}"
            )
        return (
            f"CREATE OR REPLACE VIEW {ledger.table(self.name)} ({columns}) COMMENT {literal(self.comment)} AS {query}"
        )


def ensure_views(ledger: Ledger) -> None:
    """Creates or updates the views and functions.

    In Unity Catalog, only its owner may replace a view. One that somebody else has created stays as it is.

    Raises:
        LedgerError: a view does not exist, and can't be created in this schema.
    """
    for name in (*VIEWS, *FUNCTIONS):
        try:
            ledger.spark.sql(Definition.load(name).statement(ledger))
        except Exception as error:
            if not _exists(ledger, name):
                raise LedgerError(f"view {ledger.table(name)} can't be created: {first_line(error)}") from None
            log.warning(
                event("view_not_updated", view=ledger.table(name), error=first_line(error), used="the existing")
            )


def use_views(ledger: Ledger) -> None:
    """Makes the views available by their bare names. A catalog that keeps them (Unity Catalog) must have them.

    Raises:
        LedgerError: views are missing, or this user may not read them.
    """
    if ledger.warehouse:  # a session forgets its catalog
        ensure_views(ledger)
    elif missing := sorted(set(VIEWS) - ledger.names(), key=VIEWS.index):
        raise LedgerError(
            f"{ledger.catalog}.{ledger.schema} lacks the views {', '.join(missing)}. Run notebooks/maintain.ipynb "
            "once: it creates them; this user needs SELECT on the schema"
        )
    ledger.spark.sql(f"USE {ledger.full_schema}")


def _exists(ledger: Ledger, name: str) -> bool:
    """Returns True if the schema has a view or function of this name, whoever has created it."""
    kind = "FUNCTION" if name in FUNCTIONS else "TABLE"
    try:
        ledger.spark.sql(f"DESCRIBE {kind} {ledger.table(name)}").collect()
    except Exception:  # Spark has no common class for what is missing
        return False
    return True


def read(ledger: Ledger, name: str, *, folded: bool = False) -> DataFrame:
    """Reads a view as a frame, even if it was not created.

    Args:
        ledger: the ledger.
        name: the name of the view.
        folded: True to take each row of offset_syncs and gaps for one run or gap, though it holds several.
    """

    def source(name: str) -> str:
        if folded and name in UNFOLDED:
            return ledger.table(UNFOLDED[name])
        return f"({Definition.load(name).filled(source)})" if name in VIEWS else ledger.table(name)

    return ledger.spark.sql(Definition.load(name).filled(source))


def unfolded_runs(rows: DataFrame) -> DataFrame:
    """Unfolds rows of offset_syncs: one row for each run, as the view offset_sync_runs has it.

    Args:
        rows: rows with all columns of the table, as its present version has them, or an earlier one.
    """
    if "runs" not in rows.columns:
        return rows
    return rows.sparkSession.sql(Definition.load("offset_sync_runs").query, offset_syncs=rows)


def runs_of_pair(ledger: Ledger, source: str, target: str) -> DataFrame:
    """Reads the runs of the flow from one cluster to another, by their aliases; see `Ledger.of_pair`."""
    return unfolded_runs(ledger.of_pair("offset_syncs", source, target))
