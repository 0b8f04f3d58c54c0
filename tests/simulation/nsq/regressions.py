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
}
