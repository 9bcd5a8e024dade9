"""Every property a file may hold, and what becomes of it here. Names are those of MirrorMaker 2 (Kafka 4.3.0) and
mirrorlake's own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

SUPPORTED, NOT_NEEDED, NOT_SUPPORTED, UNKNOWN = "supported", "not needed", "not supported", "unknown"

ACTED_ON = frozenset(
    """
    clusters enabled topics topics.exclude groups groups.exclude replication.policy.class replication.policy.separator
    replication.policy.internal.topic.separator.enabled replication.factor offset-syncs.topic.replication.factor
    refresh.topics.enabled
    refresh.topics.interval.seconds refresh.groups.enabled refresh.groups.interval.seconds emit.checkpoints.enabled
    emit.checkpoints.interval.seconds sync.group.offsets.enabled sync.group.offsets.interval.seconds
    sync.topic.configs.enabled sync.topic.configs.interval.seconds
    config.properties.exclude use.defaults.from sync.topic.acls.enabled sync.topic.acls.interval.seconds
    topics.rename.regex topics.rename.replacement config.providers
    mirrorlake.slots mirrorlake.batch.max.records mirrorlake.batch.max.transformed.records
    mirrorlake.batch.max.bytes mirrorlake.batch.max.ms mirrorlake.transaction.timeout.ms
    mirrorlake.retry.timeout.ms mirrorlake.connect.timeout.ms mirrorlake.ledger.interval.seconds
    mirrorlake.same.cluster.allowed
    schema.registry.url schema.registry.basic.auth.user.info
    mirrorlake.topics.shared mirrorlake.on.loss mirrorlake.records mirrorlake.topic.configs mirrorlake.start
    mirrorlake.start.new mirrorlake.paused
    emit.offset-syncs.enabled offset-syncs.topic.location heartbeats.replication.enabled emit.heartbeats.enabled
    emit.heartbeats.interval.seconds
    heartbeats.topic.replication.factor checkpoints.topic.replication.factor
    mirrorlake.topics.paused consumer.auto.offset.reset source.consumer.auto.offset.reset
    mirrorlake.transforms mirrorlake.dead.letter.topic
    consumer.isolation.level source.consumer.isolation.level group.id offset.storage.topic
    offset.storage.replication.factor
    """.split()
)
ACTED_ON_BELOW = ("target.topic.creation.", "config.providers.", "mirrorlake.start.topic.", "mirrorlake.transform.")

WORKER = "there is no Connect worker: Spark runs the job, and Delta and the target keep its state"
BATCHES = "record batches are passed through unopened"
NEEDLESS = {
    "offset.lag.max": "every offset is translated exactly, at any distance",
    "exactly.once.support": "mirroring is exactly-once always",
    "exactly.once.source.support": "mirroring is exactly-once always",
    "transaction.boundary": "every micro-batch is one transaction of each slot",
    "tasks.max": "mirrorlake.slots says how many copy side by side; partitions are shared out by Spark",
    "tasks.max.enforce": "mirrorlake.slots says how many copy side by side",
    "consumer.poll.timeout.ms": "a plan says what is to be read; nobody polls",
    "admin.timeout.ms": "mirrorlake.connect.timeout.ms bounds every request",
    "key.converter": BATCHES,
    "value.converter": BATCHES,
    "header.converter": BATCHES,
    "dedicated.mode.enable.internal.rest": WORKER,
    "listeners": WORKER,
    "name": WORKER,
    "config.action.reload": WORKER,
    "scheduled.rebalance.max.delay.ms": WORKER,
    "metric.names.formats": "metrics are rows in Delta",
    "metric.reporters": "metrics are rows in Delta",
    "client.id": "clients are called after their flow and role",
}
NEEDLESS_BELOW = (
    "offset.storage.",
    "offset.flush.",
    "config.storage.",
    "status.storage.",
    "worker.",
    "task.",
    "topic.creation.",
    "errors.",
)

MISSING = {
    "topic.filter.class": "use topics and topics.exclude",
    "group.filter.class": "use groups and groups.exclude",
    "config.property.filter.class": "use config.properties.exclude",
    "forwarding.admin.class": "topics are managed through Kafka itself",
}
MISSING_BELOW = ("transforms", "predicates")


@dataclass(frozen=True)
class Line:
    """What becomes of one property of a file."""

    name: str
    status: str
    why: str = ""

    @property
    def warning(self) -> str | None:
        """What to tell somebody who may count on it; None if it does what they expect."""
        what = {NOT_SUPPORTED: "MirrorMaker 2's and not supported", UNKNOWN: "unknown"}.get(self.status)
        return what and f"property {self.name} is {what}; it has no effect" + (f" ({self.why})" if self.why else "")


def look_up(name: str, plain: str) -> Line:
    """What becomes of `plain`, which the file calls `name` (with an alias or a flow in front)."""
    if plain in ACTED_ON or plain.startswith(ACTED_ON_BELOW):
        return Line(name, SUPPORTED)
    if plain in NEEDLESS or plain.startswith(NEEDLESS_BELOW):
        return Line(name, NOT_NEEDED, NEEDLESS.get(plain, WORKER))
    if plain in MISSING or plain.startswith(MISSING_BELOW):
        return Line(name, NOT_SUPPORTED, MISSING.get(plain, "use mirrorlake.transforms, which are Spark SQL"))
    near = difflib.get_close_matches(plain, ACTED_ON | NEEDLESS.keys() | MISSING.keys(), 1, cutoff=0.8)
    return Line(name, UNKNOWN, f"did you mean {near[0]}?" if near else "")
