"""What `crossover plan` shows: a verdict with its reasons, then who pays what; or who shares which device."""

from typing import TYPE_CHECKING, Any

from crossover.commands.texts import milliseconds, percent
from crossover.planning import Pairing, Plan, Verdict, gigabytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_COLOURS = {Verdict.ADMIT: "bold green", Verdict.WARN: "bold yellow", Verdict.REFUSE: "bold red"}
_WHOLE_LINE = 1000  # columns


def print_plan(found: Plan) -> None:
    """Verdict, reasons, a table of jobs, and what it rests on."""
    from rich.text import Text

    console = _console()
    gain = f"  gain {found.gain:.2f} by {found.terms.sharing}, against one job after the other"
    _say(console, Text.assemble((found.verdict.upper(), _COLOURS[found.verdict]), gain))
    for reason in found.reasons:
        mark = "✗" if reason.verdict is Verdict.REFUSE else "!"
        _say(console, Text.assemble("  ", (f"{mark} ", _COLOURS[reason.verdict]), reason.text), indent=4)
    console.print()
    console.print(_job_table(found))
    console.print()
    for line in (_bound_line(found), *found.notes, _use_line(found), _memory_line(found), _assumed_line(found)):
        _say(console, Text(line))


def _console() -> "Console":
    """As wide as the terminal; elsewhere lines stay whole."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WHOLE_LINE)


def _say(console: "Console", line: "Text", *, indent: int = 2) -> None:
    """A line; what does not fit goes on below it, indented."""
    first, *rest = line.wrap(console, console.width - indent)
    console.print(first)
    for part in rest:
        console.print(" " * indent, part, sep="")


def _job_table(found: Plan) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("job", overflow="fold", no_wrap=False)
    for name in ("compute", "messages", "alone", "together", "slower", "of fair share"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in found.jobs:
        times_s = (job.profile.compute_s, job.profile.communication_s, job.profile.solo_s, job.step_s)
        slower = f"{job.slowdown:.2f}×"
        table.add_row(job.profile.name, *map(milliseconds, times_s), slower, percent(job.of_fair_share))
    return table


def _bound_line(found: Plan) -> str:
    best = found.bound
    return f"at best {best.gain:.2f}: T* {milliseconds(best.period_s)}, bound by {best.limiting}"


def _use_line(found: Plan) -> str:
    link = "shared by flows" if found.terms.fair_link else "in turns"
    return f"device {percent(found.device_busy)} busy, link {percent(found.link_busy)} ({link})"


def _assumed_line(found: Plan) -> str:
    handover = f"{found.terms.handover_s * 1e6:.0f} µs a hand-over, " if found.terms.sharing.takes_turns else ""
    return f"assumed: {handover}interference {percent(found.terms.interference)}"


def _memory_line(found: Plan) -> str:
    memory = found.memory
    if not memory.kept_bytes:
        return "memory: the profiles do not say"
    there = "" if memory.device_bytes is None else f" of {gigabytes(memory.device_bytes)}"
    kept = f" ({gigabytes(memory.kept_bytes)} if each process keeps its activations)"
    return f"memory: {gigabytes(memory.needed_bytes)}{there}{'' if memory.kept_bytes == memory.needed_bytes else kept}"


def print_pairing(found: Pairing) -> None:
    """A table of devices, who waits, and what speaks against a pair."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _console()
    num_devices = f"{len(found.devices)} device{'s' if len(found.devices) > 1 else ''}"
    _say(console, Text(f"throughput {found.throughput:.2f} on {num_devices}; a job alone counts 1"))
    if found.waiting:
        _say(console, Text(f"waiting for a device: {', '.join(found.waiting)}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("device", justify="right")
    table.add_column("jobs", overflow="fold")
    for name in ("gain", "slower", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, (jobs, shared) in enumerate(zip(found.devices, found.plans, strict=True), start=1):
        table.add_row(str(number), " + ".join(jobs), *_pair_cells(shared))
    console.print()
    console.print(table)
    for shared in filter(None, found.plans):
        names = " + ".join(job.profile.name for job in shared.jobs)
        for reason in shared.reasons:
            _say(console, Text.assemble(("! ", _COLOURS[reason.verdict]), f"{names}: {reason.text}"))


def _pair_cells(shared: Plan | None) -> tuple[str, str, "Text"]:
    from rich.text import Text

    if shared is None:
        return "1.00", "1.00×", Text("alone")
    slower = " ".join(f"{job.slowdown:.2f}×" for job in shared.jobs)
    return f"{shared.gain:.2f}", slower, Text(shared.verdict, _COLOURS[shared.verdict])
