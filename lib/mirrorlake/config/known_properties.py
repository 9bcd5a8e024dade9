"""Every property that a file may hold, and its use here. Names are those of MirrorMaker 2 (Kafka 4.3.0) and
mirrorlake's own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum

from mirrorlake.config.options import CLIENTS, FORMER_NAMES, OPTIONS


class UseStatus(StrEnum):
    """The ways in which mirrorlake treats a property."""

    SUPPORTED = "supported"
    NOT_NEEDED = "not needed"
    NOT_SUPPORTED = "not supported"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PropertyUse:
    """The use of one property of a file.

    Attributes:
        name: as in the file.
        status: how mirrorlake treats the property.
        why: the reason, or what to use instead.
    """

    name: str
    status: UseStatus
    why: str = ""

    @property
    def warning(self) -> str | None:
        """A line for an operator who may count on the property; None if it has the effect that is expected."""
        what = {UseStatus.NOT_SUPPORTED: "MirrorMaker 2's and not supported", UseStatus.UNKNOWN: "unknown"}
        if self.status not in what:
            return None
        reason = f" ({self.why})" if self.why else ""
        return f"property {self.name} is {what[self.status]}; it has no effect{reason}"


ALIAS = "<alias>."
NAMED = tuple(option.name.removeprefix(ALIAS) for option in OPTIONS if option not in CLIENTS)
OF_CLUSTER = frozenset(option.name.removeprefix(ALIAS) for option in OPTIONS if option.name.startswith(ALIAS))
ACTED_ON_BELOW = tuple(sorted({name.partition("<")[0] for name in NAMED if "<" in name}))
FORMER = {former: name for name, former in FORMER_NAMES.items()}
ACTED_ON = frozenset(name for name in NAMED if not name.startswith(ACTED_ON_BELOW))

WORKER = "there is no Connect worker: Spark runs the job, and Delta and the target keep its state"
PASSED_THROUGH = "record batches are passed through unopened"
EXACTLY_ONCE = "mirroring is exactly-once always"
METRICS = "metrics are served and pushed (mirrorlake.metrics.port, mirrorlake.metrics.otlp.endpoint)"
OWN_CLIENTS = (
    "clients are named after flow and role, and tuned by mirrorlake itself; mirrorlake.connect.timeout.ms bounds each "
    "request"
)
SPARK_SQL = "use mirrorlake.transforms, which are Spark SQL"

# The properties of MirrorMaker 2 that have no effect here. One with a star stands for all that begin with its name.
WITHOUT_EFFECT = (
    PropertyUse("offset.lag.max", UseStatus.NOT_NEEDED, "every offset is translated exactly, at any distance"),
    PropertyUse("exactly.once.support", UseStatus.NOT_NEEDED, EXACTLY_ONCE),
    PropertyUse("exactly.once.source.support", UseStatus.NOT_NEEDED, EXACTLY_ONCE),
    PropertyUse("transaction.boundary", UseStatus.NOT_NEEDED, "every micro-batch is one transaction of each slot"),
    PropertyUse(
        "tasks.max",
        UseStatus.NOT_NEEDED,
        "mirrorlake.slots says how many copy side by side; partitions are shared out by Spark",
    ),
    PropertyUse("tasks.max.enforce", UseStatus.NOT_NEEDED, "mirrorlake.slots says how many copy side by side"),
    PropertyUse("consumer.poll.timeout.ms", UseStatus.NOT_NEEDED, "plans say what to read, so there is no polling"),
    PropertyUse("admin.timeout.ms", UseStatus.NOT_NEEDED, "mirrorlake.connect.timeout.ms bounds every request"),
    PropertyUse("key.converter", UseStatus.NOT_NEEDED, PASSED_THROUGH),
    PropertyUse("value.converter", UseStatus.NOT_NEEDED, PASSED_THROUGH),
    PropertyUse("header.converter", UseStatus.NOT_NEEDED, PASSED_THROUGH),
    PropertyUse("metric.names.formats", UseStatus.NOT_NEEDED, METRICS),
    PropertyUse("metric.reporters", UseStatus.NOT_NEEDED, METRICS),
    PropertyUse("dedicated.mode.enable.internal.rest", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("listeners", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("name", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("config.action.reload", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("scheduled.rebalance.max.delay.ms", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("offset.storage.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("offset.flush.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("config.storage.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("status.storage.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("worker.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("task.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("topic.creation.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("errors.*", UseStatus.NOT_NEEDED, WORKER),
    PropertyUse("topic.filter.class", UseStatus.NOT_SUPPORTED, "use topics and topics.exclude"),
    PropertyUse("group.filter.class", UseStatus.NOT_SUPPORTED, "use groups and groups.exclude"),
    PropertyUse("config.property.filter.class", UseStatus.NOT_SUPPORTED, "use config.properties.exclude"),
    PropertyUse("forwarding.admin.class", UseStatus.NOT_SUPPORTED, "topics are managed through Kafka itself"),
    PropertyUse("transforms*", UseStatus.NOT_SUPPORTED, SPARK_SQL),
    PropertyUse("predicates*", UseStatus.NOT_SUPPORTED, SPARK_SQL),
)
SUGGESTED = ACTED_ON | {use.name for use in WITHOUT_EFFECT if not use.name.endswith("*")}


def look_up(name: str, plain: str) -> PropertyUse:
    """Finds the use of a property.

    Args:
        name: as in the file, for the result.
        plain: without an alias or a flow in front.
    """
    if is_acted_on(plain):
        return PropertyUse(name, UseStatus.SUPPORTED)
    if plain in FORMER:
        return PropertyUse(name, UseStatus.SUPPORTED, f"the former name of {FORMER[plain]}")
    for use in WITHOUT_EFFECT:
        if _is_meant(use.name, plain):
            return PropertyUse(name, use.status, use.why)
    near = difflib.get_close_matches(plain, SUGGESTED, 1, cutoff=0.8)
    return PropertyUse(name, UseStatus.UNKNOWN, f"did you mean {near[0]}?" if near else "")


def is_acted_on(plain: str) -> bool:
    """Tells whether a name without an alias or a flow in front is that of an option."""
    return plain in ACTED_ON or plain.startswith(ACTED_ON_BELOW)


def is_of_mirrormaker(plain: str) -> bool:
    """Tells whether a name without an alias in front is that of an option that MirrorMaker 2 has, too, and reads for a
    flow or for the whole file only. Those of its workers it reads for a target, too."""
    if plain == "group.id" or plain.startswith("offset.storage."):
        return False
    is_own = plain.startswith("mirrorlake.") or FORMER.get(plain, plain).startswith("mirrorlake.")
    return (is_acted_on(plain) or plain in FORMER) and not is_own and is_of_target(plain)


def is_of_target(plain: str) -> bool:
    """Returns True for a property that an alias in front of it gives to the flows with that target.

    Those of clusters and of the source's consumer are given to the cluster itself. The flow back may be off, and still
    emits heartbeats.
    """
    return plain not in OF_CLUSTER and "consumer." not in plain and not plain.startswith("emit.heartbeats.")


def _is_meant(known: str, plain: str) -> bool:
    return plain.startswith(known[:-1]) if known.endswith("*") else plain == known
