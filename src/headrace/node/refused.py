"""A request that is not done, and why: raised by whoever finds out, answered in one place."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.wire.codes import Status


class Refused(HeadraceError):  # noqa: N818 - an answer of the protocol, not an error of ours
    """Carries the status and the words of an error reply."""

    def __init__(self, status: Status, text: str = "") -> None:
        super().__init__(text or status.name)
        self.status = status
        self.text = text


def not_found() -> Refused:
    """The item is not there."""
    return Refused(Status.KEY_NOT_FOUND, "Not found")


def exists() -> Refused:
    """The item is there, or is another version."""
    return Refused(Status.KEY_EXISTS, "Data exists for key")
