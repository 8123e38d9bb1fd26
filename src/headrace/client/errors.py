"""What may go wrong between a client and its server.

A status of the server is a class, found by its code; `retriable` on the class tells if the same request, sent again
later, may be served. The message names what was asked, of whom, and what the server said to it. No error holds a
password, or what was sent to authenticate.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import HeadraceError
from headrace.wire.codes import Status

_TEXT_CHARACTERS_MAX = 200
_NO_TLS = ("UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class ClientError(HeadraceError):
    """The root of what `headrace.client` raises on purpose, but for mistakes of its caller."""

    retriable: ClassVar[bool] = False


class AddressError(ClientError):
    """A text is no address of a server."""


class ConnectionLostError(ClientError):
    """There is no connection, or no more. What was sent and not answered may be done or not."""

    retriable = True


class ServerAnswerError(ClientError):
    """The server answered something else than what was asked; the connection has no meaning after it."""


class ManyNodesError(ClientError):
    """The bucket lies on several nodes, and this client knows one only."""


class StatusError(ClientError):
    """The server says that it did not do what was asked. `status` is the code, `text` what the server adds."""

    meaning: ClassVar[str] = "refused"

    def __init__(self, asked: str, status: int, text: str = "") -> None:
        said = f" ({text})" if text else ""
        super().__init__(f"{asked}: {self.meaning}, status 0x{status:02x}{said}")
        self.asked = asked
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the parts when the error travels between processes."""
        return (type(self), (self.asked, self.status, self.text))


class NotFoundError(StatusError):
    """There is no such item; or, when a bucket is selected, no such bucket."""

    meaning = "not found"


class KeyExistsError(StatusError):
    """The item exists, or is of another version than the CAS given."""

    meaning = "it exists already, or was changed since"


class TooBigError(StatusError):
    """The value is larger than the server takes."""

    meaning = "too big for this server"


class InvalidError(StatusError):
    """The server takes the arguments for wrong."""

    meaning = "the server takes it for wrong"


class NotStoredError(StatusError):
    """The item to be extended does not exist."""

    meaning = "not stored"


class NotMyVBucketError(StatusError):
    """The node has not this vbucket, or not as active. A new cluster map may help; the same request does not."""

    meaning = "the node does not serve this vbucket"


class NoBucketError(StatusError):
    """No bucket was selected on this connection."""

    meaning = "no bucket is selected"


class NoCollectionError(StatusError):
    """There is no such collection, or no more."""

    meaning = "there is no such collection"


class LockedError(StatusError):
    """The item is locked for a while."""

    meaning = "locked"
    retriable = True


class AuthFailedError(StatusError):
    """The name or the password is wrong, or there is no way to authenticate that both sides know."""

    meaning = "not authenticated"


class NoAccessError(StatusError):
    """The user may not do this here."""

    meaning = "no access"


class UnknownCommandError(StatusError):
    """The server does not know this command: plain memcached knows none of Couchbase's."""

    meaning = "the server does not know this command"


class NotSupportedError(StatusError):
    """The server knows the command, and does not do it."""

    meaning = "the server does not support it"


class OutOfMemoryError(StatusError):
    """The server has no room, and does not expect to have soon."""

    meaning = "the server is out of memory"


class BusyError(StatusError):
    """The server has too much to do."""

    meaning = "the server is busy"
    retriable = True


class TemporaryFailureError(StatusError):
    """The server cannot do it now, for example because its memory must first be written to disk."""

    meaning = "the server cannot do it now"
    retriable = True


class InternalError(StatusError):
    """The server found a mistake of its own."""

    meaning = "the server made a mistake"


_BY_STATUS: dict[int, type[StatusError]] = {
    Status.KEY_NOT_FOUND: NotFoundError,
    Status.KEY_EXISTS: KeyExistsError,
    Status.TOO_BIG: TooBigError,
    Status.INVALID: InvalidError,
    Status.NOT_STORED: NotStoredError,
    Status.NOT_MY_VBUCKET: NotMyVBucketError,
    Status.NO_BUCKET: NoBucketError,
    Status.UNKNOWN_COLLECTION: NoCollectionError,
    Status.LOCKED: LockedError,
    Status.WOULD_THROTTLE: BusyError,
    Status.AUTH_STALE: AuthFailedError,
    Status.AUTH_ERROR: AuthFailedError,
    Status.NO_ACCESS: NoAccessError,
    Status.NOT_INITIALIZED: TemporaryFailureError,
    Status.UNKNOWN_COMMAND: UnknownCommandError,
    Status.OUT_OF_MEMORY: OutOfMemoryError,
    Status.NOT_SUPPORTED: NotSupportedError,
    Status.INTERNAL_ERROR: InternalError,
    Status.BUSY: BusyError,
    Status.TEMPORARY_FAILURE: TemporaryFailureError,
    Status.SYNC_WRITE_IN_PROGRESS: BusyError,
}


def error_of(asked: str, status: int, value: bytes = b"") -> StatusError:
    """Make the error for a status; the value of the answer is its text, unless it is a cluster map."""
    text = ""
    if status != Status.NOT_MY_VBUCKET:
        text = value.decode(errors="replace").strip().strip("\0")[:_TEXT_CHARACTERS_MAX]
        text = "".join(c if c.isprintable() else "\ufffd" for c in text)  # it goes to terminals
    return _BY_STATUS.get(status, StatusError)(asked, status, text)


def told_of(error: OSError | UnicodeError) -> str:
    """Say in words why a socket failed, or the search for a name."""
    # `reason` is of ssl's own errors; it is not imported for those who need none. asyncio says nothing at all then.
    if getattr(error, "reason", None) in _NO_TLS or not str(error):
        return f"no TLS is spoken there, or it broke off; couchbase:// is without TLS ({error!r})"
    return getattr(error, "strerror", None) or str(error)
