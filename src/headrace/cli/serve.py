"""The loop of `headrace node`: serve until a signal says stop."""

import asyncio
import gc
import logging
import os
import resource
import signal

import typer
import uvloop

from headrace.cli.output import OutputError
from headrace.node.options import host_and_port
from headrace.node.server import AsyncNode, NodeOptions, files_max

FILES_BESIDE = 100
"""What a node has open beside its connections: data, sockets, the pipes of its writers."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that ask a node to stop."""

log = logging.getLogger("headrace.node")


def serve(options: NodeOptions) -> None:
    """Run a node in this process."""
    _raise_file_limit()
    needed = options.limits.connections_max + FILES_BESIDE
    if files_max() < needed:
        log.warning(
            "the limit on open files is lower than the connections that the node would take: raise it (ulimit -n)",
            extra={"files_max": files_max(), "needed": needed},
        )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


def _raise_file_limit() -> None:
    """Each connection takes a file descriptor, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: NodeOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        log.debug("told to stop", extra={"signal": number.name})
        stop.set()

    # Until all is open they wait, here and in the writers, which a Ctrl-C reaches too and which would not know it yet.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    for number in ENDING:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup has it ignored
            loop.add_signal_handler(number, told, number)
    async with AsyncNode(options) as node:
        node.services.owns_process = True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        gc.freeze()  # what is there now stays: the collector need not look at it again
        try:
            typer.echo(f"headrace node ready on {host_and_port(node.host, node.port)}")
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {os.strerror(error.errno or 0)}") from error
        await stop.wait()
