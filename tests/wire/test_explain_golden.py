"""What `headrace explain` prints for every catalogued message is kept, and does not change unseen."""

import pytest

from tests.wire.explained import fresh, sections

FRESH = list(fresh())


@pytest.mark.parametrize(("title", "text"), [one[1:] for one in FRESH], ids=[one[1] for one in FRESH])
def test_an_explanation_is_as_it_was(title: str, text: str):
    """The section of an entry is what the command prints now; regenerate_golden writes it anew on purpose."""
    assert title in sections(), "no golden section: python -m tests.wire.regenerate_golden"
    assert text == sections()[title]


def test_no_explanation_is_left_over():
    """Every kept section belongs to an entry that still exists."""
    assert sections().keys() == {title for _, title, _ in FRESH}


def test_no_two_sections_share_a_name():
    """Every section has an id of its own."""
    assert len(FRESH) == len({title for _, title, _ in FRESH})
