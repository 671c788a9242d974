"""In how many set-ups on a cluster's links compression pays, if codecs take so many times as long as they are charged.

    python benchmarks/codec_sensitivity.py [--factors 1 3 10 30] [--workers 8 16 64] [--json]

The times of a V100's codecs are derived from copies, so what they decide is asked of other times too. By the virtual
clock, on the predicted grid of the suite `compression`; a set-up pays where its step is shorter than those of float32
and half. Half precision stays as charged.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from dataclasses import replace

from harness.predict.codecs import charge_of, with_charge
from harness.predict.costs import LinkCosts
from harness.predict.layers import layers_of_workload
from harness.predict.paced import paced_costs
from harness.predict.trial import foretell_job
from harness.trial import Trial
from results.facts import Role
from suites.api import Options
from suites.compression.grid import SUITE
from suites.compression.study import DATA_CENTRE_GBIT

RIVALS = (Role.DENSE, Role.RIVAL)


def slower(costs: LinkCosts, factor: float) -> LinkCosts:
    """The same with codecs that take `factor` times as long."""
    before, after = costs.engine.device_codec_s_per_byte
    return replace(costs, engine=replace(costs.engine, device_codec_s_per_byte=(factor * before, factor * after)))


def step_s(trial: Trial, world: int, factor: float) -> float:
    """Seconds of a predicted step among `world` workers."""
    (job,) = trial.jobs
    costs = with_charge(paced_costs(trial.fabric, world), job, world)
    if job.role not in RIVALS:
        costs = slower(costs, factor)
    return foretell_job(job, layers_of_workload(job.workload), costs).step.step_s


def main() -> None:
    """Count set-ups that pay, by factor and link."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 3.0, 10.0, 30.0])
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    assert SUITE.predicted is not None
    trials = [trial for trial in SUITE.predicted(Options()) if (trial.at or 0.0) >= DATA_CENTRE_GBIT]
    places: dict[tuple[str, float], list[Trial]] = defaultdict(list)
    for trial in trials:
        places[trial.jobs[0].workload.network, trial.at or 0.0].append(trial)
    for factor in options.factors:
        pays, all_of = Counter[float](), Counter[float]()
        for world in options.workers:
            for (_, gbit), cells in places.items():
                charged = [
                    c for c in cells if c.jobs[0].role in RIVALS or not isinstance(charge_of(c.jobs[0], world), str)
                ]
                rival_s = min(step_s(cell, world, factor) for cell in charged if cell.jobs[0].role in RIVALS)
                own_s = [step_s(cell, world, factor) for cell in charged if cell.jobs[0].role not in RIVALS]
                pays[gbit] += sum(each_s < rival_s for each_s in own_s)
                all_of[gbit] += len(own_s)
        row = {
            "times as long": factor,
            **{f"{gbit:g} Gbit/s": f"{pays[gbit]} of {all_of[gbit]}" for gbit in sorted(all_of)},
        }
        print(
            json.dumps(row) if options.json else "  ".join(f"{name}: {value}" for name, value in row.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
