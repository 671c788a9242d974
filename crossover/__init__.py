"""CrossoverScheduler: distributed training jobs share a device in turns, so that one computes while another
communicates.

Start an arbiter on every host with the same job order (`start`, or `python -m crossover.arbiter`), and take turns in
each job's loop (`Participant`). `bound` says beforehand what it can gain. A reconstruction from the abstract of
"Crossover-SGD" (arXiv 2103.07974); the turn's extent, the protocol and the policies are this package's own choices.
"""

from crossover.attach import Attachment, attach
from crossover.client import Alone, Lease, Participant, TurnTaking
from crossover.errors import ArbiterAbsent, ArbiterLost, CrossoverError, LeaseLost, Refused
from crossover.integrations import ReleasePoint
from crossover.policies import Beat, Extent, Sharing
from crossover.process import ArbiterProcess, start
from crossover.protocol import Resource
from crossover.theory import Bound, JobCost, Limit, bound

__all__ = [
    "Alone",
    "ArbiterAbsent",
    "ArbiterLost",
    "ArbiterProcess",
    "Attachment",
    "Beat",
    "Bound",
    "CrossoverError",
    "Extent",
    "JobCost",
    "Lease",
    "LeaseLost",
    "Limit",
    "Participant",
    "Refused",
    "ReleasePoint",
    "Resource",
    "Sharing",
    "TurnTaking",
    "attach",
    "bound",
    "start",
]
