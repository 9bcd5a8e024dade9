"""The demo, as far as it needs no cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from mirrorlake.demo import story
from mirrorlake.demo.run_notebook import in_words


def test_an_interrupt_leaves_no_traffic_and_no_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stops, notebook = list[threading.Event](), MagicMock()
    notebook.return_value.begun.wait.side_effect = KeyboardInterrupt
    monkeypatch.setattr(story, "home", lambda: tmp_path)
    monkeypatch.setattr(story, "AdminClient", MagicMock())
    monkeypatch.setattr(story, "Notebook", notebook)
    for work in ("produce", "consume"):
        monkeypatch.setattr(story, work, lambda _server, _what, stop: stops.append(stop))
    with pytest.raises(KeyboardInterrupt):
        story.show("a:1", "b:1", lambda _text: None)
    assert all(stop.is_set() for stop in stops)
    assert len(stops) == len(story.TOPICS) + len(story.READERS)
    assert notebook.return_value.end.call_count == 2


def test_a_log_line_without_fields_is_its_event() -> None:
    line = {"time": "", "level": "INFO", "logger": "", "event": "interrupted", "flow": "a->b"}
    assert in_words(line) == "interrupted"
    assert (
        in_words({**line, "level": "WARNING", "event": "topic_paused", "topic": "t"})
        == "warning: topic paused: topic t"
    )
