"""A fabric that cannot be had is refused with the alternative; nothing is built halfway."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from fabric import emulated, enclosure, namespaces, probe
from fabric.api import FabricError, FabricKind, FabricSpec, Host, build, command_prefix

EMULATED = FabricSpec(kind=FabricKind.EMULATED)
NATIVE = FabricSpec(kind=FabricKind.NATIVE, num_hosts=3, rate_bps=None)


def test_without_namespaces_the_prefix_is_refused_and_names_the_native_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclosure, "refusal", lambda: "unshare failed: Operation not permitted")
    with pytest.raises(FabricError, match=r"Operation not permitted.*--fabric native"):
        command_prefix(EMULATED)


def test_without_unshare_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(FabricError, match="install util-linux"):
        command_prefix(EMULATED)


def test_what_unshare_says_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        enclosure, "enclosure", lambda rootless=None: ["sh", "-c", "echo no namespaces left >&2; exit 1"]
    )
    assert enclosure.refusal() == "no namespaces left"


def test_outside_an_enclosure_an_unprivileged_build_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise PermissionError(errno.EPERM, "unshare: Operation not permitted")

    monkeypatch.setattr(namespaces, "new_network", refuse)
    with pytest.raises(FabricError, match="command_prefix"):
        build(EMULATED)


def test_a_build_that_fails_lets_go_of_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def one_only() -> int:
        if made:
            raise OSError(errno.ENOSPC, "no more namespaces")
        made.append(os.open("/dev/null", os.O_RDONLY))
        return made[0]

    monkeypatch.setattr(namespaces, "new_network", one_only)
    with pytest.raises(FabricError, match=r"no more namespaces.*native"):
        build(EMULATED)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


def test_congestion_control_that_the_kernel_lacks_is_refused_with_those_it_has() -> None:
    spec = FabricSpec(kind=FabricKind.EMULATED, congestion="carrier_pigeon")
    with pytest.raises(FabricError, match=r"'carrier_pigeon'.*reno"):
        emulated.EmulatedCluster(spec)


def test_native_hosts_are_this_machine_and_have_no_counters_of_their_own() -> None:
    with build(NATIVE) as cluster:
        assert [host.address for host in cluster.hosts] == ["127.0.0.1"] * 3
        assert {host.interface for host in cluster.hosts} == {"lo"}
        assert cluster.counters() is None
        with pytest.raises(FabricError, match="hosts 0 to 2"):
            cluster.enter(3)


def test_a_native_lab_shares_the_machines_namespaces() -> None:
    assert command_prefix(NATIVE) == []


def test_the_hosts_file_has_every_name_once() -> None:
    hosts = [Host(index=i, name=f"host{i}", address=f"10.0.0.{i + 1}", interface="uplink") for i in range(3)]
    names = [line.split()[1] for line in namespaces.hosts_file(hosts).splitlines() if not line.startswith("::1")]
    assert names == [
        *("localhost", "host0", "host1", "host2"),
        *("host0.mapped", "host1.mapped", "host2.mapped"),
    ]


def test_a_machine_without_namespaces_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclosure, "refusal", lambda rootless=None: "forbidden")
    found = probe.capabilities()
    assert not any(capability.ok for capability in found)
    assert all(capability.detail == "forbidden" and capability.remedy for capability in found)


def test_features_that_cannot_be_tried_are_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclosure, "refusal", lambda rootless=None: None)
    failed = subprocess.CompletedProcess([], 1, "", "kernel says no")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    found = probe.capabilities()
    assert (found[-1].ok, found[-1].detail) == (False, "kernel says no")


@pytest.mark.emulated
def test_where_nothing_is_lacking_every_feature_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    found = probe.capabilities()
    if missing := [one.name for one in found if one.required and not one.ok]:
        pytest.skip(f"lacking: {', '.join(missing)}")
    names = {capability.name for capability in found}
    assert names >= {"switch and cables", "line rate", "congestion control cubic"}
