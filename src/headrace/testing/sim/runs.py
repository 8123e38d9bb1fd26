"""Run seeds, and tell of a failure so that it can be had again."""

from __future__ import annotations

import gc
import traceback

from headrace.testing.sim.world import STEPS, World

TAIL_LINES = 60


class SeedError(AssertionError):
    """A seed found something broken. The text has the seed, what is broken, and the end of the trace."""


def run(seed: int, *, steps: int = STEPS, tail_lines: int = TAIL_LINES) -> World:
    """Run one seed; raises `SeedError`."""
    world = World(seed, steps=steps)
    try:
        world.run()
    except Exception as error:
        lines = list(world.lines)[-tail_lines:]
        told = "".join(traceback.format_exception(error)[-8:])
        text = "\n".join((f"seed {seed} fails (steps {steps})", *lines, told, again(seed, steps)))
        raise SeedError(text) from error
    finally:
        gc.collect(0)
    return world


def again(seed: int, steps: int) -> str:
    """The command that runs a seed again."""
    more = f" --steps {steps}" if steps != STEPS else ""
    return f"again: python -m headrace.testing.sim --seed {seed}{more} --trace"
