"""Local clusters, as developers and tests start them."""

from pathlib import Path

import pytest
from mirrorlake.errors import ConfigurationError
from mirrorlake.local.cluster import LocalCluster


def test_a_broker_that_ends_while_it_starts_says_why(root: Path, tmp_path: Path) -> None:
    cluster = LocalCluster("a", tmp_path, root / ".local/jars/kafka", properties={"metric.reporters": "none.such"})
    with pytest.raises(ConfigurationError, match=r"broker 1 has died:(.|\n)*ClassNotFoundException.* none\.such"):
        cluster.start()
    assert not cluster.is_running(1)
