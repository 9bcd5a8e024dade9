"""What holds back a part of a flow: recorded once, measured for as long as it lasts."""

from __future__ import annotations

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.observation.holdups import LONG_MS, Holdups
from mirrorlake.jobs.mirror.planning.uncommitted import WaitingFor
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.metrics import Metrics

FLOW = Flow.from_properties(
    Properties(
        {
            "clusters": "a, b",
            "a.bootstrap.servers": "a:1",
            "b.bootstrap.servers": "b:1",
            "a->b.enabled": "true",
        }
    ),
    "a->b",
)
BEGAN_MS = 1_700_000_000_000


class Job:
    """The driver's side, with a clock that the test sets."""

    def __init__(self) -> None:
        self.metrics, self.rows, self.now_ms = Metrics(), list[Anomaly](), BEGAN_MS
        self.holdups = Holdups(FLOW, self.metrics, self.rows.extend, lambda: self.now_ms / 1000)

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"mirrorlake_{name}", {"flow": "a->b"})


def waiting(offset: int = 7) -> WaitingFor:
    return WaitingFor("t", 0, offset, BEGAN_MS, "transactional.id x, producer id 4")


def test_a_transaction_is_measured_while_it_is_open_and_recorded_once_when_it_lasts() -> None:
    job = Job()
    job.holdups.transactions(12, [waiting()])
    assert (job.value("uncommitted_records"), job.value("open_transaction_age_seconds")) == (12, 0)
    job.now_ms += LONG_MS - 1_000
    job.holdups.measure()
    assert job.value("open_transaction_age_seconds") == LONG_MS / 1000 - 1
    assert not job.rows
    for _ in range(3):
        job.now_ms += 1_000
        job.holdups.measure()
        job.holdups.transactions(12, [waiting()])
    (row,) = job.rows
    assert (row.kind, row.topic, row.partition, row.from_offset) == ("open_transaction", "t", 0, 7)
    assert "transactional.id x, producer id 4" in row.detail
    job.holdups.transactions(0, [])
    assert (job.value("uncommitted_records"), job.value("open_transaction_age_seconds")) == (0, 0)
    job.holdups.transactions(3, [waiting(offset=20)])
    assert len(job.rows) == 2, "another transaction"


def test_a_topic_and_a_partition_are_recorded_when_they_are_held_and_for_each_new_reason() -> None:
    job = Job()
    for reason in ("no READ", "no READ", "no WRITE"):
        job.holdups.topics({"t": reason})
        job.holdups.partitions({("u", 1): reason})
    assert [(row.topic, row.partition, row.detail) for row in job.rows] == [
        ("t", None, "no READ"),
        ("u", 1, "no READ"),
        ("t", None, "no WRITE"),
        ("u", 1, "no WRITE"),
    ]
    assert (job.value("held_topics"), job.value("held_partitions")) == (1, 1)
    job.holdups.topics({})
    job.holdups.partitions({})
    assert (job.value("held_topics"), job.value("held_partitions")) == (0, 0)
