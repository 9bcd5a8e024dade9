from tests.kafka.conftest import plain_world  # noqa: F401
