"""Unsigned LEB128: how a collection id stands in front of a key (seven bits a byte, lowest first).

The longest form of a 32-bit id has five bytes. A form longer than needed is refused, as the server does: one id has
one spelling, or one key could be stored under two.
"""

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.ids import CollectionId

ID_BYTES_MAX = 5
_ID_MAX = 0xFFFF_FFFF
_MORE = 0x80


def encode_collection(collection: CollectionId) -> bytes:
    """Spell a collection id in as few bytes as it takes."""
    if not 0 <= collection <= _ID_MAX:
        raise LocalProtocolError(f"collection id {collection} does not fit in 32 bits")
    rest = int(collection)
    spelled = bytearray()
    while rest >= _MORE:
        spelled.append(rest % _MORE | _MORE)
        rest >>= 7
    spelled.append(rest)
    return bytes(spelled)


def split_collection(key: bytes) -> tuple[CollectionId, bytes]:
    """Part a key as sent into its collection id and the key that users know."""
    number = 0
    for index, byte in enumerate(key[:ID_BYTES_MAX]):
        number |= byte % _MORE << (7 * index)
        if byte & _MORE:
            continue
        if index and not byte:
            raise RemoteProtocolError("the collection id is padded with zero bits", offset=index)
        if number > _ID_MAX:
            raise RemoteProtocolError("the collection id has more than 32 bits", offset=index)
        return CollectionId(number), key[index + 1 :]
    raise RemoteProtocolError(f"no collection id ends within {min(len(key), ID_BYTES_MAX)} bytes of the key")
