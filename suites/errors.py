"""Which errors are about the request, and so for the user to read; all others are defects."""

from __future__ import annotations

import errno

REMEDIES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOSPC: "free some space, or name another folder with --out; what was finished is kept, go on with --resume",
    errno.EDQUOT: "free some space, or name another folder with --out; what was finished is kept, go on with --resume",
    errno.EACCES: "name a file or folder that this user may use",
    errno.EPERM: "name a file or folder that this user may use",
    errno.EROFS: "name a folder that can be written",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "name a folder, not a file",
    errno.ELOOP: "name a path whose links end somewhere",
    errno.EMFILE: "raise the limit of open files with `ulimit -n`",
    errno.EIO: "the disk or terminal does not answer; choose another one",
}


def remedy_for(error: OSError) -> str | None:
    """What a user can do about an error of the machine; None where it must be a defect."""
    return REMEDIES.get(error.errno or 0)


def is_about_the_request(error: ValueError) -> bool:
    """Whether `error` names a value of the request and its remedy, rather than being a defect.

    A ValueError from torch or from our own arithmetic is a defect and deserves its traceback.
    """
    return isinstance(error, _request_errors())


def _request_errors() -> tuple[type[ValueError], ...]:
    # Imported here: torch comes with them, and `--help` should not wait for it.
    from analysis.codes.roofline import SpeedError
    from analysis.compare import CompareError
    from analysis.summary import NoRecordsError
    from baselines.catalogue import CatalogueError
    from baselines.outside import OutsideError
    from baselines.parallelism.api import ParallelismError
    from baselines.text import TextError
    from fabric.api import FabricError
    from fabric.simulated.graph import NetworkError
    from harness.asynchrony.cluster import VirtualClusterError
    from harness.engine.checkpoint import CheckpointError
    from harness.engine.layout import GradientError, ParametersChangedError
    from harness.lab.spmd import LaunchError
    from harness.mpi.library import MpiError
    from harness.problems.asked import ProblemError
    from harness.trial import TrialError
    from models.device import DeviceError
    from models.workload import WorkloadError
    from results.record import RecordError
    from suites.catalogue import SuiteError
    from suites.folders import FolderError

    return (
        CatalogueError,
        CheckpointError,
        CompareError,
        DeviceError,
        FabricError,
        FolderError,
        GradientError,
        LaunchError,
        MpiError,
        NetworkError,
        NoRecordsError,
        OutsideError,
        ParallelismError,
        ParametersChangedError,
        ProblemError,
        RecordError,
        SpeedError,
        SuiteError,
        TextError,
        TrialError,
        VirtualClusterError,
        WorkloadError,
    )
