"""Results as tables, for the terminal and for docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.contestants import MIRRORLAKE, TITLES
from bench.summary import stages

KINDS = {
    "backlog": {
        "records_per_s": "records/s",
        "cpu_s_per_million": "CPU s per million",
        "java_cpu_s_per_million": "of that in a JVM",
        "source_broker_cpu_s_per_million": "source broker",
        "target_broker_cpu_s_per_million": "target broker",
        "peak_mib": "peak MiB",
    },
    "trickle": {
        "latency_p50_s": "p50 s",
        "latency_p99_s": "p99 s",
        "latency_max_s": "max s",
        "cpu_share": "CPU s per s",
        "peak_mib": "peak MiB",
    },
    "freshness": {
        "moved_p50_s": "moved: p50 s",
        "moved_max_s": "moved: max s",
        "exact_p50_s": "exact: p50 s",
        "exact_max_s": "exact: max s",
        "read_again": "records read again",
        "peak_mib": "peak MiB",
    },
    "groups": {"in_place_s": "in place after s", "cycle_s": "one cycle s", "peak_mib": "peak MiB"},
}
RATIOS = {
    "speed_over": "{value:.2f} times the records/s of {other}",
    "cpu_of": "{value:.2f} of the CPU per record of {other}",
    "time_of_ceiling": "{value:.2f} times the time of the bare ceiling",
    "cpu_of_ceiling": "{value:.2f} times the CPU per record of the bare ceiling",
}


def lines(results: Mapping[str, Any]) -> list[str]:
    """Formats all results as Markdown: a table for each case, mirrorlake's ratios, and its time by stage."""
    found = []
    for name, case in results["cases"].items():
        found += [f"**{name}**: {_settings(case['settings'])}", "", *_table(case), ""]
        said = [_ratio(key, value) for key, value in case["ratios"].items()] if case["kind"] == "backlog" else []
        found += [f"mirrorlake: {'; '.join(said)}.", ""] if said else []
        shares = _stages(case)
        found += [shares, ""] if shares else []
    return found[:-1]


def sizing(results: Mapping[str, Any]) -> list[str]:
    """Formats the CPU of mirrorlake in each backlog between near clusters as a table, for docs/operations.md."""
    found = [
        "| records | case | CPU s per million | so 100,000 records/s take | MB/s for each core |",
        "|---|---|---:|---:|---:|",
    ]
    for name, case in results["cases"].items():
        ours, settings = case["medians"].get(MIRRORLAKE), case["settings"]
        if case["kind"] != "backlog" or "round_trip_ms" in settings or not ours:
            continue
        what = f"{settings['bytes']:,} B, {settings['codec']}, batches of {settings['batch_records']:,}"
        seconds = float(f"{ours['cpu_s_per_million']:.2f}")
        found.append(
            f"| {what}, {settings['partitions']} partitions | {name} | {seconds:.2f} | {seconds / 10:.3f} cores | "
            f"{settings['bytes'] / seconds:.0f} |"
        )
    return found


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in settings.items()
    )


def _table(case: Mapping[str, Any]) -> list[str]:
    columns = KINDS[case["kind"]]
    rows = [f"| | {' | '.join(columns.values())} | rounds |", f"|---|{'---:|' * (len(columns) + 1)}"]
    for contestant, rounds in ((name, case["rounds"][name]) for name in TITLES if name in case["rounds"]):
        values = case["medians"].get(contestant, {})
        good = sum("error" not in result for result in rounds)
        rows.append(f"| {TITLES[contestant]} | {' | '.join(_number(values.get(name)) for name in columns)} | {good} |")
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _ratio(name: str, value: float) -> str:
    if name in RATIOS:
        return RATIOS[name].format(value=value)
    kind, other = next(
        (kind, name.removeprefix(f"{kind}_")) for kind in ("speed_over", "cpu_of") if name.startswith(f"{kind}_")
    )
    return RATIOS[kind].format(value=value, other=TITLES[other])


def _stages(case: Mapping[str, Any]) -> str:
    if case["kind"] not in ("backlog", "trickle"):
        return ""
    total = stages(case["rounds"].get(MIRRORLAKE, []))
    whole = sum(total.values())
    return (
        "Its micro-batches: " + ", ".join(f"{name} {100 * value / whole:.0f} %" for name, value in total.items()) + "."
        if whole
        else ""
    )
