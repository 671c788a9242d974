"""Check the scheduler's rules: many schedules of drawn scenarios, then all schedules of a small one.

Schedule n is drawn from `seed` + n alone, so that `--schedules 1 --seed N` repeats one. Ends with 1 on a violation.
"""

import argparse
import sys
from collections import Counter
from random import Random

from checking.scenario import Scenario, drawn
from checking.search import STRATEGIES, exhaust, play, shortened
from crossover.policies import Sharing

_STRATEGIES = tuple(STRATEGIES)


def main(arguments: list[str] | None = None) -> int:
    """Print a summary table, or the first violation with its seed and shortest trace."""
    parser = argparse.ArgumentParser(prog="python -m checking", description="Check the scheduler's rules.")
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to play (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one (default 1)")
    parser.add_argument("--rounds", type=int, default=2, help="of the exhaustive search, 0 for none (default 2)")
    options = parser.parse_args(arguments)
    if not _played(options.seed, options.schedules):
        return 1
    return 0 if not options.rounds or _exhausted(options.rounds) else 1


def _played(seed: int, num_schedules: int) -> bool:
    schedules, events, by_strategy = Counter[Sharing](), Counter[Sharing](), Counter[str]()
    for number in range(seed, seed + num_schedules):
        random = Random(number)
        scenario, strategy = drawn(random), _STRATEGIES[number % len(_STRATEGIES)]
        num_events, finding = play(scenario, random, strategy)
        if finding is not None:
            print(f"seed {number}, {strategy}: {shortened(finding)}")
            return False
        schedules[scenario.sharing] += 1
        events[scenario.sharing] += num_events
        by_strategy[strategy] += 1
    print(f"{'sharing':<14}{'schedules':>10}{'events':>12}{'violations':>12}")
    for sharing in Sharing:
        print(f"{sharing:<14}{schedules[sharing]:>10}{events[sharing]:>12}{0:>12}")
    print(f"{'all':<14}{schedules.total():>10}{events.total():>12}{0:>12}")
    print("by " + ", ".join(f"{strategy} ({number})" for strategy, number in by_strategy.items()))
    return True


def _exhausted(num_rounds: int) -> bool:
    coverage = exhaust(Scenario(num_steps=(num_rounds, num_rounds)), max_states=5_000_000)
    if coverage.finding is not None:
        print(coverage.finding)
        return False
    print(
        f"all schedules of 2 hosts, 2 jobs, {num_rounds} rounds: "
        f"{coverage.num_states} states, {coverage.num_events} events, 0 violations"
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
