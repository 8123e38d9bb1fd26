"""The loop of `headrace node`: serve until a signal says stop."""

import asyncio
import gc
import resource
import signal

import typer
import uvloop

from headrace.node.server import AsyncNode, NodeOptions


def serve(options: NodeOptions) -> None:
    """Run a node in this process."""
    _raise_file_limit()
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
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncNode(options) as node:
        gc.freeze()  # what is there now stays: the collector need not look at it again
        typer.echo(f"headrace node ready on {node.address.host}:{node.address.port}")
        await stop.wait()
