"""Every captured scenario, played against our node: what deviates is in the table, and what is in the table deviates."""

import pytest

from tests.replay.captures import RELEASES, scenarios
from tests.replay.differences import DIFFERENCES, Difference, excuse
from tests.replay.player import Deviation
from tests.replay.stories import LATER, STORIES, told

PLAYED = [
    (release, story, scene.scenario) for release in RELEASES for story, of in STORIES.items() for scene in of.scenes
]
"""Stories one after another, so that each is played once."""


@pytest.mark.parametrize(("release", "story", "scenario"), PLAYED, ids=[f"{one[0]}-{one[2]}" for one in PLAYED])
def test_the_node_does_as_the_server_did(release: str, story: str, scenario: str):
    """The same messages come in the same order, but for the intended differences."""
    deviations = [one for one in told(release, story)[scenario] if excuse(one) is None]
    assert not deviations, "\n".join(map(str, deviations))


def _all_deviations() -> list[Deviation]:
    return [
        one for release in RELEASES for story in STORIES for found in told(release, story).values() for one in found
    ]


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.id)
def test_no_excuse_is_stale(row: Difference):
    """Each row of the table is seen in every scenario that it names, and no other row has already excused it."""
    seen = {one.scenario for one in _all_deviations() if excuse(one) is row}
    unseen = [named for named in row.scenarios if not any(one.startswith(named.removesuffix("*")) for one in seen)]
    assert not unseen, f"{row.id}: nothing to excuse in {unseen}: remove it from the table"


def test_every_capture_is_played_or_left_for_a_reason():
    """No captured scenario is forgotten, and none that is put off is played."""
    played = {scenario for _, _, scenario in PLAYED}
    for scenario in scenarios():
        assert (scenario in played) != scenario.startswith(tuple(LATER)), scenario
