"""The scopes and collections of a bucket, as its manifest (the answer to 0xba) names them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.errors import ServerAnswerError, error_of
from headrace.client.opening import Ask
from headrace.wire.catalogue import GetCollectionsManifest, Text
from headrace.wire.codes import Feature, Status

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.client.address import Address


@dataclass(frozen=True, slots=True)
class Collections:
    """The version of a manifest, and the names behind each id; new names are put into the same dict."""

    uid: str
    names: dict[int, tuple[str, str]]

    @classmethod
    def parse(cls, manifest: bytes, *, source: str) -> Collections:
        """Read a manifest; ids are hexadecimal texts."""
        try:
            document: Any = json.loads(manifest)
            names = {
                int(each["uid"], 16): (str(scope["name"]), str(each["name"]))
                for scope in document["scopes"]
                for each in scope.get("collections", ())
            }
            return cls(str(document["uid"]), names)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ServerAnswerError(f"{source}: its collections manifest cannot be read") from None

    def stream_filter(self, wanted: tuple[str, ...], *, source: str) -> bytes:
        """Write what a stream request says of collections: those that are wanted, or all."""
        if not wanted:
            return json.dumps({"uid": self.uid}).encode()
        by_name = {f"{scope}.{name}": number for number, (scope, name) in self.names.items()}
        for name in wanted:
            if name not in by_name:
                known = ", ".join(sorted(by_name))
                raise error_of(
                    f"collection {name} at {source}", Status.UNKNOWN_COLLECTION, f"there are {known}".encode()
                )
        return json.dumps({"uid": self.uid, "collections": [f"{by_name[name]:x}" for name in wanted]}).encode()


def ask_collections(
    address: Address, granted: frozenset[int], wanted: tuple[str, ...]
) -> Generator[Ask, Any, Collections | None]:
    """Ask for the names of collections, and see that those that are wanted are there; see `opening`.

    None where the server has no collections: everything is in the default one.
    """
    if Feature.COLLECTIONS not in granted:
        if wanted:
            raise error_of(f"collections at {address}", Status.NOT_SUPPORTED, b"the server has none")
        return None
    manifest = yield Ask(GetCollectionsManifest(), Text, f"the collections of {address}")
    found = Collections.parse(manifest.value, source=str(address))
    found.stream_filter(wanted, source=str(address))
    return found


__all__ = ["Collections", "ask_collections"]
