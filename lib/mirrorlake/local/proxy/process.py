"""The process of a proxy (`control.py`): carries bytes between clients and brokers.

The line between them can be changed while it runs.

Standard input has one JSON object a line: first `{"routes": {port: {...}}}`, then commands. Each is answered by one
line on standard output. The process ends with its standard input. With `knows_requests`, a route reads Kafka's frames
(`dialogue.py`), and makes the faults of single requests by its rules (`faults.py`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.local.proxy.dialogue import Dialogue
from mirrorlake.local.proxy.faults import Rule, Rules

HOST = "127.0.0.1"
CHUNK_BYTES = 256 << 10
BUFFER_BYTES = 64 << 20  # under way in one direction of a connection, without a window
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Take = Callable[[asyncio.StreamReader, int], Awaitable[bytes]]  # of at most so many bytes, as a rule


@dataclass
class Direction:
    """One direction of the line to a broker; all connections share its rate."""

    bytes: int = 0
    free_at: float = 0.0  # when the line has sent what was given to it

    def departs_at(self, size: int, bytes_per_s: int, now: float) -> float:
        """Returns the time at which the last of `size` bytes is sent, and occupies the line until then."""
        self.bytes += size
        self.free_at = max(now, self.free_at) + (size / bytes_per_s if bytes_per_s else 0.0)
        return self.free_at


@dataclass
class Route:
    """The line to one broker (`proxy.NetworkLine`), with its connections.

    `rules` are those of all routes of a proxy that knows requests. A late request arrives at `side_port`.
    """

    port: int
    broker_port: int
    side_port: int = 0
    rules: Rules | None = None
    delay_s: float = 0.0
    window_bytes: int = 0
    bytes_per_s: int = 0
    is_open: bool = True
    most_connections: int = 0
    accepted: int = 0
    to_broker: Direction = field(default_factory=Direction)
    to_client: Direction = field(default_factory=Direction)
    connections: set[ProxiedConnection] = field(default_factory=set)
    passes: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    late: set[asyncio.Task[None]] = field(default_factory=set)

    def dialogue(self, connection: ProxiedConnection) -> Dialogue | None:
        """Returns what reads the requests of a connection, None if the proxy does not know requests."""
        if self.rules is None:
            return None
        return Dialogue(connection, self.rules, self.side_port, self._keep)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    async def change(
        self,
        *,
        delay_ms: float,
        window_bytes: int,
        bytes_per_s: int,
        is_open: bool,
        is_silent: bool,
        most_connections: int,
    ) -> None:
        """Takes the properties of a `proxy.NetworkLine`."""
        self.delay_s, self.window_bytes, self.bytes_per_s = delay_ms / 1_000, window_bytes, bytes_per_s
        self.most_connections = most_connections
        (self.passes.clear if is_silent else self.passes.set)()
        if is_open and self.server is None:
            self.server = await asyncio.start_server(self._accept, HOST, self.port, limit=CHUNK_BYTES)
        elif not is_open and self.server is not None:
            self.server.close()
            self.server = None

    async def close(self) -> None:
        """Refuses new connections, and cuts those that are open."""
        if self.server is not None:
            self.server.close()
        connections = list(self.connections)
        for connection in connections:
            connection.cut()
        await asyncio.gather(*(connection.gone.wait() for connection in connections))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.most_connections and len(self.connections) >= self.most_connections:
            reset(writer)
            return
        connection = ProxiedConnection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            connection.gone.set()


class ProxiedConnection:
    """One client's connection, and the one to the broker that it leads to."""

    def __init__(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.route = route
        self.gone = asyncio.Event()
        self._client: End = (reader, writer)
        self._broker: End | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._is_half_open = False

    async def run(self) -> None:
        """Carries bytes in both directions until one end closes the connection."""
        no_delay(self._client[1])
        self._tasks = [asyncio.create_task(self._begin())]
        try:
            await self._ended.wait()
        finally:
            self.cut()

    async def _begin(self) -> None:
        await self.route.passes.wait()
        await asyncio.sleep(2 * self.route.delay_s)  # TCP's handshake
        try:
            broker = self._broker = await asyncio.open_connection(HOST, self.route.broker_port, limit=CHUNK_BYTES)
        except OSError:  # the broker's port is closed: so is this connection
            self._ended.set()
            return
        no_delay(broker[1])
        dialogue = self.route.dialogue(self)
        asked, answered = (dialogue.next_request, dialogue.next_answer) if dialogue else (take, take)
        self._tasks += [
            asyncio.create_task(self._carry(self._client[0], broker[1], self.route.to_broker, asked)),
            asyncio.create_task(self._carry(broker[0], self._client[1], self.route.to_client, answered)),
        ]

    def cut(self) -> None:
        """Closes both ends at once, as a reset does."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        for end in (self._client, self._broker):
            if end is not None:
                reset(end[1])

    def half_open(self) -> None:
        """Closes the broker's end; the client's stays open."""
        self._is_half_open = True
        for task in self._tasks:
            task.cancel()
        if self._broker is not None:
            reset(self._broker[1])
        # What the client sends is lost, and its own close ends the connection.
        self._tasks = [asyncio.create_task(self._drain())]

    async def _drain(self) -> None:
        try:
            while await self._client[0].read(CHUNK_BYTES):
                pass
        except OSError:
            pass
        self._ended.set()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction, next_piece: Take
    ) -> None:
        """Carries one direction: reads as far as the window allows, and delivers each piece when it is due."""
        loop = asyncio.get_running_loop()
        under_way = UnderWay()
        delivering = asyncio.create_task(self._deliver(under_way, writer))
        try:
            while True:
                room = await under_way.room(self.route.window_bytes or BUFFER_BYTES)
                data = await next_piece(reader, room)
                if not data:
                    break
                departs_at = way.departs_at(len(data), self.route.bytes_per_s, loop.time())
                under_way.put(data, departs_at + self.route.delay_s)
                if departs_at > loop.time():
                    await asyncio.sleep(departs_at - loop.time())
            under_way.put(b"", loop.time() + self.route.delay_s)
            await delivering
        except OSError:
            pass
        finally:
            delivering.cancel()
            if not self._is_half_open:
                self._ended.set()

    async def _deliver(self, under_way: UnderWay, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                due, data = await under_way.first()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self.route.passes.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
                loop.call_later(self.route.delay_s, under_way.acknowledge, len(data))
        except OSError:
            self._ended.set()


class UnderWay:
    """The pieces of one direction that have been read and not delivered, and the bytes not yet acknowledged."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._less = asyncio.Event()

    async def room(self, limit: int) -> int:
        """Waits until less than `limit` bytes are under way; returns the rest."""
        while self._bytes >= limit:
            self._less.clear()
            await self._less.wait()
        return limit - self._bytes

    def put(self, data: bytes, due: float) -> None:
        """Adds a piece, to be delivered at a time of the event loop; an empty one is the end."""
        self._pieces.append((due, data))
        self._bytes += len(data)
        self._news.set()

    async def first(self) -> tuple[float, bytes]:
        """Waits for the next piece, and takes it."""
        while not self._pieces:
            self._news.clear()
            await self._news.wait()
        return self._pieces.popleft()

    def acknowledge(self, size: int) -> None:
        """Takes bytes off the window."""
        self._bytes -= size
        self._less.set()


async def take(reader: asyncio.StreamReader, room: int) -> bytes:
    """Reads what there is, up to `room` bytes."""
    return await reader.read(min(room, CHUNK_BYTES))


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Sends small pieces at once."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection by RST, if it is open."""
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()


async def open_routes(routes: dict[int, Route], words: dict[str, Any]) -> None:
    """Opens the ports; `words` has the broker's ports of each, and whether the proxy knows requests."""
    rules = Rules() if words["knows_requests"] else None
    for port, given in words["routes"].items():
        route = routes[int(port)] = Route(int(port), given["broker_port"], given["side_port"], rules)
        await route.change(delay_ms=0, window_bytes=0, bytes_per_s=0, is_open=True, is_silent=False, most_connections=0)


async def obey(routes: dict[int, Route], words: dict[str, Any]) -> dict[str, Any]:
    """Does one command; returns its answer."""
    if "routes" in words:
        await open_routes(routes, words)
        return {}
    chosen = [routes[port] for port in words["ports"]]
    connections = [connection for route in chosen for connection in route.connections]
    match words["command"]:
        case "line":
            for route in chosen:
                await route.change(**words["line"])
        case "cut" | "half_open" as fault:
            for connection in connections:
                (connection.cut if fault == "cut" else connection.half_open)()
        case "arm":
            rules_of(chosen).arm(map(Rule.of_json, words["rules"]))
        case "faults":
            return counted(rules_of(chosen))
        case "traffic":
            return traffic(chosen)
        case unknown:
            return {"error": f"no command {unknown}"}
    return {}


def traffic(routes: list[Route]) -> dict[str, int]:
    """Returns the counters of `proxy.Traffic`."""
    return {
        "connections": sum(len(route.connections) for route in routes),
        "accepted": sum(route.accepted for route in routes),
        "sent_bytes": sum(route.to_broker.bytes for route in routes),
        "received_bytes": sum(route.to_client.bytes for route in routes),
        "late_requests": sum(len(route.late) for route in routes),
    }


def rules_of(routes: list[Route]) -> Rules:
    """Returns the rules, which all routes of a proxy share."""
    (rules,) = {id(route.rules): route.rules for route in routes}.values()
    if rules is None:
        raise OSError("it does not know requests")
    return rules


def counted(rules: Rules) -> dict[str, Any]:
    """Returns the requests seen and the faults made since the last call."""
    seen, made = rules.seen, rules.made
    rules.seen, rules.made = Counter(), Counter()
    return {"seen": seen, "made": [[*of, count] for of, count in made.items()]}


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    routes: dict[int, Route] = {}
    while words := await reader.readline():
        try:
            answer = await obey(routes, json.loads(words))
        except OSError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    await asyncio.gather(*(route.close() for route in routes.values()))


if __name__ == "__main__":
    asyncio.run(main())
