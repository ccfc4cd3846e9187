"""``python -m tests.sim``: runs seeds, says what they covered and which of them fail."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.sim.cluster import Report, simulate
from tests.sim.coverage import Case, Coverage, Fault, transitions
from tests.sim.guards import GUARDS, without


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="number of seeds (200)")
    parser.add_argument("--from", type=int, default=1, metavar="N", dest="first", help="the first of them (1)")
    parser.add_argument("--seed", type=int, metavar="N", help="one seed only; its coverage is not judged")
    parser.add_argument("--trace", action="store_true", help="print what happens, line by line")
    ways = ("websocket", "kafka")
    parser.add_argument("--through", choices=ways, default="websocket", help="how providers are asked")
    parser.add_argument("--break", choices=sorted(GUARDS), dest="broken", help="take a guard out of the engine")
    return parser.parse_args()


def main() -> int:
    """Runs what is asked for.

    Returns:
        1 when an invariant was violated or, over many seeds, something was never exercised.
    """
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    single = arguments.seed is not None
    seeds = [arguments.seed] if single else range(arguments.first, arguments.first + arguments.seeds)
    also = GUARDS[arguments.broken].faults if arguments.broken else frozenset()
    total, failed, began = Coverage(), [], time.monotonic()
    for seed in seeds:
        with without(arguments.broken):
            report = simulate(seed, print if arguments.trace else None, also, through=arguments.through)
        total.merge(report.coverage)
        if report.violations:
            failed.append(seed)
            _print_failure(report, arguments.through)
        elif single:
            print(f"seed {seed}: {report.line_count} lines, digest {report.digest}")
    _print_coverage(total)
    holes = [] if single else total.holes()
    if arguments.through != "websocket":
        holes = [hole for hole in holes if hole != Fault.DISCONNECT]  # there is nobody to leave
    took_s = time.monotonic() - began
    print(f"\n{len(seeds)} seeds in {took_s:.0f} s, {len(failed)} failing{': ' if failed else ''}{failed or ''}")
    for hole in holes:
        print(f"never exercised: {hole}")
    return 1 if failed or holes else 0


def _print_failure(report: Report, through: str) -> None:
    see = f"python -m tests.sim --seed {report.seed} --through {through} --trace"
    print(f"seed {report.seed} FAILS; see it happen: {see}")
    for violation in report.violations:
        print("  " + violation.replace("\n", "\n  "))


def _print_coverage(total: Coverage) -> None:
    for title, names in (("transitions", transitions()), ("edge cases of awaits", Case), ("faults", Fault)):
        print(f"\n{title}")
        for name in names:
            print(f"  {total.counts[name]:7d}  {name}")


if __name__ == "__main__":
    sys.exit(main())
