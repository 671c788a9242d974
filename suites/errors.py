"""Which errors are about the request, and so for the user to read; all others are defects."""

from __future__ import annotations


def is_about_the_request(error: ValueError) -> bool:
    """Whether `error` names a value of the request and its remedy, rather than being a defect.

    A ValueError from torch or from our own arithmetic is a defect and deserves its traceback.
    """
    return isinstance(error, _request_errors())


def _request_errors() -> tuple[type[ValueError], ...]:
    # Imported here: torch comes with them, and `--help` should not wait for it.
    from analysis.compare import CompareError
    from analysis.roofline import SpeedError
    from analysis.summary import NoRecordsError
    from baselines.catalogue import CatalogueError
    from baselines.parallelism.api import ParallelismError
    from baselines.text import TextError
    from fabric.api import FabricError
    from harness.engine.checkpoint import CheckpointError
    from harness.lab.spmd import LaunchError
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
        LaunchError,
        NoRecordsError,
        ParallelismError,
        RecordError,
        SpeedError,
        SuiteError,
        TextError,
        TrialError,
        WorkloadError,
    )
