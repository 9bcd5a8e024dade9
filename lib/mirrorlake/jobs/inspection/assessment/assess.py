"""The assessment of a flow: what it would mirror and what not, who reads it, and how long the first run takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.jobs.inspection.assessment.groups import GroupAssessment, assess_groups, by_state
from mirrorlake.jobs.inspection.assessment.topics import TopicAssessment, assess_topics, extents
from mirrorlake.jobs.inspection.clusters import connected
from mirrorlake.printable import named
from mirrorlake.protocol.acls import Acl
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.open_transactions import OpenTransaction, oldest_open

if TYPE_CHECKING:
    import pandas as pd

MB_PER_S = 50.0  # assumed throughput of a first run; docs/performance.md has measured ones
LEAST_WINDOW_S = 2.0  # in which the growth of the source is measured
LONG_TRANSACTION_S = 60
ANYONE = "*"


@dataclass(frozen=True)
class Assessment:
    """The assessment of a flow.

    Attributes:
        flow: `source->target`.
        topics: every topic of the source, those first that are mirrored.
        groups: every group of the source.
        acls: bindings on the source by shape; None if the cluster has no authorizer, or does not list them.
        open_transactions: transactions that are open for long: nobody reads beyond them, and nor does the flow.
        growth_per_s: offsets that the mirrored topics have got in each second of the assessment.
        mb_per_s: the throughput that `seconds` assumes.
    """

    flow: str
    topics: tuple[TopicAssessment, ...]
    groups: tuple[GroupAssessment, ...]
    acls: Mapping[str, int] | None
    open_transactions: Mapping[str, OpenTransaction]
    growth_per_s: float
    mb_per_s: float

    @property
    def mirrored(self) -> list[TopicAssessment]:
        return [one for one in self.topics if not one.left_out]

    @property
    def size(self) -> int:
        """Returns the bytes of the mirrored topics, as far as they are known."""
        return sum(one.size or 0 for one in self.mirrored)

    @property
    def growth_mb_per_s(self) -> float:
        """Returns the growth in MB/s, by the average size of what is there."""
        offsets = sum(one.offsets for one in self.mirrored)
        return self.growth_per_s * self.size / offsets / 1e6 if offsets else 0.0

    @property
    def seconds(self) -> float | None:
        """Returns the estimated duration of the first run; None if the source grows faster than it is mirrored."""
        net = self.mb_per_s - self.growth_mb_per_s
        return self.size / 1e6 / net if net > 0 else None

    def findings(self) -> list[str]:
        """Returns what the operator should know before the first run, in words."""
        ahead = [one.group_id for one in self.groups if one.ahead]
        with_members = [one for one in self.groups if not one.left_out and one.state not in ("Empty", "Dead")]
        opened = [one.topic for one in self.mirrored if one.format.startswith("opened")]
        found = []
        if not self.mirrored:
            found.append("No topic would be mirrored. Correct topics and topics.exclude")
        if ahead:
            found.append(
                f"{len(ahead):,} groups read uncommitted records (they have committed beyond the last stable offset): "
                f"{_some(ahead)}. They would read aborted records of remote topics; set isolation.level=read_committed"
            )
        elif any(one.transactions for one in self.mirrored):
            found.append(
                "Some topics have transactions. Brokers do not know who reads uncommitted records, which is the Java "
                "client's default: ask the owners of the groups to set isolation.level=read_committed"
            )
        else:
            found.append(
                "Consumers on the target need isolation.level=read_committed, which is not the Java client's default. "
                "Brokers do not know who has set it"
            )
        if self.open_transactions:
            key, one = next(iter(self.open_transactions.items()))
            found.append(
                f"{len(self.open_transactions):,} partitions have a transaction that is open for more than "
                f"{LONG_TRANSACTION_S} s, so that nothing behind it is mirrored: {key}, transactional id "
                f"{named(one.transactional_id or 'unknown')}"
            )
        if opened:
            found.append(f"{len(opened):,} topics can't pass through unopened, which takes more CPU: {_some(opened)}")
        if unknown := [one.topic for one in self.mirrored if one.size is None]:
            found.append(
                f"The sizes of {len(unknown):,} topics are not known, so that size and duration are too small: "
                f"{_some(unknown)}. Grant DESCRIBE on the CLUSTER of the source, so that its brokers list them"
            )
        if with_members:
            found.append(
                f"{len(with_members):,} groups have members. Their offsets are synced while they run here; a group "
                "with members on the target is never changed"
            )
        if self.seconds is None:
            found.append(
                f"The source grows by {self.growth_mb_per_s:,.1f} MB/s, faster than the assumed {self.mb_per_s:g} "
                "MB/s: the flow would never catch up. Give it more cores and slots"
            )
        return found

    @property
    def next_command(self) -> str:
        """Returns the command to go on with."""
        if not self.mirrored:
            return f"mirrorlake doctor --flow '{self.flow}'"
        return f"mirrorlake topics --flow '{self.flow}' --dry-run"

    def topics_table(self) -> pd.DataFrame:
        """Returns one row for each topic, for display."""
        return _table(self.topics, TopicAssessment)

    def groups_table(self) -> pd.DataFrame:
        """Returns one row for each group, for display."""
        return _table(self.groups, GroupAssessment)

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers, without topics and groups."""
        return {
            "flow": self.flow,
            "topics": len(self.mirrored),
            "partitions": sum(one.partitions for one in self.mirrored),
            "topics_left_out": len(self.topics) - len(self.mirrored),
            "offsets": sum(one.offsets for one in self.mirrored),
            "bytes": self.size,
            "bytes_unknown": sum(one.size is None for one in self.mirrored),
            "compacted": sum("compact" in one.cleanup_policy for one in self.mirrored),
            "with_transactions": sum(bool(one.transactions) for one in self.mirrored),
            "groups": sum(not one.left_out for one in self.groups),
            "groups_left_out": sum(bool(one.left_out) for one in self.groups),
            "groups_by_state": by_state(self.groups),
            "groups_reading_uncommitted": sum(bool(one.ahead) for one in self.groups),
            "acls": self.acls,
            "growth_per_s": round(self.growth_per_s, 1),
            "mb_per_s": self.mb_per_s,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "findings": self.findings(),
            "next": self.next_command,
        }


def throughput(text: str) -> float:
    """Parses the parameter mb_per_s.

    Raises:
        ConfigurationError: it is not a number above 0.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigurationError(f"parameter mb_per_s is '{text}'; allowed is a number above 0")
    return found


def assess(flow: Flow, mb_per_s: float = MB_PER_S) -> Assessment:
    """Assesses a flow from its source; the target is not contacted.

    Args:
        flow: the flow.
        mb_per_s: the throughput to compute the duration of the first run with.

    Raises:
        SourceError: the source can't be read.
    """
    timeout_ms = flow.connect_timeout_ms
    with connected(flow.source_connection, "source", timeout_ms) as source:
        topics = assess_topics(flow, source, timeout_ms)
        names = [one.topic for one in topics if not one.left_out]
        look = partial(extents, source, source.topics, names, timeout_ms)
        began, ends = time.monotonic(), look()
        groups = assess_groups(flow, source, look, timeout_ms)
        waiting = _open_transactions(source, list(ends))
        acls = _shapes(flow)
        time.sleep(max(0.0, began + LEAST_WINDOW_S - time.monotonic()))  # the length of the measurement
        later = look()
        grown = sum(max(0, later[key][1] - end) for key, (_, end) in ends.items() if key in later)
        growth = grown / (time.monotonic() - began)
    return Assessment(flow.name, tuple(topics), tuple(groups), acls, waiting, growth, mb_per_s)


def _open_transactions(source: Cluster, keys: list[tuple[str, int]]) -> dict[str, OpenTransaction]:
    now_ms = time.time() * 1_000
    found = source.net.run(lambda: oldest_open(source, keys))
    return {
        f"{topic}-{partition}": one
        for (topic, partition), one in sorted(found.items())
        if 0 <= one.started_ms < now_ms - 1_000 * LONG_TRANSACTION_S
    }


def _shapes(flow: Flow) -> dict[str, int] | None:
    """Counts the ACL bindings of the source by resource, pattern, permission and width."""
    try:
        found = Admin(flow.source_connection, "source", flow.name).acls("ANY")
    except MirrorlakeError:
        return None
    return None if found is None else dict(sorted(Counter(map(_shape, found)).items()))


def _shape(acl: Acl) -> str:
    pattern = "wildcard" if acl.name == ANYONE else acl.pattern.lower()
    who = "everyone" if acl.principal == f"User:{ANYONE}" else "a principal"
    host = "any host" if acl.host == ANYONE else "one host"
    return f"{acl.permission} {acl.operation} on {acl.resource} ({pattern}) to {who} from {host}"


def _some(names: list[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _table(rows: Iterable[Any], kind: type) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=[one.name for one in fields(kind)])
