"""The names by which messages are chosen, and the nearest right one to a wrong one."""

import difflib

from headrace.explain.events import InputError
from headrace.explain.messages import UNREADABLE
from headrace.wire import registry

UNKNOWN = "unknown"
"""What `headrace.wire.dissect` calls a message whose opcode is not in the catalogue."""


def message_names() -> frozenset[str]:
    """Return every name that an explained message can have."""
    classes = (*registry.REQUESTS, *registry.SERVER_REQUESTS)  # a response has the name of its request
    return frozenset(cls.spec.name for cls in classes) | {UNKNOWN, UNREADABLE}


def check_names(names: list[str]) -> frozenset[str]:
    """Return the names as a set, spelled as the catalogue spells them; raise InputError for one it lacks."""
    known = message_names()
    chosen = set[str]()
    for name in names:
        plain = name.strip().lower().replace("-", "_")
        if plain not in known:
            near = difflib.get_close_matches(plain, sorted(known), n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}" if near else "names look like mutation, stream_request"
            raise InputError(f"no message is called {name!a}; {hint}?")
        chosen.add(plain)
    return frozenset(chosen)
