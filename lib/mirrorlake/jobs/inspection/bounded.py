"""Runs looks at clusters side by side, each within its own deadline: a silent peer holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from mirrorlake.errors import MirrorlakeError, unexpected

TaskKey = TypeVar("TaskKey")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What one task has returned: its value, or the error that ended it; neither if it was late."""

    value: Value | None = None
    error: MirrorlakeError | None = None

    @property
    def is_late(self) -> bool:
        return self.value is None and self.error is None


def bounded(
    tasks: Mapping[TaskKey, Callable[[], Value]], deadline_s: float, at_once: int = 16
) -> dict[TaskKey, Answer[Value]]:
    """Runs tasks in threads, and returns the answer of each one.

    A task that has not ended `deadline_s` after its own start is late. Its thread is left alone: it ends with its
    requests, or with this process.

    Args:
        tasks: functions without arguments, which return a value other than None.
        deadline_s: the longest time of one task.
        at_once: the number of tasks that run at the same time.
    """
    answers: dict[TaskKey, Answer[Value]] = {}
    waiting = list(reversed(list(tasks.items())))
    running: dict[TaskKey, float] = {}  # the deadlines, on the monotonic clock
    changed = threading.Condition()

    def run(key: TaskKey, task: Callable[[], Value]) -> None:
        try:
            answer = Answer(task())
        except MirrorlakeError as error:
            answer = Answer(error=error)
        except Exception as error:
            answer = Answer(error=unexpected(str(key), error))
        with changed:
            if running.pop(key, None) is not None:  # else it was late
                answers[key] = answer
            changed.notify()

    with changed:
        while waiting or running:
            while waiting and len(running) < at_once:
                key, task = waiting.pop()
                running[key] = time.monotonic() + deadline_s
                threading.Thread(target=run, args=(key, task), daemon=True).start()
            changed.wait(max(0.0, min(running.values()) - time.monotonic()))
            for key in [key for key, deadline in running.items() if deadline <= time.monotonic()]:
                del running[key]
                answers[key] = Answer()
    return {key: answers[key] for key in tasks}
