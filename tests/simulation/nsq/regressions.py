"""Plans that once failed, or do with a mutation, by what was wrong: the shortest that `tests.simulation` found."""

from __future__ import annotations

from tests.simulation.explore import Fault, Plan

REGRESSIONS: dict[str, Plan] = {
    # A worker that died while it noted its FINs left half a note, which stopped the query for good.
    "half_a_note_of_fins": Plan("stream", 58057, 2, (Fault("kill", args=("executor-1", 34)),)),
    # Never failed: the mutation slot-as-it-was does here what it breaks.
    "stood_still_while_another_attempt_wrote_its_messages": Plan(
        "drain", 148, 1, (Fault("stall", at=0.806, args=(1, 4.0)),)
    ),
    # Not the program's fault: the network took longer for a message and its OK than sendTimeout was.
    "network_slower_than_send_timeout": Plan("write", 4000021880, 4),
    # The clock was moved by a day: what might come again was forgotten, and came again. So it was where a query had not
    # run for a day.
    "clock_was_moved_by_a_day": Plan(
        "available_now",
        13237,
        2,
        (Fault("wall_clock", at=4.74, args=(86400.0,)), Fault("stall", at=0.54, args=(0, 4.0))),
    ),
    # Of two attempts at a task, one had written down messages; the other one learned so when it wanted their slot, and
    # wrote them down once more when a killed nsqd delivered them again.
    "come_again_to_the_attempt_that_lost_their_slot": Plan(
        "stream",
        4100001418,
        5,
        (Fault("kill", at=0.0, args=("driver-0", 8)), Fault("kill_nsqd", at=6.369, args=(0, 40.0))),
    ),
}
