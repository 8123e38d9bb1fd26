"""What keeps a job from being begun."""

from headrace.errors import HeadraceError


class RefusedError(HeadraceError):
    """What was asked for would lose something or cannot be: nothing was changed."""


__all__ = ["RefusedError"]
