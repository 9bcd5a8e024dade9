"""Alignment of a source log and its copy by content alone, to rebuild an offset map that no job recorded.

A copier copies records in order. The copies break off where the copier was restarted (it copies a stretch again), where
records were lost, and where either log was compacted. The two logs therefore agree in long stretches. The alignment
finds the beginning of each stretch.

If content alone is ambiguous, as for repeated records, the alignment chooses a place at which no reader skips a record.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOOK_AHEAD = 64  # records that distinguish places with the same content
CANDIDATES = 256  # places with the same content that are tried for the beginning of a stretch
LONGEST_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Match:
    """Records `[source, source + count)` of the source log and their copies `[copy, copy + count)`.

    Both numbers are positions in the list of records, not offsets.
    """

    source: int
    copy: int
    count: int

    @property
    def source_end(self) -> int:
        """Returns the position after the last record of the source."""
        return self.source + self.count


def align(source: NDArray[np.uint64], copy: NDArray[np.uint64]) -> list[Match]:
    """Finds the source record of each record of the copy.

    Each stretch begins at the place with the longest agreement. Among equal places, the first choice is directly behind
    the previous stretch. The second choice is the last place before it, the third is the first place after it. A record
    that may be a repetition is treated as one, so that no record counts as copied without certainty.

    Args:
        source: a hash of the content of each source record, in log order.
        copy: the same of each record of the copy.

    Returns:
        Matches in the order of the copy. Records of the copy that the source doesn't have are in no match.
    """
    order = np.argsort(source, kind="stable")
    ordered = source[order]
    left, right = np.searchsorted(ordered, copy, "left"), np.searchsorted(ordered, copy, "right")
    known = np.flatnonzero(left < right)
    matches: list[Match] = []
    at = expected = 0
    while (next_known := int(np.searchsorted(known, at))) < len(known):
        at = int(known[next_known])
        places = _nearest(_narrowed(order[left[at] : right[at]], source, copy, at), expected)
        lengths = [_agreement(source, place, copy, at) for place in places]
        longest = max(lengths)
        begin = min(
            (place for place, length in zip(places, lengths, strict=True) if length == longest),
            key=lambda place: (place > expected, abs(place - expected)),
        )
        found = _extended_back(matches, Match(begin, at, longest), source, copy)
        matches.append(found)
        at, expected = at + longest, found.source_end
    return [match for match in matches if match.count]


def chain(matches: list[Match]) -> list[Match]:
    """Selects the parts of matches that make an offset map, ascending on both sides.

    The chain has the last copy of each record that precedes the copies of all later records. A reader can continue
    there without skipping records, and it reads the fewest repeated ones. The selection starts with the last source
    record that was copied and goes backwards. Later repetitions lie behind all others and have no effect.
    """
    passes = _passes(matches)
    reach = list(
        itertools.accumulate((one_pass[-1].source_end - 1 for one_pass in passes), max)
    )  # the last record of a pass or of one before it
    result: list[Match] = []
    number, wanted = len(passes) - 1, max((match.source_end for match in matches), default=0) - 1
    while wanted >= 0:
        best: tuple[int, int, Match] | None = None
        for candidate in range(number, -1, -1):  # an earlier pass serves only records that later ones lack
            match = _begun_by(passes[candidate], wanted)
            if match is not None and (best is None or min(wanted, match.source_end - 1) > best[0]):
                best = (min(wanted, match.source_end - 1), candidate, match)
            if best is not None and (best[0] == wanted or candidate == 0 or best[0] >= reach[candidate - 1]):
                break
        if best is None:
            break
        index, number, match = best
        result.append(replace(match, count=index - match.source + 1))
        wanted = match.source - 1
    return result[::-1]


def _narrowed(
    places: NDArray[np.int64], source: NDArray[np.uint64], copy: NDArray[np.uint64], at: int
) -> NDArray[np.int64]:
    """Narrows many places to those at which the following records agree, too."""
    for ahead in range(1, LOOK_AHEAD):
        if len(places) <= CANDIDATES or at + ahead >= len(copy):
            break
        inside = places[places + ahead < len(source)]
        agreeing = inside[source[inside + ahead] == copy[at + ahead]]
        if not len(agreeing):
            break
        places = agreeing
    return places


def _nearest(places: NDArray[np.int64], expected: int) -> list[int]:
    """Returns the places to try, in ascending order: all, or those around the expected one."""
    if len(places) > CANDIDATES:
        middle = int(np.searchsorted(places, expected))
        first = max(0, min(middle - CANDIDATES // 2, len(places) - CANDIDATES))
        places = places[first : first + CANDIDATES]
    return [int(place) for place in places]


def _agreement(source: NDArray[np.uint64], i: int, copy: NDArray[np.uint64], j: int) -> int:
    """Returns the number of records that agree from these places on."""
    count, step, longest = 0, 64, min(len(source) - i, len(copy) - j)
    while count < longest:
        size = min(step, longest - count)
        differs = source[i + count : i + count + size] != copy[j + count : j + count + size]
        if differs.any():
            return count + int(np.argmax(differs))
        count, step = count + size, min(2 * step, LONGEST_STEP)
    return count


def _extended_back(matches: list[Match], found: Match, source: NDArray[np.uint64], copy: NDArray[np.uint64]) -> Match:
    """Moves the end of the previous stretch to this one as far as it fits here, too.

    If records are missing in between, a reader within the missing part then reads the moved records again instead of
    never. If the copier went back, no record counts as copied that may have been a repetition.
    """
    if not matches or matches[-1].copy + matches[-1].count != found.copy:
        return found
    before = matches[-1]
    most = min(before.count, found.source - before.source_end if found.source >= before.source_end else found.source)
    count = 0
    while count < most and source[found.source - count - 1] == copy[found.copy - count - 1]:
        count += 1
    if count:
        matches[-1] = replace(before, count=before.count - count)
    return Match(found.source - count, found.copy - count, found.count + count)


def _passes(matches: list[Match]) -> list[list[Match]]:
    """Splits the matches where the copier went back."""
    passes: list[list[Match]] = []
    for match in matches:
        if not passes or match.source < passes[-1][-1].source_end:
            passes.append([])
        passes[-1].append(match)
    return passes


def _begun_by(one_pass: list[Match], record: int) -> Match | None:
    """Returns the last match of a pass that begins at or before a record of the source."""
    number = bisect_right(one_pass, record, key=lambda match: match.source)
    return one_pass[number - 1] if number else None
