"""Plans that failed once, by what went wrong: `name` -> the shortest plan found. Each must pass."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.explore import Fault, Plan

REGRESSIONS: Mapping[str, Plan] = {
    # Spark before 4.2 asks for an end without saying the start; one before the start was read from the beginning.
    "rebuilt_without_limits": Plan("rebuilt", seed=4, size=1),
    # A partition that was truncated before anything of it was read stays at "earliest": nothing of it is awaited.
    "truncated_before_the_first_trigger": Plan(
        "stream_removal",
        seed=371,
        size=1,
        faults=(
            Fault("cut_received", args=(5, 17474)),
            Fault("unload", at=0.048, args=(0,)),
            Fault("unload", at=0.255, args=(1,)),
            Fault("kill_broker", at=0.23, args=(0, 8.0)),
            Fault("truncate", at=0.336, args=(1, 0.77)),
        ),
    ),
    # With failOnDataLoss=false nobody waits for what was removed.
    "truncated_under_a_query_that_may_lose": Plan(
        "stream_removal",
        seed=2000190,
        size=3,
        faults=(
            Fault("cut_sent", args=(6, 1157)),
            Fault("cut_received", args=(0, 119)),
            Fault("stop", at=0.396332975140078, args=("driver-1", 12.0)),
            Fault("wall_clock", at=1.4078336928128754, args=(-3600.0,)),
            Fault("truncate", at=1.327, args=(0, 0.49)),
        ),
    ),
    # Truncation takes what is in the current ledger from the consumer that looks for the first message, and leaves it.
    "truncated_while_the_first_message_is_looked_for": Plan(
        "stream_removal",
        seed=2001916,
        size=4,
        faults=(
            Fault("cut_received", args=(6, 74)),
            Fault("mute", args=(2, 1226)),
            Fault("mute", args=(4, 9865)),
            Fault("mute", args=(4, 3390)),
            Fault("kill_broker", at=1.658, args=(1, 8.0)),
            Fault("roll_over", at=0.176, args=(1,)),
            Fault("truncate", at=0.599, args=(1, 0.16)),
        ),
    ),
    # Truncation moved the cursor of a reader between its SUBSCRIBE and the question where it is. That was told as loss,
    # and with failOnDataLoss=false the range was passed over, though its ledger was there.
    "truncated_while_a_range_is_opened": Plan(
        "stream_removal",
        seed=3000000893,
        size=3,
        faults=(
            Fault("mute", args=(4, 1320)),
            Fault("unload", at=0.814, args=(2,)),
            Fault("roll_over", at=0.996, args=(0,)),
            Fault("truncate", at=0.429, args=(0, 0.24)),
        ),
    ),
    # The same of the consumer that the driver opens to see what is really left: what was in the current ledger counted
    # as gone with what was in the ledgers before.
    "truncated_while_the_driver_looks_what_is_left": Plan(
        "stream_removal",
        seed=3000002030,
        size=3,
        faults=(Fault("expire", at=0.117, args=(2, 0.12)), Fault("truncate", at=0.431, args=(2, 0.72))),
    ),
    # The first chunks of a message that was stored were sent again; when the topic was loaded, their low id counted.
    "chunks_written_again_before_an_unload": Plan(
        "write_chunks_exactly_once", seed=2, size=2, faults=(Fault("unload", at=0.224, args=(0,)),)
    ),
    # A damaged chunk was sent again behind those that follow it, and nobody could put the message together.
    "damaged_chunk": Plan(
        "write_chunks_transaction",
        seed=1222,
        size=5,
        faults=(
            Fault("cut_received", args=(1, 119)),
            Fault("wall_clock", at=0.4253581475268827, args=(-3600.0,)),
            Fault("kill_broker", at=0.381, args=(0, 8.0)),
            Fault("send_fail_stored", args=(26,)),
            Fault("send_checksum", args=(31,)),
            Fault("receipt", args=(46, 0.5)),
        ),
    ),
    # While a connection was closed that had not answered in time, an answer came, and what is asked after it was a
    # mistake of the sender's, which is not tried again, instead of a lost connection, which is.
    "answered_while_the_connection_is_closed": Plan(
        "available_now_subscription",
        seed=3000004067,
        size=4,
        faults=(
            Fault("cut_received", args=(2, 196)),
            Fault("mute", args=(3, 9971)),
            Fault("kill", args=("executor-1", 23)),
            Fault("stop", at=0.9581476697869333, args=("driver-0", 70.0)),
        ),
    ),
    # An attempt that was no longer wanted stood still for 150 s and began its transaction then; it was not given the
    # time to run out.
    "transaction_of_an_attempt_that_stood_still": Plan(
        "write_transaction",
        seed=3000008704,
        size=1,
        faults=(
            Fault("cut_received", args=(1, 8542)),
            Fault("kill", args=("executor-2", 3)),
            Fault("kill", args=("executor-0", 3)),
            Fault("stop", at=0.03507205825075901, args=("executor-2", 12.0)),
            Fault("unload", at=0.088, args=(1,)),
            Fault("send_checksum", args=(5,)),
            Fault("send_checksum", args=(6,)),
            Fault("stop", at=0.0009372907884044324, args=("executor-1", 150.0)),
        ),
    ),
    # A broker that deduplicates had refused an entry and stored those behind it; the connection was lost before that
    # was known, and when the entry was sent again it was taken for a duplicate.
    "refusal_lost_with_the_connection": Plan(
        "write_at_least_once",
        seed=3000011079,
        size=4,
        faults=(
            Fault("cut_received", args=(1, 335)),
            Fault("cut_sent", args=(4, 1608)),
            Fault("cut_sent", args=(2, 39)),
            Fault("mute", args=(3, 4934)),
            Fault("kill_broker", at=0.38, args=(0, 0.5)),
            Fault("kill_broker", at=0.189, args=(0, 0.5)),
            Fault("kill_broker", at=0.309, args=(0, 0.5)),
            Fault("send_checksum", args=(10,)),
        ),
    ),
    # The same of a refusal that was known: the entry was sent again, under way when the connection was lost, and then a
    # duplicate that was expected.
    "refused_and_then_a_duplicate": Plan(
        "write_at_least_once",
        seed=331,
        size=2,
        faults=(Fault("send_checksum", args=(3,)), Fault("cut_sent", args=(1, 1539))),
    ),
    "refused_and_then_a_duplicate_in_a_transaction": Plan(
        "write_transaction",
        seed=787,
        size=4,
        faults=(Fault("send_checksum", args=(6,)), Fault("cut_sent", args=(0, 1752))),
    ),
    # A batch was damaged and so was a chunk behind it; what was said of the batch, which is sent again, hid what was
    # said of the chunk, which must not be.
    "damaged_chunk_behind_a_damaged_batch": Plan(
        "write_chunks_at_least_once",
        seed=3000020914,
        size=3,
        faults=(
            Fault("cut_received", args=(2, 110)),
            Fault("cut_sent", args=(4, 869)),
            Fault("kill", args=("executor-2", 52)),
            Fault("unload", at=0.159, args=(2,)),
            Fault("send_checksum", args=(40,)),
            Fault("send_checksum", args=(42,)),
        ),
    ),
    # Spark before 4.2: a cluster was restored to where a topic begins with an open transaction, which looks empty; its
    # partitions were left out of the offsets without a word, and would have been read again from the beginning.
    "restored_to_an_open_transaction": Plan(
        "restored",
        seed=3000001460,
        size=3,
        faults=(Fault("kill", args=("driver-1", 2)), Fault("kill", args=("driver-1", 285))),
    ),
    # A partition was added between the aim of a new query and its start, which is past that aim and reads nothing.
    "partition_added_behind_the_aim": Plan(
        "available_now",
        seed=3000030476,
        size=5,
        faults=(Fault("add_partition", at=0.289, args=(0,)), Fault("unload", at=0.479, args=(1,))),
    ),
    # The cluster was restored before the last foreign transaction had ended, whose marker was then stored just where
    # the query was: its position was on an entry, and nobody can tell that it is another one.
    "restored_and_stored_to_where_the_query_was": Plan(
        "restored",
        seed=3000035750,
        size=1,
        faults=(
            Fault("cut_received", args=(2, 4165)),
            Fault("cut_received", args=(6, 22)),
            Fault("cut_received", args=(0, 1220)),
            Fault("cut_received", args=(5, 8731)),
            Fault("kill", args=("driver-1", 3)),
        ),
    ),
    # The cursor of a reader that had received nothing was moved twice: by the broker, past what it does not deliver,
    # and then by TTL, which was taken for the same.
    "expired_behind_what_is_not_delivered": Plan(
        "stream_removal",
        seed=3000048746,
        size=4,
        faults=(
            Fault("kill", args=("driver-1", 146)),
            Fault("kill", args=("driver-1", 271)),
            Fault("stop", at=1.703789657072257, args=("driver-0", 0.5)),
            Fault("expire", at=1.851, args=(2, 0.75)),
        ),
    ),
    # Before Spark 4.2 a query that had read up to a marker was told of loss when the transaction behind it was aborted:
    # what comes last is before the marker then.
    "ends_with_an_aborted_transaction": Plan("restored", 3200003119, 4),
    # A partition was listed and not there yet when a query looked at it: the query failed.
    "partition_is_listed_before_it_is_there": Plan(
        "available_now", 3300000060, 1, (Fault("add_partition", at=0.412, args=(0,)),)
    ),
    # The consumer of a connection that hung stayed the active one of a Failover subscription for longer than the query
    # waited for its turn.
    "failover_behind_a_connection_that_hangs": Plan(
        "stream_subscription", 7500000391, 1, (Fault("mute", at=0.0, args=(3, 68)),)
    ),
    # What two attempts at a task had acknowledged was put together without a separator, and the query ended.
    "acknowledged_by_two_attempts": Plan("queue_stream", seed=1017, size=5),
    # A consumer that was closed without permits had chunks of a message, and the broker sent it the others for ever.
    "chunks_of_a_consumer_that_is_closed": Plan(
        "queue_stream",
        seed=43,
        size=1,
        faults=(Fault("roll_over", at=0.275, args=(0,)), Fault("unload", at=0.406, args=(2,))),
    ),
    # Ranges of keys that the consumer of a half-open connection still had were an error that is not tried again.
    "key_ranges_of_a_lost_connection": Plan(
        "queue_stream",
        seed=5112,
        size=1,
        faults=(Fault("mute", args=(11, 112)), Fault("kill_broker", at=0.224, args=(1, 0.1))),
    ),
    # Of two attempts at a task one was the active consumer of a Failover subscription. The other one ended their log
    # while the broker still made it wait: run after run was empty.
    "silence_of_a_consumer_that_stands_by": Plan(
        "queue_drain",
        seed=74000100,
        size=4,
        faults=(
            Fault("wall_clock", at=6.247, args=(-3600.0,)),
            Fault("kill_broker", at=2.204, args=(0, 8.0)),
            Fault("foreign", at=6.634, args=(1, 1.0)),
            Fault("foreign", at=4.585, args=(2, 10.0)),
        ),
    ),
    # A killed broker had forgotten what was acknowledged. The first chunk of a message came again and was acknowledged
    # at once; so the broker kept the others for nobody, and what was behind them as well.
    "chunks_that_come_again": Plan(
        "queue_stream",
        seed=240,
        size=4,
        faults=(
            Fault("stall_sent", args=(10, 9736, 0.3)),
            Fault("cut_received", args=(3, 1042)),
            Fault("stop", at=1.470714349242754, args=("driver-0", 12.0)),
            Fault("unload", at=5.693, args=(0,)),
            Fault("kill_broker", at=1.452, args=(1, 0.5)),
            Fault("kill_broker", at=2.061, args=(0, 0.5)),
        ),
    ),
    # A subscription that was there before, and ahead of the entries of an open transaction, stayed there: nothing kept
    # them for a query that began before them, and batch 0 could not be done over.
    "subscription_ahead_of_an_open_transaction": Plan(
        "stream_subscription", seed=8300001617, size=1, faults=(Fault("interrupt", args=(0.0002,)),)
    ),
}
