"""The answers that the proxy makes in place of a broker."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from mirrorlake.local.proxy import answers
from mirrorlake.local.proxy.requests import Request

from chaos.cells import REFUSABLE

CODE = 51
PARTITIONS = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])
REQUESTS: dict[str, Any] = {
    "AddPartitionsToTxn": AddPartitionsToTxnRequest[3](
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[PARTITIONS],
    ),
    "EndTxn": EndTxnRequest[3](transactional_id="x", producer_id=1, producer_epoch=0, committed=True),
    "InitProducerId": InitProducerIdRequest[4](transactional_id="x", transaction_timeout_ms=1),
    "OffsetCommit": OffsetCommitRequest[8](group_id="g"),
    "Produce": ProduceRequest[9](transactional_id="x"),
}


@pytest.mark.parametrize("api", sorted(REFUSABLE))
def test_each_request_that_chaos_refuses_can_be_refused(api: str) -> None:
    body = REQUESTS[api]
    key, version = body.API_KEY, body.API_VERSION
    head = struct.pack(">hhih", key, version, 7, 1) + b"a\0"
    frame = head + bytes(body.encode(version=version))
    request = Request.of(struct.pack(">i", len(frame)) + frame)
    assert (request.api, request.version) == (api, version)
    answer = answers.refusal(request, CODE)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 7)
    if api in ("AddPartitionsToTxn", "EndTxn", "InitProducerId"):  # the others have an error for each partition
        assert struct.pack(">h", CODE) in answer
