"""The options that name a simulated network, for every command that takes one."""

from __future__ import annotations

import argparse

from fabric.network import FLUID, HostChoice, NetworkSpec, Paths

NAMES = ("transport", "placement", "paths", "own_hosts", "failed_cables")  # of what goes with --network
EXAMPLE = "fat-tree(k=8, gbit=25)"


def add_network_options(command: argparse.ArgumentParser) -> None:
    """`--network` and what goes with it; light enough for `--help`."""
    command.add_argument("--network", metavar="TEXT", help=f"a simulated network, such as '{EXAMPLE}'")
    command.add_argument("--transport", metavar="T", help=f"with --network: its transport (default {FLUID})")
    command.add_argument("--placement", metavar="P", help="with --network: packed (default), spread or random")
    command.add_argument("--paths", metavar="P", help="with --network: ecmp (default), first-fit or least-loaded")
    command.add_argument("--own-hosts", action="store_true", help="with --network: each job on hosts of its own")
    command.add_argument("--failed-cables", type=int, metavar="N", help="with --network: so many cables have failed")


def network_from(arguments: argparse.Namespace) -> NetworkSpec | None:
    """The network that was asked for, if one was. Raises: NetworkError with value and remedy."""
    from fabric.simulated.graph import NetworkError  # numpy comes with it

    given = {name: getattr(arguments, name) for name in NAMES}
    if arguments.network is None:
        for name, value in given.items():
            if value not in (None, False):
                option = f"--{name.replace('_', '-')}"
                raise NetworkError(f"{option} without --network; name one, e.g. --network '{EXAMPLE}'")
        return None
    placement = given["placement"] or HostChoice.PACKED
    if placement not in set(HostChoice):
        raise NetworkError(f"--placement {placement!r} is none; use one of {', '.join(HostChoice)}")
    paths = given["paths"] or Paths.ECMP
    if paths not in set(Paths):
        raise NetworkError(f"--paths {paths!r} are none; use one of {', '.join(Paths)}")
    if (num_failed := given["failed_cables"] or 0) < 0:
        raise NetworkError(f"--failed-cables {num_failed}; use 0 or more")
    return NetworkSpec(
        topology=arguments.network,
        transport=given["transport"] or FLUID,
        placement=HostChoice(placement),
        own_hosts=given["own_hosts"],
        num_failed=num_failed,
        paths=Paths(paths),
    )
