"""The invariants of the protocol, in words."""

from __future__ import annotations

from enum import StrEnum


class Invariant(StrEnum):
    """What holds in every world that the model can reach, and in every trace of a real flow."""

    ONCE = "a reader of the target gets each record of a partition once, and in order"
    TRUE = "the positions of the flow are the ends of what a reader gets"
    KNOWN = "a transaction that its driver counts as committed is committed"
    GATED = "no record becomes visible that the gate has not passed"
    GENERATIONS = "the generations of a slot only grow, and one job has each of them"
    FENCED = "once a generation is open in every slot, an earlier one makes no record visible"
    CLOSED = "no job copies in a flow that was closed"
    RESUMES = "wherever everything stops, a new job alone copies the rest and leaves no transaction open"
