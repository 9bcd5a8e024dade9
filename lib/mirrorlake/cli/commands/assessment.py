"""The command `assess`: what a flow would mirror and what not, before its first run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mirrorlake.cli import options, output, running
from mirrorlake.cli.exit_code import ExitCode
from mirrorlake.errors import MirrorlakeError

if TYPE_CHECKING:
    from mirrorlake.jobs.inspection.assessment.assess import Assessment

GROUP_FIELDS = ("group_id", "kind", "state", "positions", "elsewhere", "lag", "ahead", "left_out")
SHOWN = 30  # topics and groups of each table


@click.command()
@options.config
@options.flows
@options.parameter("mb_per_s", "50", "throughput to estimate the duration of the first run with, in MB/s")
@options.common
def assess(config: str, flow: str, mb_per_s: str) -> int:
    """Assess the source of a flow before its first run.

    Topics, sizes, groups, access, what is left out and why, duration. Reads the source, and changes nothing. Exits with
    8 if no topic would be mirrored, or if one of several flows can't be assessed.
    """
    from mirrorlake.jobs.inspection.assessment.assess import assess as assess_flow
    from mirrorlake.jobs.inspection.assessment.assess import throughput

    running.set_up_log("ERROR")
    mb, chosen = throughput(mb_per_s), options.choose(config, flow)
    found: list[Assessment] = []
    failures: dict[str, MirrorlakeError] = {}
    for name in chosen.names:
        try:
            found.append(assess_flow(options.load_flow(config, name), mb))
        except MirrorlakeError as error:
            failures[name] = error
    if failures and not found:
        raise next(iter(failures.values()))
    missing = {name: error.message for name, error in failures.items()}
    if output.is_json():
        output.emit("assess", {"flows": [_values(one) for one in found], "not_assessed": missing})
    else:
        for one in found:
            _show(one, config)
        for name, why in missing.items():
            output.say(f"not assessed: {name}: {options.typed(why, config)}")
    return ExitCode.OK if all(one.mirrored for one in found) and not failures else ExitCode.FINDINGS


def _values(found: Assessment) -> dict[str, Any]:
    topics, groups = (output.rows(table) for table in (found.topics_table(), found.groups_table()))
    return {**found.to_json(), "topic_list": topics, "group_list": groups}


def _show(found: Assessment, config: str) -> None:
    taken, left = found.mirrored, [one for one in found.topics if one.left_out]
    output.table(
        ("topic", "remote topic", "partitions", "offsets", "size", "cleanup", "transactions", "copied"),
        (
            (
                one.topic,
                one.remote_topic,
                one.partitions,
                one.offsets,
                None if one.size is None else f"{'~' if one.is_estimated else ''}{output.size(one.size)}",
                one.cleanup_policy,
                one.transactions,
                one.format,
            )
            for one in sorted(taken, key=lambda one: -(one.size or 0))[:SHOWN]
        ),
        f"{found.flow}: mirrors {output.counted(len(taken), 'topic')}, {output.size(found.size)}",
    )
    _more(len(taken))
    if left:
        rows = [(one.topic, one.left_out) for one in left[:SHOWN]]
        output.table(("topic", "why not"), rows, f"\nNot mirrored: {output.counted(len(left), 'topic')}")
        _more(len(left))
    moved = [one for one in found.groups if not one.left_out]
    if found.groups:
        output.table(
            ("group", "kind", "state", "positions", "elsewhere", "lag", "uncommitted", "why not"),
            (
                tuple(getattr(one, name) or None for name in GROUP_FIELDS)
                for one in sorted(found.groups, key=lambda one: (bool(one.left_out), -one.lag))[:SHOWN]
            ),
            f"\nGroups: {len(moved):,} of {len(found.groups):,} move",
        )  # fmt: skip
        _more(len(found.groups))
    if found.acls:
        output.table(("bindings", "shape"), ((count, shape) for shape, count in found.acls.items()), "\nACLs")
    output.say("")
    for text in found.findings():
        output.say(f"- {text}.")
    if found.seconds is not None and found.size:
        output.say(
            f"- The first run takes about {output.ago(found.seconds)}: {output.size(found.size)} at an assumed "
            f"{found.mb_per_s:g} MB/s (--mb-per-s; docs/performance.md), while the source grows by "
            f"{found.growth_mb_per_s:,.1f} MB/s."
        )
    output.say(f"\nnext: {options.typed(found.next_command, config)}\n")


def _more(count: int) -> None:
    if count > SHOWN:
        output.say(f"... and {count - SHOWN:,} more (--output json has all)")


COMMANDS = (assess,)
