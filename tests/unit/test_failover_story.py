"""The stories that seeds of `make chaos-failover` draw."""

from __future__ import annotations

from chaos.failover.story import ClientKind, Ending, draw


def test_a_seed_draws_the_same_story_each_time_and_a_hundred_draw_everything_there_is() -> None:
    stories = [draw(seed) for seed in range(1, 101)]
    assert stories == [draw(seed) for seed in range(1, 101)]
    assert {story.ending for story in stories} == {*Ending}
    groups = [group for story in stories for group in story.groups]
    assert {(group.kind, group.protocol) for group in groups} == {
        (kind, protocol) for kind in ClientKind for protocol in ("classic", "consumer")
    }
    assert {group.is_async for group in groups if group.rewinds} == {False, True}
    assert {story.moment.partition(".")[0] for story in stories} == {"driver", "task", "cycle", "client", "traffic"}
    assert {(story.rests, story.keeps_names) for story in stories} >= {
        ("mirror", True),
        ("checkpoint", False),
        ("", True),
    }
    copiers = [story.copier for story in stories if story.copier]
    assert {(copier.has_aborts, copier.joins_group) for copier in copiers} == {(a, b) for a in (0, 1) for b in (0, 1)}
