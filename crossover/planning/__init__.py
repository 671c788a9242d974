"""Planning: what jobs cost alone, whether they should share, how often each has its turn, and who shares with whom.

`JobProfile` (one file a job) → `plan` (prediction and verdict) or `pair` (many jobs, several devices). `fair_rates` and
`whole_shares` are the weights, `muri_groups` and `shifts_of` the parameters of the two rules from the literature.
"""

from crossover.planning.admission import JobOutlook, Plan, plan
from crossover.planning.cassini import Shifts, TrafficPattern, beats_for, best_shifts, shifts_of
from crossover.planning.memory import Memory, gigabytes, memory_of
from crossover.planning.muri import Interleaving, groups_of, interleave, muri_groups, stages_of
from crossover.planning.pairing import PairingPlan, best_pairs, place
from crossover.planning.pairs import Pairing, pair
from crossover.planning.profiles import JobProfile, profile_of, read_profile, write_profile, write_text_whole
from crossover.planning.rates import Rates, TurnShares, fair_rates, shares_for, whole_shares
from crossover.planning.terms import Terms
from crossover.planning.verdicts import Reason, Verdict

__all__ = [
    "Interleaving",
    "JobOutlook",
    "JobProfile",
    "Memory",
    "Pairing",
    "PairingPlan",
    "Plan",
    "Rates",
    "Reason",
    "Shifts",
    "Terms",
    "TrafficPattern",
    "TurnShares",
    "Verdict",
    "beats_for",
    "best_pairs",
    "best_shifts",
    "fair_rates",
    "gigabytes",
    "groups_of",
    "interleave",
    "memory_of",
    "muri_groups",
    "pair",
    "place",
    "plan",
    "profile_of",
    "read_profile",
    "shares_for",
    "shifts_of",
    "stages_of",
    "whole_shares",
    "write_profile",
    "write_text_whole",
]
