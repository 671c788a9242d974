"""A keeper's turns against a scheduler that writes down what it is asked."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turn_diary import Diary

from crossover import Extent
from crossover.keeper import NUM_SPANS_KEPT, TurnKeeper


def kept(diary: Diary) -> tuple[TurnKeeper, Callable[[str], Callable[[], None]]]:
    """A keeper, and what makes a call that writes itself down."""

    def noting(event: str) -> Callable[[], None]:
        return lambda: diary.events.append(event)

    return TurnKeeper(diary, wait=noting("wait"), idle=noting("idle")), noting


def test_a_turn_waits_for_messages_before_it_asks_and_for_the_device_before_it_releases() -> None:
    diary = Diary()
    keeper, _ = kept(diary)
    keeper.begin()
    assert keeper.in_turn
    keeper.end()
    assert not keeper.in_turn
    assert diary.events == ["wait", "acquire", "idle", "release"]


def test_a_turn_that_lasts_until_the_messages_waits_for_them_before_the_release() -> None:
    diary = Diary(Extent.MESSAGES)
    keeper, _ = kept(diary)
    keeper.begin()
    keeper.end()
    assert diary.events == ["wait", "acquire", "idle", "wait", "release"]


def test_deferred_calls_run_in_order_at_the_beginning_of_the_next_turn() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.defer(noting("step"))
    keeper.defer(noting("zero"))
    assert keeper.is_deferring
    keeper.begin()
    assert not keeper.is_deferring
    assert diary.events == ["wait", "acquire", "step", "zero"]


def test_begin_in_a_turn_asks_for_nothing_but_runs_what_was_deferred() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.begin()
    keeper.defer(noting("step"))
    keeper.begin()
    assert diary.events == ["wait", "acquire", "step"]


def test_a_flush_takes_a_lease_aside_only_when_something_is_deferred() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.flush()
    assert diary.events == []
    keeper.defer(noting("step"))
    keeper.flush()
    assert diary.events == ["wait", "aside", "step", "idle", "release"]
    assert keeper.statistics.num_turns == 0


def test_a_flush_in_a_turn_runs_there() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.begin()
    keeper.defer(noting("step"))
    keeper.flush()
    assert diary.events == ["wait", "acquire", "step"]
    assert keeper.in_turn


def test_a_deferred_call_that_flushes_does_not_overtake_the_next() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.defer(keeper.flush)
    keeper.defer(noting("second"))
    keeper.defer(noting("third"))
    keeper.begin()
    assert diary.events == ["wait", "acquire", "second", "third"]


def test_nothing_ends_a_lease_aside_but_its_block() -> None:
    diary = Diary()
    keeper, _ = kept(diary)
    with keeper.aside():
        keeper.begin()
        keeper.end()
        with keeper.aside():
            diary.events.append("evaluate")
    assert diary.events == ["wait", "aside", "evaluate", "idle", "release"]


def test_an_error_in_a_deferred_call_gives_the_lease_back_and_keeps_the_others() -> None:
    diary = Diary()
    keeper, noting = kept(diary)

    def fail() -> None:
        raise RuntimeError("no step")

    keeper.defer(fail)
    keeper.defer(noting("zero"))
    with pytest.raises(RuntimeError, match="no step"):
        keeper.begin()
    assert not keeper.in_turn
    assert diary.events == ["wait", "acquire", "idle", "release"]
    keeper.begin()
    assert diary.events[-1] == "zero"


def test_an_error_inside_a_lease_aside_gives_it_back() -> None:
    diary = Diary()
    keeper, _ = kept(diary)
    with pytest.raises(RuntimeError), keeper.aside():
        raise RuntimeError("no evaluation")
    assert diary.events[-1] == "release"


def test_an_error_while_the_device_becomes_idle_releases_all_the_same() -> None:
    diary = Diary()

    def fail() -> None:
        raise RuntimeError("device lost")

    keeper = TurnKeeper(diary, wait=lambda: None, idle=fail)
    keeper.begin()
    with pytest.raises(RuntimeError, match="device lost"):
        keeper.end()
    assert diary.events == ["acquire", "release"]
    assert not keeper.in_turn


def test_a_withdrawn_lease_is_counted_and_the_job_goes_on() -> None:
    diary = Diary(lost=frozenset({1}))
    keeper, _ = kept(diary)
    for _ in range(2):
        keeper.begin()
        keeper.end()
    assert keeper.statistics.num_lost == 1
    assert keeper.statistics.num_turns == 2


def test_closing_runs_what_was_deferred_gives_back_the_turn_and_leaves() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.begin()
    keeper.defer(noting("step"))
    keeper.close()
    keeper.close()
    assert diary.events == ["wait", "acquire", "step", "idle", "release"]
    assert diary.has_left


def test_closing_leaves_even_when_the_last_update_fails() -> None:
    diary = Diary()
    keeper, _ = kept(diary)

    def fail() -> None:
        raise RuntimeError("no step")

    keeper.defer(fail)
    with pytest.raises(RuntimeError, match="no step"):
        keeper.close()
    assert diary.has_left


def test_abandoning_forgets_what_was_deferred_and_leaves() -> None:
    diary = Diary()
    keeper, noting = kept(diary)
    keeper.begin()
    keeper.defer(noting("step"))
    keeper.abandon()
    assert "step" not in diary.events
    assert diary.has_left
    assert not keeper.in_turn


def test_statistics_sum_what_the_spans_say() -> None:
    keeper, _ = kept(Diary())
    for _ in range(3):
        keeper.begin()
        keeper.end()
    with keeper.aside():
        pass
    statistics, spans = keeper.statistics, keeper.spans
    assert statistics.num_turns == len(spans) == 3
    assert statistics.waited_s == 4 * 0.25  # the lease aside was waited for too
    assert statistics.held_s >= sum(span.held_s for span in spans)


def test_only_the_latest_spans_are_kept() -> None:
    keeper = TurnKeeper(Diary(), wait=lambda: None, idle=lambda: None)
    for _ in range(NUM_SPANS_KEPT + 5):
        keeper.begin()
        keeper.end()
    assert len(keeper.spans) == NUM_SPANS_KEPT
    assert keeper.statistics.num_turns == NUM_SPANS_KEPT + 5


@given(
    st.lists(st.sampled_from(["begin", "end", "rest", "interrupt", "flush", "defer", "aside"]), max_size=30),
    st.sampled_from(Extent),
)
def test_whatever_is_called_leases_alternate_and_every_deferred_call_runs_once_in_order_under_one(
    calls: list[str], extent: Extent
) -> None:
    diary = Diary(extent)
    keeper, noting = kept(diary)
    num_deferred = 0
    for call in calls:
        if call == "defer":
            keeper.defer(noting(f"call {num_deferred}"))
            num_deferred += 1
        elif call == "aside":
            with keeper.aside():
                pass
        else:
            getattr(keeper, call)()
    keeper.close()
    leases = [event for event in diary.events if event in ("acquire", "aside", "release")]
    assert all((event == "release") == bool(place % 2) for place, event in enumerate(leases))
    assert [event for event in diary.events if event.startswith("call")] == [f"call {n}" for n in range(num_deferred)]
    is_held = False
    for event in diary.events:
        is_held = event in ("acquire", "aside") or (is_held and event != "release")
        assert is_held or not event.startswith("call")
        assert not is_held or event != "wait" or extent is Extent.MESSAGES
