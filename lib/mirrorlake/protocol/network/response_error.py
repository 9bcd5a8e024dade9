"""Errors of requests: lost connections and silence, and responses with an error code."""

from __future__ import annotations

import kafka.errors

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.error_codes import RETRIABLE, UNAUTHORIZED, ErrorCode

WireError = (
    kafka.errors.KafkaError
)  # lost connections, timeouts and the like, in contrast to a response with an error code

# UnknownBrokerIdError: the metadata name a leader that is no longer a broker. It has just died or been replaced.
# KafkaProtocolError: a response was damaged on its way.
PASSING = (
    kafka.errors.RetriableError,
    kafka.errors.KafkaConnectionError,
    kafka.errors.KafkaTimeoutError,
    kafka.errors.UnknownBrokerIdError,
    kafka.errors.KafkaProtocolError,
)


class SilentBrokerError(kafka.errors.KafkaTimeoutError):  # type: ignore[misc]  # kafka-python has no types
    """Raised when a broker does not answer in time. The request may still be answered."""


class ResponseError(Exception):
    """Raised inside this package when a response carries an error code.

    `code` is Kafka's error code and `name` its name. `key` is the partition, if the error is about one.
    """

    def __init__(self, code: int, detail: str = "", key: PartitionKey | None = None) -> None:
        self.code = code
        self.key = key
        self.name = kafka.errors.for_code(code).__name__
        self.retriable = code in RETRIABLE
        super().__init__(f"{self.name} ({code})" + (f": {detail}" if detail else ""))


def check(code: int, detail: str = "", key: PartitionKey | None = None) -> None:
    """Raises ResponseError for every error code except 0."""
    if code:
        raise ResponseError(code, detail, key)


def repeatable(code: int, detail: str = "") -> ResponseError:
    """Returns the error of a request that does no harm if it is repeated.

    UNKNOWN_SERVER_ERROR is retriable then, as for Kafka's consumers: a broker answers it to any unexpected exception.
    """
    error = ResponseError(code, detail)
    error.retriable = error.retriable or code == ErrorCode.UNKNOWN
    return error


def check_repeatable(code: int, detail: str = "") -> None:
    """Raises ResponseError for every error code except 0 of a request that does no harm if it is repeated."""
    if code:
        raise repeatable(code, detail)


def is_unauthorized(error: Exception) -> bool:
    """Returns True if the error is a missing permission on a topic."""
    return getattr(error, "code", 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def is_denied(error: Exception) -> bool:
    """Returns True if the error is a missing permission on any resource."""
    return getattr(error, "code", 0) in UNAUTHORIZED


def may_pass(error: Exception) -> bool:
    """Returns True if the same request may succeed later."""
    if isinstance(error, ResponseError):
        return error.retriable
    if isinstance(
        error,
        kafka.errors.SaslAuthenticationFailedError
        | kafka.errors.AuthorizationError
        | kafka.errors.UnsupportedVersionError,
    ):
        return False
    return isinstance(error, PASSING)
