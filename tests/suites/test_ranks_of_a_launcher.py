"""Ranks that torchrun and others have started: who they are, and that they do the suite together."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
from commands import ONE_TRIAL, Command, Started
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s

import suites.commands.run
from harness.lab.launched import merge, own_host
from harness.lab.messages import Answer, Ending, LinkTimes, answer_from, to_line
from harness.lab.spmd import LaunchError, Placement, first_host, is_spoken_for, placement, rank_said
from harness.mpi.library import mpiexec, why_no_mpi
from results.record import Status, read_records

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **MEETING}
OTHERS = {
    "horovodrun": {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "srun": {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    },
    "mpiexec": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
}
RUNS = {  # what tells a run from others
    "horovodrun": {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.9", "HOROVOD_GLOO_RENDEZVOUS_PORT": "41234"},
    "mpirun": {"PMIX_NAMESPACE": "3418226689"},
    "srun": {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
}
LOCAL_SIZES = {
    "horovodrun": "HOROVOD_LOCAL_SIZE",
    "mpirun": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "srun": "SLURM_STEP_TASKS_PER_NODE",
    "mpiexec": "MPI_LOCALNRANKS",
}


def test_without_a_launcher_there_is_no_placement() -> None:
    assert placement({}) is None
    assert placement(MEETING) is None
    assert placement({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", **MEETING}) is None  # a batch script, not a step


def test_torchrun_says_who_a_rank_is_and_where_all_meet() -> None:
    placed = placement({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert placed == Placement(
        launcher="torchrun",
        rank=1,
        world=4,
        local_rank=1,
        num_local=2,
        address="127.0.0.1",
        port=29511,
        serves_store=False,
        attempt=2,
    )


@pytest.mark.parametrize("launcher", OTHERS)
def test_other_launchers_say_it_too(launcher: str) -> None:
    placed = placement({**OTHERS[launcher], **MEETING})
    assert placed is not None
    assert (placed.launcher, placed.rank, placed.world, placed.local_rank, placed.num_local) == (launcher, 3, 4, 1, 2)


@pytest.mark.parametrize("launcher", OTHERS)
def test_over_several_machines_a_launcher_that_names_no_address_needs_one(launcher: str) -> None:
    with pytest.raises(
        LaunchError,
        match=f"{launcher} started rank 3 of 4 on several machines, but MASTER_ADDR is not set, .*set it for",
    ):
        placement({**OTHERS[launcher], **RUNS.get(launcher, {})})


def test_where_nothing_tells_runs_apart_several_machines_need_a_port() -> None:
    with pytest.raises(
        LaunchError, match=r"on several machines, but MASTER_PORT is not set, .* a free port on the mach"
    ):
        placement({**OTHERS["mpiexec"], "MASTER_ADDR": "node7"})


@pytest.mark.parametrize("launcher", OTHERS)
def test_on_one_machine_ranks_need_no_port_and_name_their_run_alike(launcher: str) -> None:
    """MPICH's mpiexec says nothing of its run, so its process does."""
    alone = {**OTHERS[launcher], **RUNS.get(launcher, {}), LOCAL_SIZES[launcher]: "4"}
    placed = [placement({**alone, next(iter(OTHERS[launcher])): str(rank)}) for rank in range(4)]
    assert {(own.address, own.port) for own in placed if own} == {("127.0.0.1", 0)}
    (run,) = {own.run for own in placed if own}
    assert run
    other = {name: value + "1" for name, value in RUNS.get(launcher, {}).items()}
    assert (getattr(placement({**alone, **other}), "run", "") != run) is (launcher in RUNS)


def test_ranks_behind_a_shell_have_the_launcher_in_common(tmp_path: Path) -> None:
    """Each shell is another parent; what started the shells is the launcher."""
    show = "import os; from harness.lab.spmd import placement; print(placement(os.environ).run)"
    script = tmp_path / "rank.sh"
    script.write_text(f"PMI_RANK=$1 {sys.executable} -c '{show}'\ntrue\n")
    words = "for rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALNRANKS=2 sh $0 $rank; done"
    told = subprocess.run(["sh", "-c", words, script], capture_output=True, text=True, cwd=CHECKOUT, check=True).stdout
    assert len(told.split("\n")) == 3, told
    (run,) = set(told.splitlines())
    assert run != f"mpiexec {os.getpid()}"  # of the shell with the loop, which has no rank itself


@pytest.mark.parametrize("launcher", RUNS)
def test_what_the_user_sets_comes_first_on_several_machines(launcher: str) -> None:
    placed = placement({**OTHERS[launcher], **RUNS[launcher], **MEETING})
    assert placed is not None
    assert (placed.address, placed.port, placed.run) == ("127.0.0.1", 29511, "")
    address_only = placement({**OTHERS[launcher], **RUNS[launcher], "MASTER_ADDR": "node7"})
    assert address_only is not None
    assert (address_only.address, 10_000 <= address_only.port < 20_000) == ("node7", True)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12],login1", "gpu07"),
        ("node1,node2", "node1"),
        ("rack[1-2]n[03-04]", "rack1n03"),
        ("a-b", "a-b"),
        ("n[3,5]-ib", "n3-ib"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_under_srun_ranks_meet_on_the_first_node_of_the_step() -> None:
    slurm = {**OTHERS["srun"], **RUNS["srun"], "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
    expected = {"10.0.0.1": {}, "c[1-9]": {"SLURM_JOB_NODELIST": "c[1-9]"}}
    expected["d4"] = {"SLURM_JOB_NODELIST": "c[1-9]", "SLURM_STEP_NODELIST": "d4,c9"}
    found = [getattr(placement({**slurm, **lists}), "address", "") for lists in expected.values()]
    assert found == ["10.0.0.1", "c1", "d4"]


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "4"), ("WORLD_SIZE", "many"), ("MASTER_PORT", ""), ("RANK", "-1")]
)
def test_numbers_that_are_none_are_named(name: str, value: str) -> None:
    with pytest.raises(LaunchError, match=f"{name}='?{value}"):
        placement({**TORCHRUN, name: value})


@pytest.mark.parametrize(("serves", "environment"), [(True, {"RANK": "0"}), (False, {"RANK": "1"})])
def test_rank_0_serves_the_store_where_the_launcher_does_not(serves: bool, environment: dict[str, str]) -> None:
    placed = placement({**TORCHRUN, **environment})
    assert placed is not None
    assert placed.serves_store is serves


def test_the_first_rank_of_a_machine_speaks_for_the_others_there() -> None:
    alone, first, second = {"RANK": "1"}, {**TORCHRUN, "RANK": "0"}, {**TORCHRUN, "RANK": "2", "LOCAL_RANK": "0"}
    assert [is_spoken_for(own) for own in ({}, alone, first, second, TORCHRUN)] == [False, False, False, False, True]
    assert [rank_said(own) for own in ({}, alone, first, second, TORCHRUN)] == ["", "", "", "rank 2: ", "rank 1: "]


def test_a_host_is_the_address_that_leads_to_rank_0() -> None:
    placed = placement(TORCHRUN)
    assert placed is not None
    host = own_host(placed)
    assert (host.index, host.name, host.address, host.interface) == (1, socket.gethostname(), "127.0.0.1", "lo")


def test_an_unknown_meeting_place_is_named() -> None:
    placed = placement({**TORCHRUN, "MASTER_ADDR": "no.such.host.invalid"})
    assert placed is not None
    with pytest.raises(LaunchError, match=r"MASTER_ADDR='no\.such\.host\.invalid' cannot be reached .*set it to"):
        own_host(placed)


answers = st.builds(
    Answer,
    ending=st.sampled_from(Ending),
    reason=st.text(max_size=9),
    links=st.lists(
        st.builds(LinkTimes, rank=st.integers(0, 9), num_bytes=st.just((4,)), times_s=st.just(((0.5,),))), max_size=2
    ).map(tuple),
)


@given(answers)
def test_an_answer_travels_as_json(answer: Answer) -> None:
    assert answer_from(to_line(answer)) == answer


@given(st.lists(answers, min_size=1, max_size=5))
def test_ranks_together_are_done_only_if_each_is(given_answers: list[Answer]) -> None:
    merged = merge(given_answers)
    assert (merged.ending is Ending.DONE) == all(answer.ending is Ending.DONE for answer in given_answers)
    if merged.ending is Ending.DONE:
        assert sorted(times.rank for times in merged.links) == [times.rank for times in merged.links]
        assert len(merged.links) == sum(len(answer.links) for answer in given_answers)
    else:
        assert all(answer.reason in merged.reason for answer in given_answers)


def set_torchrun(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    for name, value in {**TORCHRUN, "RANK": str(rank), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--hosts", "3", "--fabric", "native"),
            "--hosts 3, but torchrun started 2 ranks; leave --hosts out or start 3",
        ),
        (("--fabric", "emulated"), "--fabric emulated under torchrun: .*add --fabric native, or run without torchrun"),
        ((), "--fabric emulated under torchrun: .*add --fabric native"),
    ],
)
def test_a_request_that_does_not_fit_the_ranks_is_refused_and_said_once(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    set_torchrun(monkeypatch, rank=0)
    first = command("run", "quick", *words)
    set_torchrun(monkeypatch, rank=1)
    second = command("run", "quick", *words)
    assert (first.code, second.code) == (2, 2)
    assert re.search(message, first.words)
    assert not second.err


def test_what_is_wrong_on_one_rank_alone_is_said_with_its_rank(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch")

    monkeypatch.setattr(suites.commands.run, "suite_of", fail)
    set_torchrun(monkeypatch, rank=1)
    ended = command("run", "quick", "--fabric", "native")
    assert ended.code == 2
    assert ended.words.startswith("crossover-bench: rank 1: scratch: No space left on device; free some space")


def test_another_machine_says_what_is_wrong_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    set_torchrun(monkeypatch, rank=1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    ended = command("run", "quick", "--fabric", "native", "--data", "/only/there")
    assert ended.words.startswith("crossover-bench: rank 1: --data '/only/there' does not exist")


def test_dry_run_under_a_launcher_shows_its_ranks(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    set_torchrun(monkeypatch, rank=0)
    rows = json.loads(command("run", "quick", "--fabric", "native", "--dry-run", "--json").out)
    assert {row["hosts"] for row in rows} == {2}


def test_torchrun_runs_a_suite_and_rank_0_alone_records_it(tmp_path: Path, scratch: Path, preloaded: list[str]) -> None:
    folder = tmp_path / "records"
    cells = ("--only", "real/resnet20-digits/fixed-buckets", "--only", "sharing/resnet20-digits+resnet20-digits/cross")
    suite = (*preloaded, "-m", "suites", *ONE_TRIAL, *cells, "--trace", "--out", str(folder))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    started = Started((*preloaded[1:], *torchrun, *suite), {"TMPDIR": str(scratch)})
    ended = started.ended()
    assert ended.code == 0, ended.err
    records = list(read_records([folder]))
    assert [record.status for record in records] == [Status.OK] * 2, [record.reason for record in records]
    assert [[len(job.ranks) for job in record.jobs] for record in records] == [[2], [2, 2]]
    assert {record.fabric.label for record in records} == {"measured"}
    assert len(list((folder / "traces").iterdir())) == 2
    assert ended.err.count("2 trials, up to") == 1
    assert not started.alive()
    assert not list(scratch.glob("crossover-bench-*"))


MEET = """
from harness.lab.launched import LaunchedRanks
from harness.lab.spmd import own_placement
placed = own_placement()
ranks = LaunchedRanks(placed)
if placed.rank:
    ranks.follow()
else:
    print(len(ranks._meeting.path) > 0, placed.world, flush=True)
    ranks.close()
"""


@pytest.mark.skipif(why_no_mpi() is not None, reason=why_no_mpi() or "")
def test_ranks_of_a_plain_mpiexec_meet_without_a_port(scratch: Path, preloaded: list[str]) -> None:
    """The README promises it, and MPICH tells its ranks neither an address nor a name of their run."""
    line = [str(mpiexec()), "-n", "3", *preloaded, "-u", "-c", MEET]
    unset = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    with subprocess.Popen(line, cwd=CHECKOUT, env={**unset, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE) as started:
        said, _ = started.communicate(timeout=patience_s(60))
    assert (started.returncode, said.split()) == (0, [b"True", b"3"])
    assert not list(scratch.iterdir())


def test_a_killed_rank_ends_all_and_leaves_no_record(tmp_path: Path, scratch: Path, preloaded: list[str]) -> None:
    folder = tmp_path / "records"
    words = ("run", "quick", "--fabric", "native", "--strategy", "fixed-buckets", "--steps", "2000", "--repeats", "1")
    cell = ("--only", "real/resnet20-digits/fixed-buckets", "--out", str(folder))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    started = Started((*preloaded[1:], *torchrun, *preloaded, "-m", "suites", *words, *cell), {"TMPDIR": str(scratch)})
    kill_one_rank(started)
    ended = started.ended()
    assert ended.code == 1
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert not started.left()  # the killed rank's lab ends by itself, and nobody waits for it


def kill_one_rank(started: Started) -> None:
    """Wait until a rank trains, and kill its launcher process of rank 1."""
    deadline_s = monotonic() + patience_s(100)  # five processes import torch first
    while monotonic() < deadline_s and started.process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # one that ended while it was looked at: look again
            labs = [process for process in started.alive() if process.cmdline()[1:3] == ["-m", "harness.lab"]]
            if len(labs) >= 4:  # two labs and the ranks they forked
                (victim,) = [
                    p for p in started.alive() if p.environ().get("RANK") == "1" and "harness.lab" not in p.cmdline()
                ]
                victim.kill()
                return
        sleep(0.05)
    pytest.fail(f"there was no rank to kill: {started.ended()}")
