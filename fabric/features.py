"""Try what the emulated fabric asks of the kernel, in an enclosure: `python -m fabric.features` prints JSON.

Each attempt has a network namespace of its own and uses the code that builds the cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from fabric import links, namespaces
from fabric.probe import Capability
from fabric.shaping import shaping_for

_RATE_BPS = 200e6
_MTU = 1500
_SUBNET = "10.77.0.0"


def main() -> None:
    """Try each feature and print what was found as JSON."""
    found = [
        _tried("switch and cables", _lay_cable, "load the kernel modules bridge and veth"),
        _tried("line rate", _shape, "load the kernel module sch_htb; until then use --rate none"),
        _tried("congestion control cubic", partial(_route, "cubic"), "load the kernel module tcp_cubic, or use reno"),
        _tried("congestion control reno", partial(_route, "reno"), "use cubic", required=False),
    ]
    print(json.dumps([asdict(capability) for capability in found]))


def _tried(name: str, attempt: Callable[[IPRoute], None], remedy: str, *, required: bool = True) -> Capability:
    network = namespaces.new_network()
    try:
        with namespaces.inside(network), IPRoute() as ip:
            attempt(ip)
    except (OSError, NetlinkError) as error:
        return Capability(name=name, ok=False, detail=str(error), remedy=remedy, required=required)
    finally:
        os.close(network)
    return Capability(name=name, ok=True, detail="works", required=required)


def _lay_cable(ip: IPRoute) -> None:
    far_end = namespaces.new_network()
    try:
        links.add_cable(ip, links.add_switch(ip), 0, far_end, _MTU)
    finally:
        os.close(far_end)


def _shape(ip: IPRoute) -> None:
    links.add_queue(ip, links.raise_link(ip, "lo"), shaping_for(_RATE_BPS, _MTU))


def _route(congestion: str, ip: IPRoute) -> None:
    links.add_route(ip, links.raise_link(ip, "lo"), _SUBNET, congestion)


if __name__ == "__main__":
    main()
