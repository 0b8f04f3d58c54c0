"""Plans that once failed, or do with a mutation, by what was wrong: the shortest that `tests.simulation` found."""

from __future__ import annotations

from tests.simulation.explore import Fault, Plan

REGRESSIONS: dict[str, Plan] = {
    # A worker that died while it noted its FINs left half a note, which stopped the query for good.
    "half_a_note_of_fins": Plan("stream", 411061010, 1, (Fault("kill", args=("executor-1", 34)),)),
    # Never failed, but random seeds seldom come so far: the mutation slot-as-it-was does here what it breaks.
    "stood_still_while_another_attempt_wrote_its_messages": Plan(
        "drain", 148, 1, (Fault("stall", at=0.806, args=(1, 4.0)),)
    ),
    # Attempts that had lost a speculation held each message for two seconds, found their log ended, and put it back,
    # which gave it to another one of them: a message was delivered hundreds of times, and never to who wanted it.
    "message_went_round_among_lost_attempts": Plan("drain", 1846, 1, (Fault("mute", args=(4, 185)),)),
    # The clock was moved by a day: what might come again was forgotten, and came again. So it was where a query had not
    # run for a day.
    "clock_was_moved_by_a_day": Plan(
        "stream",
        4000014204,
        2,
        (
            Fault("cut_received", args=(4, 16156)),
            Fault("cut_sent", args=(0, 484)),
            Fault("mute", args=(7, 377)),
            Fault("mute", args=(1, 167)),
            Fault("kill", args=("executor-3", 5)),
            Fault("wall_clock", at=4.510928074611769, args=(86400.0,)),
            Fault("stall", at=3.104, args=(2, 4.0)),
            Fault("stall", at=5.734, args=(1, 4.0)),
            Fault("stall", at=0.148, args=(1, 2.5)),
        ),
    ),
}
