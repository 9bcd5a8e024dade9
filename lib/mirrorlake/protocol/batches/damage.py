"""Signs that a batch has arrived damaged."""

from __future__ import annotations

from mirrorlake.protocol.batches.record_batch import Batch, FetchedLog

SIGHTINGS = 5  # of the same damage, until it is the log that is damaged, and not what was sent of it


def damage_of(log: FetchedLog, number: int, batch: Batch, offset: int) -> str:
    """Returns what is wrong with a batch, of which `offset` or a later one is to be read next; empty if nothing is.

    The target gets another CRC and other offsets, so a corrupt batch would look healthy there.
    """
    if not batch.crc_is_right:
        return "CRC"
    return "" if log.fits(batch, number, offset) else "its offsets do not fit into the log"


def doubt_about(log: FetchedLog, number: int, batch: Batch, offset: int) -> str:
    """Returns why a batch whose offsets fit is believed only if it comes a second time; empty if there is no reason.

    A leader epoch that the leader can't have given yet is on the disk then. The records are whole, as the CRC says.

    Positions are at the ends of batches, except where a flow begins. Behind a hole, the next batch shows that the first
    offset is right, if the response has it.
    """
    if batch.magic < 2 or batch.end_offset <= offset:
        return ""
    if log.is_ahead(batch) and batch.leader_epoch != log.believed_epoch:
        return "the leader can't have given it its leader epoch"
    if batch.base_offset == offset:
        return ""
    if batch.base_offset < offset:
        return "it begins before the position"
    is_last = number + 1 == len(log) and batch.end_offset < log.stable_end
    return "it is behind a hole, and nothing is behind it" if is_last else ""
