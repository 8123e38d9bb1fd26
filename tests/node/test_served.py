"""Which of the catalogue's requests a node serves, and why not the others."""

from __future__ import annotations

import pytest

from headrace.node import commands  # noqa: F401 - enters the commands
from headrace.node.dispatch import HANDLERS, Who
from headrace.node.users import Role
from headrace.wire.message import Answered
from headrace.wire.registry import REQUESTS

NO_COLLECTIONS = "hello does not agree on collections"
NO_SUBDOC = "a command on many paths is served wholly or not at all"

UNSERVED = {
    "get_collections_manifest": NO_COLLECTIONS,
    "get_collection_id": NO_COLLECTIONS,
    "get_scope_id": NO_COLLECTIONS,
    "subdoc_multi_lookup": NO_SUBDOC,
    "subdoc_multi_mutation": NO_SUBDOC,
}


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda one: one.spec.name)
def test_each_request_has_a_handler_or_a_reason(request_type: type):
    """A command that is neither served nor excused fails here; so does an excuse that is no longer needed."""
    name = request_type.spec.name  # type: ignore[attr-defined]
    assert (name in HANDLERS) != (name in UNSERVED)


def test_what_changes_items_takes_the_role_write():
    """Each command that is answered like a write needs write, and those that keep silent on success do too.

    Messages of streams are for who has opened the connection: OPEN asks for the role.
    """
    for request in REQUESTS:
        handler = HANDLERS.get(request.spec.name)
        if handler is None or request.spec.family != "kv":
            continue
        quiet = request.spec.answered is Answered.WHEN_REFUSED
        if quiet or any(reply.__name__ in {"Mutated", "Counter"} for reply in request.spec.replies.values()):
            assert handler.needs is Role.WRITE, request


def test_who_is_not_known_may_do_little():
    """Before authentication there is nothing that touches an item, a vbucket or a bucket."""
    open_to_all = {name for name, handler in HANDLERS.items() if handler.needs is Who.ANYONE}
    assert open_to_all == {
        "hello", "sasl_list_mechs", "sasl_auth", "sasl_step", "get_error_map", "noop", "version", "quit", "quit_q",
    }  # fmt: skip
