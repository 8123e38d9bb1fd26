"""The loop of `headrace node`: serve until a signal says stop."""

import asyncio
import signal

import typer
import uvloop

from headrace.node.server import AsyncNode, NodeOptions


def serve(options: NodeOptions) -> None:
    """Run a node in this process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: NodeOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncNode(options) as node:
        typer.echo(f"headrace node ready on {node.address.host}:{node.address.port}")
        await stop.wait()
