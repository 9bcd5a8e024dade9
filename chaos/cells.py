"""The cells of the coverage table: each kind of request that mirrorlake sends, by each fault that it can have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirrorlake.local.proxy.faults import Fault
from mirrorlake.protocol.error_codes import ErrorCode as Code

OLDER_EACH = 5  # each fifth seed has a target with the transaction protocol of Kafka 3
NOT_CONTROLLER = 41

COORDINATOR = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
LEADER = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.KAFKA_STORAGE_ERROR,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
)

# The errors that a broker may answer to a request, and that pass. A request without any can't be refused.
CODES: Mapping[str, tuple[int, ...]] = {
    "Fetch": (*LEADER, Code.OFFSET_NOT_AVAILABLE, Code.UNKNOWN, Code.UNKNOWN_TOPIC_ID),
    "ListOffsets": (*LEADER, Code.LEADER_NOT_AVAILABLE, Code.OFFSET_NOT_AVAILABLE, Code.UNKNOWN),
    "Metadata": (Code.LEADER_NOT_AVAILABLE,),
    "Produce": (
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.UNKNOWN,
        Code.CONCURRENT_TRANSACTIONS,
    ),
    "FindCoordinator": (Code.COORDINATOR_NOT_AVAILABLE,),
    "InitProducerId": (*COORDINATOR, Code.CONCURRENT_TRANSACTIONS, Code.UNKNOWN),
    "EndTxn": (*COORDINATOR, Code.CONCURRENT_TRANSACTIONS, Code.UNKNOWN),
    "AddPartitionsToTxn": (*COORDINATOR, Code.CONCURRENT_TRANSACTIONS),
    "OffsetFetch": COORDINATOR,
    "OffsetCommit": (*COORDINATOR, Code.REQUEST_TIMED_OUT),
    "ListGroups": (*COORDINATOR[:2], Code.UNKNOWN),
    "DescribeGroups": COORDINATOR,
    "CreateTopics": (NOT_CONTROLLER, Code.REQUEST_TIMED_OUT),
    "CreatePartitions": (NOT_CONTROLLER, Code.REQUEST_TIMED_OUT),
    "DescribeConfigs": (Code.REQUEST_TIMED_OUT,),
    "IncrementalAlterConfigs": (NOT_CONTROLLER, Code.REQUEST_TIMED_OUT),
}
WRITES = frozenset(
    "Produce EndTxn InitProducerId AddPartitionsToTxn OffsetCommit CreateTopics CreatePartitions "
    "IncrementalAlterConfigs".split()
)
# Writes that the proxy can refuse in place of the broker, and that it can deliver late.
REFUSABLE = frozenset("Produce EndTxn InitProducerId AddPartitionsToTxn OffsetCommit".split())
LOGIN = frozenset({"SaslHandshake", "SaslAuthenticate"})
# How many requests of a kind may pass before the one with the fault; fewer than a job sends in a few seconds.
SKIPPED: Mapping[str, int] = {
    **dict.fromkeys(("CreateTopics", "CreatePartitions", "IncrementalAlterConfigs", "DescribeConfigs"), 0),
    "ListGroups": 0,  # the target is asked only while groups are not there yet
    **dict.fromkeys(("ApiVersions", "Produce"), 4),
    **dict.fromkeys(("EndTxn", "InitProducerId", "AddPartitionsToTxn", "FindCoordinator"), 1),
    **dict.fromkeys(("OffsetFetch", "OffsetCommit", "DescribeGroups"), 1),
}
MANY = 8  # of every other kind
ALWAYS = (
    Fault.DELAYED,
    Fault.ANSWER_DELAYED,
    Fault.LOST,
    Fault.CUT_BEFORE,
    Fault.CUT_WITHIN,
    Fault.CUT_AFTER,
    Fault.CUT_WITHIN_ANSWER,
    Fault.HALF_OPEN,
)
# What a counting run has seen mirrorlake send.
REQUESTS: Mapping[str, tuple[str, ...]] = {
    "source": (
        "ApiVersions",
        "Metadata",
        "ListOffsets",
        "Fetch",
        "FindCoordinator",
        "OffsetFetch",
        "ListGroups",
        "DescribeConfigs",
    ),
    "target": (
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "Metadata",
        "ListOffsets",
        "Fetch",
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "Produce",
        "EndTxn",
        "OffsetFetch",
        "OffsetCommit",
        "DescribeGroups",
        "ListGroups",
        "CreateTopics",
        "CreatePartitions",
        "DescribeConfigs",
        "IncrementalAlterConfigs",
    ),
}
SILENT = frozenset({Fault.LOST, Fault.HALF_OPEN})  # the connection is out of use until its requests time out


@dataclass(frozen=True)
class Cell:
    """A kind of request on one side, and a fault. `is_older` is True if only the older target has such requests."""

    side: str
    api: str
    fault: Fault
    is_older: bool | None = None


def faults_of(api: str) -> Iterator[Fault]:
    """Yields the faults that a kind of request can have."""
    yield from ALWAYS
    if api not in LOGIN:
        yield Fault.THROTTLED
    if api in CODES and (api in REFUSABLE or api not in WRITES):
        yield Fault.REFUSED
    if api in CODES and api in WRITES:
        yield Fault.MISREPORTED
    if api in REFUSABLE:
        yield from (Fault.LATE, Fault.DOUBLED)
    if api == "Fetch":
        yield from (Fault.CORRUPTED, Fault.CUT_OFF, Fault.LYING_LENGTH, Fault.MISPLACED)


def codes_of(cell: Cell) -> tuple[int, ...]:
    """Returns the error codes to choose from."""
    return CODES.get(cell.api, (0,))


def most_skipped(cell: Cell) -> int:
    """Returns how many such requests may pass before the one with the fault."""
    if cell.side == "source" and cell.api == "Fetch":
        return 1
    return SKIPPED.get(cell.api, MANY)


def _all() -> list[Cell]:
    found = [
        Cell(side, api, fault, api == "AddPartitionsToTxn" or None)
        for side, requests in REQUESTS.items()
        for api in requests
        for fault in faults_of(api)
        if not (side == "target" and api == "ListGroups" and fault in SILENT)  # it is sent before silent faults begin
    ]
    random.Random("cells").shuffle(found)
    return found


CELLS = _all()
