"""`python -m headrace.testing.sim`: run seeds, and print those that fail."""

from __future__ import annotations

import argparse
import sys
import time

from headrace.testing.sim.runs import SeedError, run
from headrace.testing.sim.world import STEPS, TRACE_LINES_MAX


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=_range, metavar="A-B", help="run all from A to B")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how much trouble a run has (default {STEPS})")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--keep-going", action="store_true", help="run the seeds that follow a failing one too")
    options = parser.parse_args()
    seeds = options.seeds or range(options.seed or 0, (options.seed or 0) + 1)
    failed: list[int] = []
    began = time.monotonic()
    for seed in seeds:
        try:
            world = run(seed, steps=options.steps, tail_lines=TRACE_LINES_MAX if options.trace else 60)
        except SeedError as failure:
            failed.append(seed)
            print(
                failure if options.trace or not options.keep_going else str(failure.__cause__).split("\n")[0],
                flush=True,
            )
            print(f"seed {seed} FAILS", flush=True)
            if not options.keep_going:
                break
        else:
            if options.trace:
                print("\n".join(world.lines))
    took_s = time.monotonic() - began
    print(f"{len(seeds)} seeds in {took_s:.1f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
