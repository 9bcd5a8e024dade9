"""Runs that are recognised by the digests of their batches, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mirrorlake.errors import SourceError
from mirrorlake.jobs.verification.run_digests import RawLog, has_digest
from mirrorlake.protocol.network.response_error import ResponseError
from mirrorlake.protocol.requests.fetch import Fetched

from tests.unit.test_record_batch import RECORDS, encode

BATCH, END = bytes(encode(RECORDS)), len(RECORDS)


class Log:
    """A cluster whose one log has one batch, and readers see it up to `stable_end`. A failed read is not repeated."""

    def __init__(self, stable_end: int) -> None:
        self.stable_end = stable_end

    def leader(self, *_: Any) -> int:
        return 1

    async def fetch(self, _: int, offsets: dict[tuple[str, int], int], **__: Any) -> Any:
        return offsets

    def fetched(self, response: dict[tuple[str, int], int]) -> Iterator[Fetched]:
        for key, at in response.items():
            yield Fetched(*key, 0, 0, self.stable_end, [], b"" if at >= END else BATCH)

    def call(self, what: str, attempt: Any, _: int) -> Any:
        try:
            return asyncio.run(attempt())
        except ResponseError as error:
            raise SourceError(f"{what}: {error}") from None


def test_a_log_that_ends_at_or_in_a_run_has_not_its_digest_and_is_compared_by_its_records() -> None:
    log = RawLog(Log(END), ("t", 0), "flow a->b", 1_000)  # type: ignore[arg-type]
    assert has_digest(log, begin=0, start=0, end=END + 5, digest=1) is None
    assert has_digest(log, begin=END, start=END, end=END + 5, digest=1) is None


def test_a_leader_that_returns_nothing_before_the_end_of_its_log_is_an_error_of_the_read() -> None:
    log = RawLog(Log(END + 5), ("t", 0), "flow a->b", 1_000)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=rf"returns no batch at offset {END}, below the end offset"):
        has_digest(log, begin=0, start=0, end=END + 5, digest=1)
