"""The report of a copying task about its slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mirrorlake.protocol import transaction


@dataclass(frozen=True)
class SlotReport:
    """What a task returns about its slot. While `is_open`, the transaction waits for the driver's decision.

    `stretches` are the plain values of each Stretch, for the gate to look at; `warnings` what people should know.
    `stages_ms`: `begin`, until it is known what is to be done; `move`, reading and writing; `state`, until the target
    has the slot's new state.
    """

    slot: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_open: bool
    stretches: list[dict[str, Any]]
    warnings: list[str]
    stages_ms: dict[str, float] = field(default_factory=dict)

    @property
    def producer(self) -> transaction.Producer:
        return transaction.Producer(self.transactional_id, self.producer_id, self.producer_epoch)
