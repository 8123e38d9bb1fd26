"""Buckets: which there are, and, for who may, making and removing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.buckets import BucketError
from headrace.node.dispatch import Who, answer, handles
from headrace.node.refused import Refused
from headrace.node.users import EVERY_BUCKET, Role
from headrace.wire.catalogue import CreateBucket, DeleteBucket, Done, ListBuckets, Text
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.session import Session


@handles(ListBuckets, needs=Who.KNOWN, bucket=False)
def list_buckets(session: Session, request: ListBuckets) -> Text:
    """Name the buckets that the user may use in any way."""
    user = session.user
    names = [name for name in session.buckets.names() if user and any(user.may(role, name) for role in Role)]
    return answer(request, Text, value=" ".join(names).encode())


def _check_admin(session: Session) -> None:
    """A bucket is the whole node's business: to be admin of one is not enough."""
    if session.user is None or not session.user.may(Role.ADMIN, EVERY_BUCKET):
        raise Refused(Status.NO_ACCESS, "this takes the role admin in every bucket")


@handles(CreateBucket, needs=Who.KNOWN, bucket=False)
async def create_bucket(session: Session, request: CreateBucket) -> Done:
    """Make a bucket with the node's number of vbuckets, all active; what the configuration says is not needed."""
    _check_admin(session)
    name = request.name.decode(errors="replace")
    if session.buckets.get(name) is not None:
        raise Refused(Status.KEY_EXISTS, f"there is a bucket {name} already")
    try:
        await session.buckets.create(name)
    except BucketError as error:
        raise Refused(Status.INVALID, str(error)) from error
    return answer(request, Done)


@handles(DeleteBucket, needs=Who.KNOWN, bucket=False)
async def delete_bucket(session: Session, request: DeleteBucket) -> Done:
    """Remove a bucket and all it holds; connections that use it have none from then on."""
    _check_admin(session)
    name = request.name.decode(errors="replace")
    if session.buckets.get(name) is None:
        raise Refused(Status.KEY_NOT_FOUND, f"there is no bucket {name}")
    session.services.leave_bucket(name)
    try:
        await session.buckets.delete(name)
    except BucketError as error:
        raise Refused(Status.KEY_NOT_FOUND, str(error)) from error
    return answer(request, Done)
