"""One connection of a proxy that knows Kafka's requests, and makes the faults of single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from mirrorlake.local.proxy import answers
from mirrorlake.local.proxy.faults import Fault, Rule, Rules
from mirrorlake.local.proxy.requests import Request, correlation_id, read_frame

HOST = "127.0.0.1"
LATE_ANSWER_S = 20.0
WITHIN_S = 0.05  # so that the part in front of a cut arrives

BEFORE = {Fault.LOST, Fault.CUT_BEFORE, Fault.CUT_WITHIN, Fault.LATE}
RECORDS = {
    Fault.CORRUPTED: answers.corrupted,
    Fault.CUT_OFF: answers.cut_off,
    Fault.LYING_LENGTH: answers.lying,
    Fault.MISPLACED: answers.misplaced,
}
# The broker does not apply these if they are refused; all other requests only read, or their answers can't be made.
WRITES = {"Produce", "OffsetCommit", "AddPartitionsToTxn", "EndTxn", "InitProducerId"}


class ClientConnection(Protocol):
    """The connection that the faults concern."""

    def cut(self) -> None:
        """Closes both ends."""

    def half_open(self) -> None:
        """Closes the broker's end."""


class Dialogue:
    """Takes frame by frame from both ends; returns what to pass on.

    Args:
        connection: the connection to cut.
        rules: decide which request has a fault.
        side_port: a port of the broker that needs no login, for requests that arrive over another connection.
        later: keeps a task until it is done.
    """

    def __init__(
        self,
        connection: ClientConnection,
        rules: Rules,
        side_port: int,
        later: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._connection, self._rules, self._side_port, self._later = connection, rules, side_port, later
        self._open: dict[int, tuple[Request, Rule | None, bytes]] = {}
        self._is_over = False

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        """Returns the next frame; nothing at the end, or after a frame that was cut off."""
        if self._is_over:
            await asyncio.sleep(WITHIN_S)
            self._connection.cut()
            return b""
        return await read_frame(reader)

    async def next_request(self, reader: asyncio.StreamReader, _room: int) -> bytes:
        """Returns the bytes for the broker; nothing at the end."""
        frame = await self._frame(reader)
        if not frame:
            return b""
        request = Request.of(frame)
        rule = self._rules.fault_of(request)
        prepared = b""
        if rule is not None:
            if rule.fault is Fault.DELAYED:
                self._rules.note(rule)
                await asyncio.sleep(rule.delay_ms / 1000)
            elif rule.fault in BEFORE:
                self._rules.note(rule)
                return await self._stopped(request, rule)
            elif rule.fault is Fault.REFUSED and request.api in WRITES:
                try:
                    prepared, frame = answers.refusal(request, rule.code), request.placeholder
                except answers.UnalterableError:
                    rule = None
            elif rule.fault is Fault.DOUBLED:
                self._rules.note(rule)
                self._deliver(request, rule)
        self._open[request.correlation_id] = request, rule, prepared
        return frame

    async def next_answer(self, reader: asyncio.StreamReader, _room: int) -> bytes:
        """Returns the bytes for the client; nothing at the end."""
        frame = await self._frame(reader)
        if not frame:
            return b""
        request, rule, prepared = self._open.pop(correlation_id(frame), (None, None, b""))
        if request is None or rule is None or rule.fault in (Fault.DELAYED, Fault.DOUBLED):
            return frame
        match rule.fault:
            case Fault.ANSWER_DELAYED:
                await asyncio.sleep(rule.delay_ms / 1000)
            case Fault.CUT_AFTER:
                self._connection.cut()
                frame = b""
            case Fault.CUT_WITHIN_ANSWER:
                self._is_over = True
                frame = frame[: len(frame) // 2]
            case Fault.HALF_OPEN:
                self._connection.half_open()
                frame = b""
            case _:
                try:
                    frame = prepared or self._altered(request, rule, frame)
                except answers.UnalterableError:
                    return frame
        self._rules.note(rule)
        return frame

    def _altered(self, request: Request, rule: Rule, frame: bytes) -> bytes:
        if rule.fault is Fault.THROTTLED:
            return answers.with_pause(request, frame, rule.delay_ms)
        if rule.fault in RECORDS:
            return answers.with_records(request, frame, partial(RECORDS[rule.fault], pick=rule.pick))
        return answers.with_error(request, frame, rule.code, rule.pick)

    async def _stopped(self, request: Request, rule: Rule) -> bytes:
        """Makes a fault after which the connection carries no further request."""
        match rule.fault:
            case Fault.LOST:
                self._connection.half_open()
            case Fault.CUT_WITHIN:
                self._is_over = True
                return request.frame[: len(request.frame) // 2]
            case Fault.LATE:
                self._deliver(request, rule)
                self._connection.cut()
            case _:
                self._connection.cut()
        return b""

    def _deliver(self, request: Request, rule: Rule) -> None:
        self._later(asyncio.create_task(delivered_late(self._side_port, request.frame, rule.delay_ms / 1000)))


async def delivered_late(port: int, frame: bytes, delay_s: float) -> None:
    """Sends a request to a broker after a while, over a connection of its own."""
    await asyncio.sleep(delay_s)
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return
    try:
        writer.write(frame)
        await writer.drain()
        await asyncio.wait_for(read_frame(reader), LATE_ANSWER_S)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
