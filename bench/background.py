"""Work beside a measurement, in a thread of its own."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """Runs `work` for the length of a block; `work` must end soon after `stopping` is set."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self.work, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()
