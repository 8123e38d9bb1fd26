"""Kernels as machine code: compiled once by numba, kept on disk, loaded by llvmlite.

numba's own cache would do, but to look into it numba has to be imported and its registries filled: 0.45 s of every new
Python worker (docs/decisions/0003). What is kept here is the object file that numba made, under a name that holds the
sources, the versions and the processor; loading it takes a twentieth of a second and no numba.

Code from a file is run, so the file is believed only if it lies in a directory of ours that nobody else can write to.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import stat
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_MAGIC = b"headrace kernel 1\n"
_PRIVATE = 0o700
_LOADING = threading.Lock()
CACHE_VARIABLE = "HEADRACE_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class Kernel:
    """The two passes, each called with the address of its arguments. The engine holds the code in memory."""

    scan: Callable[[int], None]
    fill: Callable[[int], None]
    engine: Any


def kernel() -> Kernel:
    """The kernel, loaded once in a process however many threads ask; the first time on a machine it is compiled.

    A process that forks workers may call this before it does, so that none of them waits for it.
    """
    with _LOADING:
        return load()


@cache
def load() -> Kernel:
    """Load the kernel; the first time on a machine, compile it, which takes some seconds."""
    (scan, fill), engine = load_program(COLUMNS)
    return Kernel(scan, fill, engine)


@dataclass(frozen=True, slots=True)
class Program:
    """Functions of one module that are compiled together: each takes the address of its arguments, and gives 0."""

    name: str
    module: str
    entries: tuple[str, ...]
    made_of: tuple[str, ...] = ()
    """Other modules whose numbers are compiled in."""


COLUMNS = Program("kernel", "headrace.columns.kernel", ("scan", "fill"))


def load_program(program: Program) -> tuple[list[Callable[[int], None]], Any]:
    """Load the functions of a program, and the engine that holds their code; compile what nobody has kept."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    directory = cache_directory()
    path = directory / f"{program.name}-{fingerprint(program)}.o" if directory else None
    kept = read_kept(path) if path else None
    if kept is None:
        _LOG.info("compiling %s; it is kept in %s", program.module, directory or "no place: there is no home directory")
        kept = _compile(program, target)
        if path:
            keep(path, kept)
    symbols, code = kept
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return [_callable(engine.get_function_address(symbols[name])) for name in program.entries], engine


def _callable(address: int) -> Callable[[int], None]:
    """A function of numba's calling convention: it returns a status and gives its result through a pointer."""
    native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    unread = ctypes.c_int64(), ctypes.c_void_p()  # result and error: that threads may write to them at once is no harm
    result, error = map(ctypes.addressof, unread)

    def call(arguments: int, _kept: object = unread) -> None:
        status = native(result, error, arguments)
        assert status == 0, f"the kernel ended with status {status}"

    return call


def _compile(program: Program, target: Any) -> tuple[dict[str, str], bytes]:
    """Have numba compile the functions, and make one object file of them."""
    from numba import njit, types  # noqa: PLC0415  # only here: see the top of the file

    source = import_module(program.module)
    compiled: Any = njit
    symbols = {}
    module = llvm.parse_assembly("")
    for name in program.entries:
        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "boundscheck": False, "error_model": "numpy"}
        dispatcher = compiled(types.int64(types.int64), **options)(getattr(source, name))
        (result,) = dispatcher.overloads.values()
        symbols[name] = result.fndesc.llvm_func_name
        module.link_in(llvm.parse_assembly(result.library.get_llvm_str()))
    return symbols, target.emit_object(module)


def fingerprint(program: Program = COLUMNS) -> str:
    """Name everything that the machine code depends on."""
    here = Path(__file__).parent
    modules = (program.module, *program.made_of, "headrace.wire.limits", "headrace.wire.codes")
    named = [here.parents[1].joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    sources = sorted({*here.glob("*.py"), *named})
    digest = hashlib.sha256()
    for part in (
        platform.python_version(),
        metadata.version("numba"),
        metadata.version("llvmlite"),
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    ):
        digest.update(part.encode() + b"\0")
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def cache_directory() -> Path | None:
    """Where compiled kernels are kept: $HEADRACE_CACHE_DIR, or headrace/ in the user's cache; None without a home."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "headrace"
    except RuntimeError:  # a container may run under a number that has neither a name nor a home
        return None


def read_kept(path: Path) -> tuple[dict[str, str], bytes] | None:
    """Give back what was kept; None when there is nothing, or nothing to be believed."""
    try:
        for each in (path.parent, path):
            status = each.stat()
            # Root could do as it likes anyway, and may have put the file into an image.
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                _LOG.warning("%s can be written by others and is not used", each)
                return None
        data = path.read_bytes()
    except OSError:
        return None
    head, _, code = data.removeprefix(_MAGIC).partition(b"\n")
    try:
        described = json.loads(head)
        intact = data.startswith(_MAGIC) and described["sha256"] == hashlib.sha256(code).hexdigest()
    except (ValueError, TypeError, KeyError):
        return None
    return (described["symbols"], code) if intact else None


def keep(path: Path, kept: tuple[dict[str, str], bytes]) -> None:
    """Keep a kernel; where that is not possible, each process compiles its own."""
    symbols, code = kept
    head = json.dumps({"symbols": symbols, "sha256": hashlib.sha256(code).hexdigest()}).encode()
    try:
        path.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_bytes(_MAGIC + head + b"\n" + code)
            written.replace(path)
    except OSError as error:
        _LOG.warning("the compiled kernel cannot be kept (%s): every process will compile it again", error)
