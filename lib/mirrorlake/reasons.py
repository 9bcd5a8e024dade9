"""Reasons for which a topic, a partition or a group's position waits, as logs, tables and results show them.

The value of each is its text, with names in braces. docs/troubleshooting.md has a row for each, with what to do.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A reason with names in braces."""

    def about(self, **names: object) -> str:
        """Returns the text, with these names in the place of the braces."""
        return self.value.format(**names)


class TopicHeld(Reason):
    """Reasons for which a mirror job holds a topic while it mirrors the others, beside refusals of the target."""

    NOT_PERMITTED = (
        "flow {flow}: topic {topic} (needs {operation}): the principal of cluster {cluster} lacks a permission on this "
        "TOPIC; grant it"
    )
    FEWER_PARTITIONS = "flow {flow}: topic {remote} on cluster {target} does not have all {partitions} partitions yet"
    OCCUPIED = (
        "flow {flow}: topic {remote}, partition {partition} on cluster {target} holds records already, but "
        "{offset_syncs} has no position for the partition. The flow might copy these records a second time. If "
        "MirrorMaker 2 wrote them, take the flow over. If other programs write to the topic on purpose, set "
        "mirrorlake.topics.shared = true. If {offset_syncs} was lost, restore it. Otherwise delete the remote topics, "
        "or choose another alias"
    )
    UNREAD = (
        "flow {flow}: the leader of topic {remote}, partition {partition} on cluster {target} does not answer, so it "
        "is not known whether the topic holds records of others: {error}"
    )
    UNFIT = (
        "flow {flow}: topic {remote} on cluster {target} would not keep records as they are (timestamps, compression "
        "or size), and that can't be changed now: {error}"
    )
    NAME_NOT_VALID = (
        "flow {flow}: topic {topic} would be called '{remote}' on cluster {target}, which is not a valid topic name (1 "
        "to 249 letters, digits, . _ -, and not an internal topic). Correct the replication policy, or exclude the "
        "topic (topics.exclude)"
    )
    NAME_TAKEN = (
        "flow {flow}: topics {topic} and {other} would both be called {remote} on cluster {target}. Correct the "
        "replication policy. To merge both topics, set mirrorlake.topics.shared = true"
    )


class PartitionHeld(Reason):
    """Reasons for which a partition does not advance while the others do."""

    NO_LEADER = "the leader of {topic}-{partition} does not answer: {error}"
    SLOT_FAILS = (
        "slot {slot} has committed nothing since {since}: each attempt fails (slots_failed in the log names the error)"
    )
    STANDS_STILL = "nothing was copied from offset {offset} on since {since}, though the log goes on"


class PositionReason(Reason):
    """Reasons that the checkpoint job gives for the status of a position, or for what it did about it on the target."""

    # the position is known on the target only in part, or not at all
    PAST_THE_LOG = "past the end of the source log"
    LEDGER_BEHIND = "the ledger is behind the mirror"
    PAST_THE_MIRROR = "past what is mirrored"
    FORMER_LOG = (
        "the log has begun anew on the source, and the group's offset is past its end; the group gets an offset once "
        "it has committed one of the new log"
    )
    NO_RUN = (
        "the map has no record of the partition; the group gets an offset once it has read what was mirrored before"
    )
    NO_REMOTE = (
        "the remote topic or its partition does not exist yet (or DESCRIBE is missing); the group gets an offset once "
        "the mirror job has made it"
    )
    NOT_BEGUN = (
        "the remote partition has records, and the mirror job has not begun it; the group gets an offset once the "
        "mirror job, or a take-over, has"
    )
    REMOTE_UNREAD = "the target does not tell the end of the remote partition now; the group gets an offset once it has"
    REMOTE_REPLACED = (
        "the remote topic is not the one that the mirror job has written: it was created anew; the group gets an "
        "offset once the mirror job has filled it again"
    )
    RECREATED = (
        "the topic was created anew on the source, and the mirror job has not begun the new one; the group gets an "
        "offset once it has"
    )
    TRUNCATED = (
        "the log on the source ends before what is mirrored of it, so it was truncated, and the offset may be that of "
        "a new record; the group gets an offset once the mirror job has found where the logs differ"
    )
    NO_SPARK = "the position is before the runs that this job has in memory, and it runs without Spark"
    SCATTERED = (
        "the topic's transform sets the partition, so no single offset on the target corresponds to the position"
    )
    SHARE_GROUP = (
        "a share group (KIP-932) has no committed offset for each partition; on the target it starts at its "
        "share.auto.offset.reset"
    )
    NOT_OF_FLOW = "the topic does not belong to the flow"
    OF_FLOW_BACK = "the topic belongs to the flow back; a failover moves the group by that flow's map"
    NO_TOPIC = "the topic does not exist on the source"
    NOT_PERMITTED = (
        "not authorised: the principal needs DESCRIBE on the topic on the source, which hides the group's offset; the "
        "last one that was read is kept"
    )

    UNREAD = "the source does not tell the group's offsets now; the last ones that were read are kept"
    LOG_UNREAD = "the source does not tell the ends of the partition's log now; the group's last offset is kept"

    # the position is known, and its record is gone on the target
    PASSED_BY_RETENTION = (
        "retention on the target has deleted the record at its offset; the group continues at the start of that log"
    )

    # the position is known, and the group stays where it is on the target
    TARGET_UNREAD = "the target does not tell the group's state and offsets now"
    MEMBERS = "a consumer uses this group on the target"
    AHEAD = "the group is ahead on the target, at {offset}; the job never moves a group back there"
    SHARED = (
        "other programs write to the remote topic too (mirrorlake.topics.shared), so no single offset there "
        "corresponds to the group's position"
    )
    PROMOTED = "the topic was promoted: its groups continue on the target, and others write to the remote topic"
    GROUP_GONE = (
        "the group has no committed offset on the source any more (it was deleted, or its offsets have expired); it "
        "stays on the target"
    )
    SHARED_NO_MORE = "the group was a share group, and has committed offsets of its own since"
    OFFSET_GONE = (
        "the group has no committed offset in this partition on the source any more (it has expired, or the topic was "
        "deleted); its offset on the target stays"
    )

    # the target has answered the commit
    MOVED_BACK = "its owner moved the group back on the source, from {before} to {offset}"
    JOINED = "a consumer has joined this group on the target"
    NOT_AUTHORISED = "not authorised: the principal needs READ on this {resource}"


# Reasons of a cycle that could not read a position, and has kept the last one that was read.
KEPT = frozenset((PositionReason.UNREAD, PositionReason.LOG_UNREAD, PositionReason.NOT_PERMITTED))


NOT_LOOKED_AT = "not looked at: "  # a verification with such a partition is none of the whole flow


class NotCompared(Reason):
    """Reasons for which a verification does not compare a partition (`not_covered`)."""

    PROMOTED = PositionReason.PROMOTED.value
    TRANSFORMED = "transform {transform} changes the records"
    NOT_IN_MAP = "this version of the map has no record of the partition"
    CORRUPT = "the source has a corrupt batch, which the flow has passed over (table gaps) and Spark can't read past"
    UNREAD = NOT_LOOKED_AT + "cluster {cluster} does not tell the ends of {topic}-{partition} now: {error}"
