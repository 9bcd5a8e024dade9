"""`make audit-trace`: holds the traces of real flows against the invariants of the protocol (docs/protocol.md).

It reads all flows that the tables of WAREHOUSE and SCHEMA have. With CONFIG and FLOW it reads the flow's offset-syncs
topic instead, which has every transaction with its positions. The exit code is 1 if an invariant is broken.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from mirrorlake import resources
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.trace import audit_tables, flows
from mirrorlake.local.session import local_session
from mirrorlake.log import configure
from mirrorlake.model.trace import TraceAudit, Violation
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state.trace import read_trace

CATALOG = "spark_catalog"


def lines(
    flow: str, what: str, counts: Counter[str], checked: Counter[str], violations: Iterable[Violation]
) -> Iterator[str]:
    """Yields the report about one flow: what was looked at, the checks, and each violation."""
    found = Counter(violation.check for violation in violations)
    there = ", ".join(f"{number:,} {name}" for name, number in counts.items() if name != "violations")
    yield f"flow {flow}, {what}: {there}"
    for check, times in sorted(checked.items()):
        yield f"  {'FAILS' if found[check] else 'holds'}  {check} ({times:,} times)"
    for violation in violations:
        yield f"  flow {flow}, {violation}"
    if (more := counts["violations"] - sum(found.values())) > 0:
        yield f"  and {more:,} more"


def audit_topic(config: str, flow_name: str) -> tuple[list[str], bool]:
    """Audits the offset-syncs topic of a flow; returns the report, and whether all invariants hold."""
    flow = Flow.load(config, flow_name)
    with closing(Cluster(flow.target_connection, "target", f"{flow.name}|audit").connect()) as target:
        audit = TraceAudit(read_trace(target, flow.offset_syncs_topic, flow.connect_timeout_ms)).run()
    report = lines(flow.name, f"topic {flow.offset_syncs_topic}", audit.counts, audit.checked, audit.violations)
    return list(report), not audit.violations


def audit_warehouse(ledger: Ledger) -> tuple[list[str], bool]:
    """Audits all flows of a ledger; returns the report, and whether all invariants hold.

    Raises:
        ConfigurationError: the ledger has no flow.
    """
    report, is_true = list[str](), True
    pairs = flows(ledger)
    if not pairs:
        raise ConfigurationError(f"the table offset_syncs of schema {ledger.schema} has no rows, so there is no trace")
    for source, target in pairs:
        audit = audit_tables(ledger, source, target)
        report += lines(f"{source}->{target}", "tables", audit.counts, audit.checked, audit.violations)
        is_true = is_true and not audit.violations
    return report, is_true


def main(environment: Mapping[str, str] = os.environ) -> int:
    configure(level="WARNING")
    try:
        if environment.get("CONFIG") or environment.get("FLOW"):
            report, is_true = audit_topic(
                environment.get("CONFIG") or ".local/mirrorlake.properties", environment.get("FLOW") or "a->b"
            )
        else:
            warehouse = environment.get("WAREHOUSE") or ".local/warehouse"
            schema = environment.get("SCHEMA") or "mirrorlake"
            if not (Path(warehouse) / schema).is_dir():
                raise ConfigurationError(
                    f"there is no schema {schema} in warehouse {warehouse}. Name another one (WAREHOUSE, SCHEMA), or "
                    "run a mirror first"
                )
            spark = local_session(resources.home(), "audit-trace")
            try:
                report, is_true = audit_warehouse(Ledger(spark, CATALOG, schema, warehouse).ensure_tables())
            finally:
                spark.stop()
    except MirrorlakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*report, sep="\n")
    return 0 if is_true else 1


if __name__ == "__main__":
    sys.exit(main())
