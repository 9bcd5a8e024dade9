"""The report of a copying task about its slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mirrorlake.protocol import transaction


@dataclass(frozen=True)
class SlotReport:
    """The report that a copying task returns about its slot.

    While `is_open` is true, the transaction waits for the driver's decision. `stretches` holds the plain values of each
    Stretch, for the gate; `warnings` holds messages for the operator. `stages_ms` has three stages:

    - `begin`: until the task knows its range;
    - `move`: reading and writing;
    - `state`: until the target has the slot's new state.

    `throttled_ms` has the time for which the brokers of the source and of the target have throttled the task.
    """

    slot: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_open: bool
    stretches: list[dict[str, Any]]
    warnings: list[str]
    stages_ms: dict[str, float] = field(default_factory=dict)
    throttled_ms: dict[str, float] = field(default_factory=dict)

    @property
    def producer(self) -> transaction.Producer:
        """Returns the producer of the slot's transaction."""
        return transaction.Producer(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Returns the runs of all stretches."""
        return [run for stretch in self.stretches for run in stretch["runs"]]
