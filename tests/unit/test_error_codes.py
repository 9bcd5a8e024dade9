"""The names of Kafka's error codes, compared with those of another client."""

from __future__ import annotations

import kafka.errors
import pytest
from mirrorlake.protocol.error_codes import ErrorCode

# kafka-python still has names from before they were changed in Kafka (KIP-392, KIP-110).
FORMER_NAMES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    ErrorCode.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
}


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_code_has_the_name_that_kafka_gives_it(code: ErrorCode) -> None:
    assert kafka.errors.for_code(code).message == FORMER_NAMES.get(code, code.name)
