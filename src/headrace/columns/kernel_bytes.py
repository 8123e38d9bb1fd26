"""Memory by its address: read a big-endian number anywhere, store a number, copy a run of bytes.

numba's arrays cost a sign test an access and a count of references a call, and need numba's runtime when the machine
code is loaded again. These compile to one load and one swap, one store, and memcpy. They check nothing: the kernel has
looked at every length before it calls them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LONG = ir.IntType(64)
_BYTE = ir.IntType(8)


def _load(bits: int, *, swap: bool) -> Any:
    def load(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
            word = ir.IntType(bits)
            number = builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1)
            if swap:
                number = builder.bswap(number)
            return number if word == _LONG else builder.zext(number, _LONG)

        return types.int64(types.int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def store(typingctx: Any, address: Any, number: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
            word = ir.IntType(bits)
            number = args[1] if word == _LONG else builder.trunc(args[1], word)
            builder.store(number, builder.inttoptr(args[0], word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(store)


load8: Any = _load(8, swap=False)
load16: Any = _load(16, swap=True)
load32: Any = _load(32, swap=True)
load64: Any = _load(64, swap=True)
native32: Any = _load(32, swap=False)
native64: Any = _load(64, swap=False)
store8: Any = _store(8)
store32: Any = _store(32)
store64: Any = _store(64)


def _copy_bytes(typingctx: Any, to: Any, of: Any, length: Any) -> Any:  # noqa: ARG001
    """Copy a run of bytes; the two runs must not overlap."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        target, source = (builder.inttoptr(each, _BYTE.as_pointer()) for each in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _prefetch(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    """Ask the processor to have a line of memory at hand soon; any address will do."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.inttoptr(args[0], _BYTE.as_pointer()), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


copy_bytes: Any = intrinsic(_copy_bytes)
prefetch: Any = intrinsic(_prefetch)
