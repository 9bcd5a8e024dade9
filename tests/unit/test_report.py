"""The problems that the report names, and its formats."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace
from datetime import datetime, timedelta

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from mirrorlake.notebook.report import FlowReport, Report, ago
from mirrorlake.notebook.report_figures import STYLE, cards, gates_figure, lag_figure, table, verified_figure

from tests.nasty_names import NASTY

NOW = datetime(2026, 11, 20, 14, 0)
WELL = FlowReport("west->east", 100, 1_000, 0, NOW, NOW, 4, 0, 12, 0, NOW, 0, 0, 0, 0)


def test_a_flow_that_does_its_work_has_no_problems() -> None:
    assert WELL.problems(NOW) == []
    assert replace(WELL, records=0, lag=0).problems(NOW) == [], "nothing to do is no problem"
    assert replace(WELL, checkpointed_at=None, positions=None, verified_to=None).problems(NOW) == [], (
        "a job that nobody has set up is not missed"
    )
    ended = NOW - timedelta(days=3)
    silent = replace(WELL, mirrored_at=ended, checkpointed_at=ended, lag=9, records=0)
    assert len(silent.problems(NOW)) == 3
    assert replace(silent, is_closed=True).problems(NOW) == [], "a flow that was failed over is silent as it must be"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"refused": 2}, "a gate failed in 2 of 12 evaluations"),
        ({"anomalies": 1}, "1 anomaly"),
        ({"anomalies": 3, "losses": 1_250}, "3 anomalies, 1,250 records lost"),
        ({"failed_verifications": 2}, "a verification found differences, or nothing to compare, in 2 partitions"),
        ({"mirrored_at": NOW - timedelta(hours=3)}, "no activity of the mirror job for 3 h"),
        ({"checkpointed_at": NOW - timedelta(minutes=20)}, "no activity of the checkpoint job for 20 min"),
        ({"lag": 9_000, "records": 0}, "9,000 offsets of lag, and nothing was mirrored"),
    ],
)
def test_each_problem_is_named(change: dict[str, object], problem: str) -> None:
    assert replace(WELL, **change).problems(NOW) == [problem]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"), (200_000, "2 d")],
)
def test_spans_of_time_are_said_as_people_do(seconds: int, words: str) -> None:
    assert ago(timedelta(seconds=seconds)) == words


def test_what_comes_from_a_cluster_is_text_and_not_markup() -> None:
    shown = table(
        pd.DataFrame({"detail": ["<script>alert(1)</script>"], "records": [1_250.0], "partition": [None]}), "nothing"
    )
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "1,250" in shown


def test_names_are_text_in_the_report() -> None:
    anomalies = pd.DataFrame({"topic": NASTY.values(), "detail": NASTY.values(), "records": 1})
    flows, nothing = tuple(replace(WELL, flow=text) for text in NASTY.values()), pd.DataFrame()
    verified = pd.DataFrame(
        [{"flow": "a->b", "topic": text, "verified": 1, "unverified": 1} for text in NASTY.values()]
    )
    gates = pd.DataFrame(
        [{"flow": text, "suite": text, "at": NOW, "passed": 1, "refused": 1} for text in NASTY.values()]
    )
    lag = pd.DataFrame([{"flow": text, "at": NOW, "lag": 1} for text in NASTY.values()])
    since = NOW - timedelta(hours=1)
    report = Report(since, NOW, 60, flows, nothing, lag, nothing, nothing, gates, verified, anomalies)
    for page in (table(anomalies, "none"), cards(report).replace(STYLE, "")):
        assert not {"<script", "<img"} & {*re.findall("<[a-z]+", page)}
        assert all(char.isprintable() or char == "\n" for char in page)
        assert len(page) < 100_000
    for draw in (verified_figure, gates_figure, lag_figure):
        figure = draw(report)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fonts lack some of the characters
            figure.savefig(io.BytesIO(), dpi=20)
        plt.close(figure)
