"""A map is rebuilt from the contents of two logs, for any history of the copier."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from mirrorlake.model.alignment import Match, align, chain


def aligned(source: str, copy: str) -> list[tuple[int, int, int]]:
    found = align(*(np.array([ord(letter) for letter in log], dtype=np.uint64) for log in (source, copy)))
    return [(match.source, match.copy, match.count) for match in found]


def mapped(source: str, copy: str) -> dict[int, int]:
    matches = chain([Match(*match) for match in aligned(source, copy)])
    return {match.source + at: match.copy + at for match in matches for at in range(match.count)}


@pytest.mark.parametrize(
    ("source", "copy", "expected"),
    [
        ("abcdef", "abcd", [(0, 0, 4)]),
        ("abcdef", "", []),
        ("", "abc", []),
        ("abcdef", "cdef", [(2, 0, 4)]),  # begun late
        ("cdef", "abcdef", [(0, 2, 4)]),  # the source has forgotten its beginning
        ("abcdef", "abXdef", [(0, 0, 2), (3, 3, 3)]),  # a record of others
        ("abcdefgh", "abcdcdefgh", [(0, 0, 4), (2, 4, 6)]),  # restarted
        ("abcdefgh", "abgh", [(0, 0, 2), (6, 2, 2)]),  # records lost
        ("abcade", "ade", [(3, 0, 3)]),  # the first record alone would fit in two places
        ("aaaa", "aa", [(0, 0, 2)]),  # nothing tells: nothing may be skipped
    ],
)
def test_each_record_of_the_copy_is_found_where_most_agrees(
    source: str, copy: str, expected: list[tuple[int, int, int]]
) -> None:
    assert aligned(source, copy) == expected


def test_of_records_copied_twice_the_map_takes_those_that_the_rest_follows() -> None:
    assert mapped("abcdefgh", "abcdcdefgh") == {0: 0, 1: 1, 2: 4, 3: 5, 4: 6, 5: 7, 6: 8, 7: 9}


def test_a_repetition_at_the_end_is_no_place_to_go_on_from() -> None:
    # A reader of d that continued at the second d would never get e and f.
    assert mapped("abcdef", "abcdefcd") == {at: at for at in range(6)}


def test_a_record_that_only_the_first_pass_has_is_read_there() -> None:
    # The second pass lacks c; a reader of b must not miss it.
    found = mapped("abcdef", "abcdabdef")
    assert found == {0: 0, 1: 1, 2: 2, 3: 6, 4: 7, 5: 8}


def test_where_records_are_missing_the_reader_gets_doubtful_ones_again() -> None:
    # x may be the one before the gap or the one after it: a reader within the gap gets it.
    assert mapped("axbbxc", "axc") == {0: 0, 4: 1, 5: 2}


@pytest.mark.parametrize("seed", range(60))
def test_no_reader_skips_a_record_and_only_restarts_are_read_again(seed: int) -> None:
    """A copier is restarted, loses records and meets records of other producers.

    By the map, each reader gets all unread records that exist on the target.
    """
    dice = random.Random(seed)
    letters = dice.choice([3, 40, 1_000_000])
    source = [dice.randrange(letters) for _ in range(dice.randint(1, 400))]
    truth: list[int] = []  # which record of the source each one of the copy is; -1 for those of others
    at = dice.choice([0, dice.randrange(len(source))])
    while at < len(source) and len(truth) < 2_000:
        stretch = dice.randint(1, 120)
        truth += range(at, min(at + stretch, len(source)))
        at += stretch
        event = dice.random()
        at = max(0, at - dice.randint(1, 60)) if event < 0.3 else at + dice.randint(1, 20) if event < 0.5 else at
        truth += [-1] * (event > 0.9)
    copy = [source[index] if index >= 0 else 10_000_000 + number for number, index in enumerate(truth)]
    matches = chain(align(np.array(source, dtype=np.uint64), np.array(copy, dtype=np.uint64)))
    for before, after in itertools.pairwise(matches):
        assert before.source_end <= after.source
        assert before.copy + before.count <= after.copy
    places = {match.source + at: match.copy + at for match in matches for at in range(match.count)}
    assert all(source[index] == copy[place] for index, place in places.items())
    if letters == 1_000_000:  # contents tell records apart
        copied = {index for index in truth if index >= 0}
        for wanted in range(max(copied) + 1):
            begin = next((places[index] for index in range(wanted, len(source)) if index in places), len(copy))
            got = {index for index in truth[begin:] if index >= wanted}
            assert got == {index for index in copied if index >= wanted}, f"a reader of {wanted} misses records"
        assert all(truth[place] == index for index, place in places.items())
