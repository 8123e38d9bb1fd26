"""The compiled loop behind `store.pages`: records from LMDB's pages to one block. Imported only to compile.

All is done by address, with the numbers of `store.pages`. Every page, pointer and length is looked at before it is
followed: what is not as it should be ends the walk, and a cursor of LMDB says what is wrong.
"""

from __future__ import annotations

from headrace.columns.kernel_bytes import copy_bytes, load64, native32, native64, store64
from headrace.columns.kernel_values import compiled
from headrace.store import pages as p


@compiled
def page_at(args: int, number: int, kind: int) -> int:
    """Where a page of a kind begins; 0 when there is none."""
    page_bytes = native64(args + 8 * p.A_PAGE_BYTES)
    if number < 0 or number >= native64(args + 8 * p.A_MAP_BYTES) // page_bytes:
        return 0
    page: int = native64(args + 8 * p.A_MAP) + number * page_bytes
    if (native32(page + p.PAGE_FLAGS_AT) & 0xFFFF) & 7 != kind or native64(page) != number:
        return 0
    return page


@compiled
def count_of(args: int, page: int) -> int:
    """How many nodes a page has; 0 when that cannot be."""
    end: int = native32(page + p.POINTERS_END_AT) & 0xFFFF
    if end < p.PAGE_HEADER_BYTES or end > native64(args + 8 * p.A_PAGE_BYTES):
        return 0
    return (end - p.PAGE_HEADER_BYTES) >> 1


@compiled
def node_at(args: int, page: int, index: int) -> int:
    """Where a node begins; 0 when that is outside its page."""
    offset: int = native32(page + p.PAGE_HEADER_BYTES + 2 * index) & 0xFFFF
    if offset + p.NODE_HEADER_BYTES > native64(args + 8 * p.A_PAGE_BYTES):
        return 0
    return page + offset


@compiled
def child_of(node: int) -> int:
    """The number of the page that a node of a branch leads to."""
    number: int = native32(node) | ((native32(node + 4) & 0xFFFF) << 32)
    return number


@compiled
def descend(args: int, level: int, number: int, first: int) -> int:  # noqa: C901 - a call more costs
    """Go down from a page of a level to a leaf, to the last node that is not above a seqno; 0 when a page is none.

    With a seqno of -1, to the first node of all.
    """
    stack = native64(args + 8 * p.A_STACK)
    depth = native64(args + 8 * p.A_DEPTH)
    while True:
        page = page_at(args, number, p.IS_LEAF if level == depth - 1 else p.IS_BRANCH)
        if page == 0:
            return 0
        count = count_of(args, page)
        if count == 0:
            return 0
        index = 0
        if first >= 0:
            # The first key of a branch is empty: it stands for all that is below the second.
            low = 0 if level == depth - 1 else 1
            high = count
            while low < high:
                middle = (low + high) >> 1
                node = node_at(args, page, middle)
                if node == 0 or native32(node + 4) >> 16 != 8:  # noqa: PLR2004 - a seqno
                    return 0
                if load64(node + p.NODE_HEADER_BYTES) <= first:
                    low = middle + 1
                else:
                    high = middle
            index = low - 1
            if level == depth - 1 and (index < 0 or load64(node_at(args, page, index) + p.NODE_HEADER_BYTES) < first):
                index += 1
        store64(stack + 16 * level, page)
        store64(stack + 16 * level + 8, index)
        if level == depth - 1:
            return 1
        node = node_at(args, page, index)
        if node == 0:
            return 0
        number = child_of(node)
        level += 1


@compiled
def next_leaf(args: int) -> int:
    """Go on to the leaf behind the one at hand: 1; 0 when there is none, -1 when a page is none."""
    stack = native64(args + 8 * p.A_STACK)
    level = native64(args + 8 * p.A_DEPTH) - 2
    while level >= 0:
        page = native64(stack + 16 * level)
        index = native64(stack + 16 * level + 8) + 1
        if index < count_of(args, page):
            store64(stack + 16 * level + 8, index)
            node = node_at(args, page, index)
            if node == 0 or descend(args, level + 1, child_of(node), -1) == 0:
                return -1
            return 1
        level -= 1
    return 0


@compiled
def large_at(args: int, node: int, size: int) -> int:
    """Where the value of a node lies that has pages of its own; 0 when they are none."""
    key_bytes = native32(node + 4) >> 16
    page = page_at(args, native64(node + p.NODE_HEADER_BYTES + key_bytes), p.IS_OVERFLOW)
    if page == 0:
        return 0
    end = native64(args + 8 * p.A_MAP) + native64(args + 8 * p.A_MAP_BYTES)
    return page + p.PAGE_HEADER_BYTES if page + p.PAGE_HEADER_BYTES + size <= end else 0


def walk(args: int) -> int:  # noqa: C901 - one compiled loop
    """Copy records from where the walk stands, as long as they fit."""
    stack = native64(args + 8 * p.A_STACK)
    leaf = native64(args + 8 * p.A_DEPTH) - 1
    out = native64(args + 8 * p.A_OUT)
    room = native64(args + 8 * p.A_OUT_BYTES)
    page_bytes = native64(args + 8 * p.A_PAGE_BYTES)
    size = 0
    outcome = p.MORE
    if native64(args + 8 * p.A_IS_BEGUN) == 0:
        store64(args + 8 * p.A_IS_BEGUN, 1)
        first = native64(args + 8 * p.A_FIRST)
        if descend(args, 0, native64(args + 8 * p.A_ROOT), first) == 0:
            outcome = p.BAD
    while outcome == p.MORE:
        page = native64(stack + 16 * leaf)
        index = native64(stack + 16 * leaf + 8)
        if index >= count_of(args, page):
            went = next_leaf(args)
            if went != 1:
                outcome = p.END if went == 0 else p.BAD
            continue
        node = node_at(args, page, index)
        if node == 0:
            outcome = p.BAD
            continue
        length = native32(node)
        shape = native32(node + 4)  # flags, then the length of the key
        value = node + p.NODE_HEADER_BYTES + (shape >> 16)
        if (shape & 0xFFFF) == p.IS_LARGE:
            value = large_at(args, node, length)
        elif (shape & 0xFFFF) != 0 or value + length > page + page_bytes:
            value = 0
        if value == 0:
            outcome = p.BAD
            continue
        if size + length > room:
            if size == 0:
                outcome = p.TOO_LARGE
                size = length
            break
        copy_bytes(out + size, value, length)
        size += length
        store64(stack + 16 * leaf + 8, index + 1)
    store64(args + 8 * p.A_SIZE, size)
    store64(args + 8 * p.A_OUTCOME, outcome)
    return 0
