"""Every error that headrace raises on purpose. Whose fault it is decides the class, not where it was seen."""


class HeadraceError(Exception):
    """The root of all of them."""


class LocalProtocolError(HeadraceError):
    """Our caller asked for something that the protocol cannot say or does not allow."""


class RemoteProtocolError(HeadraceError):
    """The peer sent bytes that cannot be a message; the connection has no meaning after them.

    `offset` counts from the first byte that the reader was ever given.
    """

    def __init__(self, text: str, *, offset: int = 0) -> None:
        super().__init__(f"byte {offset}: {text}")
        self.text = text
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the offset when the error travels from a Spark executor to the driver."""
        return (_remote_error, (self.text, self.offset))


def _remote_error(text: str, offset: int) -> RemoteProtocolError:
    return RemoteProtocolError(text, offset=offset)


__all__ = ["HeadraceError", "LocalProtocolError", "RemoteProtocolError"]
