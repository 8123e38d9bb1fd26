"""Every captured scenario, played against our node: what deviates is in the table, and the table has nothing else."""

import pytest

from tests.replay.captures import RELEASES, scenarios
from tests.replay.differences import DIFFERENCES, excuse
from tests.replay.player import Deviation
from tests.replay.stories import STORIES, tell


def unexcused(deviations: list[Deviation]) -> list[str]:
    """What is in no row of the table."""
    return [str(one) for one in deviations if excuse(one) is None]


def stale(release: str, scenario: str, deviations: list[Deviation]) -> list[str]:
    """The rows of the table that say that this scenario shows them, and that have nothing to excuse in it."""
    used = {row.id for row in map(excuse, deviations) if row is not None}
    return [row.id for row in DIFFERENCES if row.is_for(release, scenario) and row.id not in used]


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_node_does_as_the_server_did(release: str, story: str, subtests: pytest.Subtests):
    """The same messages come in the same order but for the intended differences, and all of these are still there."""
    for scenario, deviations in tell(release, STORIES[story]).items():
        with subtests.test(scenario):
            assert not unexcused(deviations), "\n".join(unexcused(deviations))
            assert not stale(release, scenario, deviations), "remove them from the table, or from its `seen_in`"


def test_every_capture_is_played():
    """No captured scenario is forgotten."""
    assert {scene.scenario for story in STORIES.values() for scene in story.scenes} == set(scenarios())


def test_every_row_is_for_a_capture():
    """Each place that a row names is a scenario."""
    names = {name for scenario in scenarios() for name in (scenario, *(f"{one}/{scenario}" for one in RELEASES))}
    for row in DIFFERENCES:
        for named in row.seen_in:
            assert any(name.startswith(named) for name in names), f"{row.id}: {named}"
