"""Medians of the rounds, and the ratios that have limits."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.contestants import CEILING, MIRRORLAKE, MM2_DEFAULT, MM2_DEFAULT_EOS, MM2_TUNED, MM2_TUNED_EOS

OTHERS = (MM2_DEFAULT, MM2_DEFAULT_EOS, MM2_TUNED, MM2_TUNED_EOS)


def medians(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Returns the median of every figure of every contestant, over the rounds without an error."""
    found: dict[str, dict[str, float]] = {}
    for contestant, results in rounds.items():
        good = [result for result in results if "error" not in result]
        names = dict.fromkeys(
            name for result in good for name, value in result.items() if isinstance(value, int | float)
        )
        if good:
            found[contestant] = {
                name: statistics.median(result[name] for result in good if name in result) for name in names
            }
    return found


def ratios(case: Mapping[str, Any]) -> dict[str, float]:
    """Computes the figures of a case that have limits.

    For a backlog, they are the ratios of mirrorlake to each other contestant. For the other kinds, they are
    mirrorlake's own times.
    """
    found, ours = case["medians"], case["medians"].get(MIRRORLAKE)
    if not ours:
        return {}
    if case["kind"] != "backlog":
        names = {
            "trickle": ("latency_p50_s", "latency_p99_s"),
            "freshness": ("exact_p50_s", "exact_max_s"),
            "groups": ("in_place_s", "cycle_s"),
        }[case["kind"]]
        return {name: ours[name] for name in names if name in ours}
    result = {}
    for other in (name for name in OTHERS if name in found):
        result[f"speed_over_{other}"] = ours["records_per_s"] / found[other]["records_per_s"]
        result[f"cpu_of_{other}"] = ours["cpu_s_per_million"] / found[other]["cpu_s_per_million"]
    if CEILING in found:
        result["time_of_ceiling"] = found[CEILING]["records_per_s"] / ours["records_per_s"]
        result["cpu_of_ceiling"] = ours["cpu_s_per_million"] / found[CEILING]["cpu_s_per_million"]
    return result


def stages(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sums up the time of mirrorlake's micro-batches by stage, in milliseconds, over all rounds.

    The first micro-batch of each round is left out, because it warms up. So are those of the trickle before a backlog:
    they leave nothing behind. `between` is the time from the end of one micro-batch to the beginning of the next.
    """
    total: dict[str, float] = {}
    for result in results:
        history = result.get("job", {}).get("history", [])
        begin = next((at for at, done in enumerate(history) if done.get("lag")), 0)
        for before, done in itertools.pairwise(history[begin:]):
            between = {"between": 1000 * max(0.0, done["finished_at"] - done["seconds"] - before["finished_at"])}
            whole = {
                name: value for name, value in done["stages_ms"].items() if "." not in name
            }  # names with a dot are parts of these
            for name, value in {**whole, **between}.items():
                total[name] = total.get(name, 0.0) + value
    return total
