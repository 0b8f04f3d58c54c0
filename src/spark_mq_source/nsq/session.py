"""One live connection to an nsqd: answers go to the futures that wait, messages to the consumer's queue.

How it is used, to read::

    session = Session(options, host, port)              # connected, negotiated, authorized
    session.identified                                  # max_rdy_count, msg_timeout_ms, max_msg_timeout_ms, version, ...
    consumer = session.subscribe(topic, channel)        # waits for OK; one a session
    consumer.ready(2500)                                # RDY: the ceiling of what is in flight; again at any time
    runs = consumer.receive(max_bytes=..., timeout_seconds=...)   # list[commands.Messages]: raw frames, views; [] = idle
    consumer.touch(ids); consumer.requeue(ids, delay_ms=0); consumer.fin(ids)     # ids: 16 bytes each, in one bytes
    unfinished = consumer.close(timeout_seconds)        # CLS barrier: RDY 0, CLS, what slips in is put back by REQ 0
    session.close()

`unfinished` is the ids whose FIN nsqd refused: they will be delivered again, or are already. It is complete, because
nsqd does what a connection sends in order: what it has to say about the FINs comes before CLOSE_WAIT. Where the
connection breaks before the barrier, `close` raises, and the outcome of every FIN sent is unknown.

The ids of a run, and its columns, come from `messages`: `MessageDecoder.append(run)` returns the ids of the run it has
decoded; `message_ids(run)` gives them without decoding.

Heartbeats are answered by the driver's thread whatever the caller does. What is received and not yet taken is bounded by
`receive_queue_bytes`: above it the driver's thread sends RDY 0, and the count that was asked for again when half is
taken. (Not reading from the socket, which is what the other formats do, would make nsqd give the connection up.)

And to write::

    session.publish(commands.Mpub(topic, body)).result()   # a Future; the OKs come in order, many may be under way

An error that nsqd closes the connection for ends every future that waits; the first of them has nsqd's own words.
"""
