"""Max-min fair rates: progressive filling of a set of flows, and the local repair after flows came or went.

Rates are max-min fair if and only if every flow has a bottleneck: a full link on which no flow has a higher rate
(Bertsekas and Gallager, Data Networks, 1992, section 6.5.2). So when flows join or end, it is enough to fill anew
those that joined and those that lost their bottleneck, to look who has lost it by that, and to take them in too, until
every flow has one. The others keep their rates, exactly.

A flow stands for `weight` identical ones; its rate is the sum of theirs, and rates are compared per unit of weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabric.simulated.compiled import inlined
from fabric.simulated.graph import Floats, Ints
from fabric.simulated.heap import drop_first, push

ROUNDING = 1e-9  # relative: sums of a thousand doubles are far better than this
NO_ENTRY = -1


class Shares(NamedTuple):
    """Flows on links and what each gets. Entry e is hop e of the flat path array, so lists need no allocation."""

    offsets: Ints  # [flows + 1]
    links: Ints  # [entries]
    owner: Ints  # [entries] the flow
    weight: Floats  # [flows]
    capacity: Floats  # [links] bit/s
    rate: Floats  # [flows] bit/s
    top: Floats  # [links] highest rate per weight of a flow on the link; true where the link is full
    used: Floats  # [links] bit/s
    bar: Floats  # [links] flows from this rate per weight on may have lost their bottleneck here; infinite: none
    head: Ints  # [links] first entry
    after: Ints  # [entries]
    before: Ints  # [entries]
    chosen: Ints  # [flows] 1: in the set that is filled; 2: filled
    touched: Ints  # [links] 1: a link of the set
    load: Floats  # [links] weight that is not filled
    room: Floats  # [links] bit/s
    keys: Floats  # [heap]
    codes: Ints  # [heap]
    flow_list: Ints  # [flows]
    link_list: Ints  # [links]


def shares_of(offsets: Ints, links: Ints, weight: Floats, capacity: Floats) -> Shares:
    """Room for flows over `links`; none is on its links yet."""
    num_flows, num_links, num_entries = len(offsets) - 1, len(capacity), len(links)
    owner = np.repeat(np.arange(num_flows), np.diff(offsets))
    return Shares(
        offsets, links, owner, weight, capacity, rate=np.zeros(num_flows), top=np.zeros(num_links),
        used=np.zeros(num_links), bar=np.full(num_links, np.inf), head=np.full(num_links, NO_ENTRY),
        after=np.full(num_entries, NO_ENTRY), before=np.full(num_entries, NO_ENTRY),
        chosen=np.zeros(num_flows, np.int64), touched=np.zeros(num_links, np.int64),
        load=np.zeros(num_links), room=np.zeros(num_links),
        keys=np.zeros(num_links + 1), codes=np.zeros(num_links + 1, np.int64),
        flow_list=np.zeros(num_flows, np.int64), link_list=np.zeros(num_links, np.int64),
    )  # fmt: skip


@inlined
def put(shares: Shares, flow: int) -> None:
    """Put a flow on its links, with rate 0."""
    shares.rate[flow] = 0.0
    for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
        link = shares.links[entry]
        first = shares.head[link]
        shares.after[entry], shares.before[entry], shares.head[link] = first, NO_ENTRY, entry
        if first != NO_ENTRY:
            shares.before[first] = entry


@inlined
def take_off(shares: Shares, flow: int) -> None:
    """Take a flow off its links; `bar` notes whose bottleneck they may have been."""
    for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
        link, ahead, behind = shares.links[entry], shares.before[entry], shares.after[entry]
        set_bar(shares, link)
        shares.used[link] -= shares.rate[flow]
        if ahead == NO_ENTRY:
            shares.head[link] = behind
        else:
            shares.after[ahead] = behind
        if behind != NO_ENTRY:
            shares.before[behind] = ahead
    shares.rate[flow] = 0.0


@inlined
def choose(shares: Shares, flow: int, num_chosen: int) -> int:
    """Take a flow into the set to be filled, once; return the set's size."""
    if shares.chosen[flow] == 0:
        shares.chosen[flow] = 1
        shares.flow_list[num_chosen] = flow
        num_chosen += 1
    return num_chosen


@inlined
def is_full(shares: Shares, link: int) -> bool:
    """Whether a link carries all that it can."""
    return bool(shares.used[link] >= shares.capacity[link] * (1.0 - ROUNDING))


@inlined
def has_bottleneck(shares: Shares, flow: int) -> bool:
    """Whether some link of the flow is full and nobody on it is faster."""
    own = shares.rate[flow] / shares.weight[flow]
    for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
        link = shares.links[entry]
        if is_full(shares, link) and own >= shares.top[link] * (1.0 - ROUNDING):
            return True
    return False


@inlined
def set_bar(shares: Shares, link: int) -> None:
    """Note that a link's rates change, if it can have been a bottleneck."""
    if is_full(shares, link):
        shares.bar[link] = min(shares.bar[link], shares.top[link] * (1.0 - ROUNDING))


@inlined
def choose_robbed(shares: Shares, link: int, num_chosen: int) -> int:
    """Take in the flows whose bottleneck a link was, and that have none any more; return the set's size."""
    bar = shares.bar[link]
    shares.bar[link] = np.inf
    entry = shares.head[link] if bar < np.inf else NO_ENTRY
    while entry != NO_ENTRY:
        flow = shares.owner[entry]
        was_bottleneck = shares.rate[flow] >= bar * shares.weight[flow]
        if was_bottleneck and shares.chosen[flow] == 0 and not has_bottleneck(shares, flow):
            num_chosen = choose(shares, flow, num_chosen)
        entry = shares.after[entry]
    return num_chosen


@inlined
def repair(shares: Shares, num_chosen: int) -> int:
    """Make all rates max-min fair, given the set of flows that may be wrong; return how many were filled anew.

    The set is in `flow_list[:result]` afterwards, and is no longer marked.
    """
    num_links = 0
    settled = -1
    while num_chosen != settled:
        settled = num_chosen
        num_links = _gather_links(shares, num_chosen, num_links)
        _fill(shares, num_chosen, num_links)
        for place in range(num_links):
            _measure(shares, shares.link_list[place])
        num_chosen = _take_in(shares, num_chosen, num_links)
    for place in range(num_chosen):
        shares.chosen[shares.flow_list[place]] = 0
    for place in range(num_links):
        shares.touched[shares.link_list[place]] = 0
    return num_chosen


@inlined
def _gather_links(shares: Shares, num_chosen: int, num_links: int) -> int:
    """The links of the set, the weight of the set on each, and the room that the flows outside leave."""
    for place in range(num_links):
        link = shares.link_list[place]
        shares.room[link], shares.load[link] = shares.capacity[link] - shares.used[link], 0.0
    for place in range(num_chosen):
        flow = shares.flow_list[place]
        shares.chosen[flow] = 1
        for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
            link = shares.links[entry]
            if shares.touched[link] == 0:
                shares.touched[link] = 1
                shares.room[link], shares.load[link] = shares.capacity[link] - shares.used[link], 0.0
                shares.link_list[num_links] = link
                num_links += 1
            shares.room[link] += shares.rate[flow]
            shares.load[link] += shares.weight[flow]
    return num_links


@inlined
def _fill(shares: Shares, num_chosen: int, num_links: int) -> None:
    """Progressive filling. Shares only grow while others are filled, so an outdated key is met early and renewed."""
    size = 0
    for place in range(num_links):
        link = shares.link_list[place]
        if shares.load[link] > 0.0:
            size = push(shares.keys, shares.codes, size, shares.room[link] / shares.load[link], link)
    left = num_chosen
    while left > 0 and size > 0:
        key, link = shares.keys[0], shares.codes[0]
        size = drop_first(shares.keys, shares.codes, size)
        if shares.load[link] <= ROUNDING:
            continue
        share = max(shares.room[link], 0.0) / shares.load[link]
        if share > key * (1.0 + ROUNDING):
            size = push(shares.keys, shares.codes, size, share, link)
            continue
        left -= _fix_on(shares, link, share)


@inlined
def _fix_on(shares: Shares, link: int, share: float) -> int:
    """Give every unfilled flow on a link its share; return how many there were."""
    count, entry = 0, shares.head[link]
    while entry != NO_ENTRY:
        flow = shares.owner[entry]
        if shares.chosen[flow] == 1:
            shares.chosen[flow] = 2
            shares.rate[flow] = share * shares.weight[flow]
            count += 1
            for other in range(shares.offsets[flow], shares.offsets[flow + 1]):
                shares.room[shares.links[other]] -= shares.rate[flow]
                shares.load[shares.links[other]] -= shares.weight[flow]
        entry = shares.after[entry]
    return count


@inlined
def _measure(shares: Shares, link: int) -> None:
    """What a link carries after a filling; exactly, and who is fastest, where it is full."""
    set_bar(shares, link)
    shares.used[link] = shares.capacity[link] - shares.room[link]
    if is_full(shares, link):
        used, top, entry = 0.0, 0.0, shares.head[link]
        while entry != NO_ENTRY:
            flow = shares.owner[entry]
            used += shares.rate[flow]
            top = max(top, shares.rate[flow] / shares.weight[flow])
            entry = shares.after[entry]
        shares.used[link], shares.top[link] = used, top


@inlined
def _take_in(shares: Shares, num_chosen: int, num_links: int) -> int:
    """Add whom the filling has robbed of a bottleneck, and who is faster where a filled flow has none."""
    inside = num_chosen
    for place in range(num_links):
        num_chosen = choose_robbed(shares, shares.link_list[place], num_chosen)
    for place in range(inside):
        flow = shares.flow_list[place]
        if not has_bottleneck(shares, flow):
            own = shares.rate[flow] / shares.weight[flow]
            for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
                if is_full(shares, shares.links[entry]):
                    num_chosen = _choose_faster(shares, shares.links[entry], own, num_chosen)
    return num_chosen


@inlined
def _choose_faster(shares: Shares, link: int, own: float, num_chosen: int) -> int:
    entry = shares.head[link]
    while entry != NO_ENTRY:
        flow = shares.owner[entry]
        if shares.rate[flow] > own * shares.weight[flow]:
            num_chosen = choose(shares, flow, num_chosen)
        entry = shares.after[entry]
    return num_chosen
