"""Topics, channels and the delivery of messages, without sockets, clock or files: the caller passes the time.

A message is one `bytes`: the complete frame of its *next* delivery (size, type 2, timestamp, attempts, id, body). The
channels of a topic share it, delivery copies nothing, and only redelivered messages are rebuilt. Queues hold lists of
frames as published, so that the work per message is a list slice.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count, repeat
from typing import TYPE_CHECKING, Final

from spark_mq_source.nsq.protocol.commands import parse_name
from spark_mq_source.nsq.protocol.wire import MESSAGE_HEAD_BYTES
from spark_mq_source.testing.settings import NsqSettings

if TYPE_CHECKING:
    from spark_mq_source.testing.protocol import Connection

# size, frame type, timestamp in nanoseconds, attempts; then 16 bytes of id, then the body
_HEAD: Final = struct.Struct(">iiqH")
_ATTEMPTS: Final = slice(16, 18)
_ID: Final = slice(18, 34)
HEAD_SIZE: Final = MESSAGE_HEAD_BYTES

# A message id is 64 bits in hex: 2^20 nanoseconds since this epoch, the node (10 bits), a number (12 bits).
_EPOCH: Final = 1288834974288

# Approximate size of one socket write.
_WRITE_BYTES: Final = 256 * 1024


def is_valid_name(name: str) -> bool:
    """Return whether a topic or channel name is valid: 1 to 64 of `.a-zA-Z0-9_-`, including the suffix #ephemeral."""
    try:
        parse_name(name)
    except ValueError:
        return False
    return True


def _with_next_attempt(frame: bytes) -> bytes:
    attempts = (int.from_bytes(frame[_ATTEMPTS], "big") + 1) & 0xFFFF  # wraps around as in nsqd
    return frame[:16] + attempts.to_bytes(2, "big") + frame[18:]


class MessageIds:
    """Generator of rising message ids, unique within a topic.

    Args:
        node_id: 0 to 1023.
    """

    def __init__(self, node_id: int) -> None:
        self._node = node_id
        self._next = 0  # the tick and the number within it

    def take(self, count: int, now_ns: int) -> list[bytes]:
        """Return the next ids. Uses ids of the next tick (1.05 ms) early, whereas nsqd waits for the tick."""
        self._next = max(self._next, now_ns >> 20 << 12)
        ids: list[bytes] = []
        while len(ids) < count:
            tick, number = divmod(self._next, 4096)
            size = min(count - len(ids), 4096 - number)
            first = (tick - _EPOCH) << 22 | self._node << 12 | number
            text = struct.pack(f">{size}Q", *range(first, first + size)).hex().encode()
            ids += [text[at : at + 16] for at in range(0, len(text), 16)]
            self._next += size
        return ids


class InFlight(dict[bytes, tuple[bytes, float, float]]):
    """The unanswered messages of one connection, by id: frame, time at which it was sent, and deadline."""

    def add(self, frames: Sequence[bytes], now_s: float, timeout_s: float) -> None:
        """Add messages just sent."""
        idents = [frame[_ID] for frame in frames]
        self.update(zip(idents, zip(frames, repeat(now_s), repeat(now_s + timeout_s))))  # noqa: B905 - times do not end

    def finish_all(self, idents: Sequence[bytes]) -> list[bytes]:
        """Remove messages; return the ids that were not in flight here."""
        pop = self.pop
        return [ident for ident in idents if pop(ident, None) is None]

    def take(self, ident: bytes) -> bytes:
        """Remove a message, which must be in flight; return its frame."""
        return self.pop(ident)[0]

    def touch(self, ident: bytes, now_s: float, timeout_s: float, longest_s: float) -> None:
        """Restart a message's timeout, up to `longest_s` since it was sent; it must be in flight."""
        frame, at_s, _ = self[ident]
        self[ident] = frame, at_s, min(now_s + timeout_s, at_s + longest_s)

    def take_expired(self, now_s: float) -> list[bytes]:
        """Remove timed out messages; return their frames."""
        expired = sorted((deadline_s, ident) for ident, (_, _, deadline_s) in self.items() if deadline_s <= now_s)
        return [self.take(ident) for _, ident in expired]

    def take_all(self) -> list[bytes]:
        """Remove all messages; return their frames."""
        return [self.take(ident) for ident in [*self]]


class DiskQueue:
    """The sync state of a disk queue: the messages that are read again after a kill. `Queue` holds the messages.

    nsqd writes messages at once, but its read position only at a sync (go-diskqueue 1.1.0, seen on nsqd 1.3.0): after
    every `sync_every` messages written or read, and every `sync_timeout_ms`. After a kill, messages read since the last
    sync are read again, and messages written since are kept. A queue that was never synced has no file with its
    position, and is overwritten. Its number of messages is that of the last sync, too.
    """

    def __init__(self, settings: NsqSettings) -> None:
        self._settings = settings
        self.was_synced = False
        self._unsynced: list[bytes] = []
        self._steps = 0
        self._last_s = 0.0

    def step(self, number: int, now_s: float, read: list[bytes] | None = None) -> None:
        """Count written messages, or record read ones."""
        self._catch_up(now_s)
        self._steps += number
        if self._steps >= self._settings.sync_every:
            self._sync(self._steps % self._settings.sync_every)
            read = read and read[max(0, number - self._steps) :]
        self._unsynced += read or []

    def take_back(self, now_s: float) -> tuple[list[bytes], int]:
        """Reset the state as a kill does; return the messages to read again, and the number of uncounted ones."""
        self._catch_up(now_s)
        frames, self._unsynced = self._unsynced, []
        written, self._steps = self._steps - len(frames), 0
        return frames, written

    def close(self) -> None:
        """Sync at a clean stop."""
        self._sync(0)

    def delete(self) -> None:
        """Delete its files."""
        self._sync(0)
        self.was_synced = False

    def _catch_up(self, now_s: float) -> None:
        """Sync if a sync interval has ended since the last step: nsqd's timer also runs while idle."""
        interval_s = self._settings.sync_timeout_ms / 1000
        if self._steps and now_s // interval_s > self._last_s // interval_s:
            self._sync(0)
        self._last_s = now_s

    def _sync(self, steps_since: int) -> None:
        self._unsynced = []
        self.was_synced = True
        self._steps = steps_since


class Queue:
    """A queue of frames that are put and taken as lists: in memory, with the excess on disk.

    Args:
        settings: the maximum number of messages in memory.
        ephemeral: whether to drop the excess instead.

    Attributes:
        depth: the number of messages.
        disk_depth: how many of them are on disk.
        uncounted: how many of them nsqd does not count: those written between a sync and a kill, until the disk was
            read to its end.
    """

    def __init__(self, settings: NsqSettings, *, ephemeral: bool = False) -> None:
        self._settings = settings
        self._ephemeral = ephemeral
        self._lists: deque[tuple[list[bytes], bool]] = deque()  # frames, and whether they are on disk
        self._taken = 0  # from the first list
        self._disk = DiskQueue(settings)
        self.depth = self.disk_depth = self.uncounted = 0

    def put(self, frames: list[bytes], now_s: float) -> None:
        """Add messages."""
        if not frames:
            return
        room = max(0, self._settings.mem_queue_size - (self.depth - self.disk_depth))
        if room < len(frames):
            frames, more = frames[:room], frames[room:]
            if not self._ephemeral:
                self._add(frames, on_disk=False)
                self._add(more, on_disk=True)
                self._disk.step(len(more), now_s)
                return
        self._add(frames, on_disk=False)

    def _add(self, frames: list[bytes], *, on_disk: bool) -> None:
        if frames:
            self._lists.append((frames, on_disk))
            self.depth += len(frames)
            self.disk_depth += on_disk * len(frames)

    def take(self, most: int, now_s: float) -> list[bytes]:
        """Take up to `most` messages, and about as many as fit into one write."""
        if self.depth:
            most = max(1, min(most, _WRITE_BYTES // len(self._lists[0][0][self._taken])))
        return self._take(most, now_s)

    def take_all(self, now_s: float) -> list[bytes]:
        """Take all messages."""
        return self._take(self.depth, now_s)

    def _take(self, most: int, now_s: float) -> list[bytes]:
        lists, start = self._lists, self._taken
        frames: list[bytes] = []
        while most and lists:
            whole, on_disk = lists[0]
            part = whole[start : start + most]
            frames += part
            most -= len(part)
            start += len(part)
            if on_disk:
                self.disk_depth -= len(part)
                self.uncounted = self.disk_depth and self.uncounted
                self._disk.step(len(part), now_s, part)
            if start == len(whole):
                lists.popleft()
                start = 0
        self._taken = start
        self.depth -= len(frames)
        return frames

    def clear(self) -> None:
        """Delete all messages and the files."""
        self._clear()
        self._disk.delete()

    def _clear(self) -> None:
        self._lists.clear()
        self._taken = self.depth = self.disk_depth = self.uncounted = 0

    def close(self, more: list[bytes], now_s: float) -> None:
        """Stop cleanly: move all messages to disk, and add `more`."""
        frames = self._take(self.depth, now_s) + more
        self._disk.close()
        self._add(frames, on_disk=True)

    def crash(self, now_s: float) -> None:
        """Lose the messages in memory, and reset the disk to the last sync, as a kill does."""
        kept, written = self._disk.take_back(now_s)
        uncounted = self.uncounted + written
        for frames, on_disk in self._lists:
            if on_disk:
                kept += frames[self._taken :]
            self._taken = 0
        self._clear()
        if self._disk.was_synced:
            self._add(kept, on_disk=True)
            self.uncounted = uncounted


class Channel:
    """A channel: a queue of a topic's messages with its subscribers."""

    def __init__(self, topic: Topic, name: str) -> None:
        self.topic = topic
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.paused = False
        self.consumers: list[Connection] = []
        self.queue = Queue(topic.broker.settings, ephemeral=self.ephemeral)
        self.message_count = self.requeue_count = self.timeout_count = 0
        # All connections with messages in flight, including closed ones, whose messages wait for their timeout.
        self._holders: list[InFlight] = []
        self._deferred: list[tuple[float, int, bytes]] = []
        self._serial = count()

    @property
    def in_flight_count(self) -> int:
        """The number of unanswered messages."""
        return sum(map(len, self._holders))

    @property
    def deferred_count(self) -> int:
        """The number of deferred messages."""
        return len(self._deferred)

    @property
    def is_waiting(self) -> bool:
        """True if messages are deferred or may time out."""
        return bool(self._deferred) or any(self._holders)

    def put(self, frames: list[bytes], defer_s: float, now_s: float) -> None:
        """Add messages from the topic."""
        self.message_count += len(frames)
        if defer_s:
            for frame in frames:
                self._defer(frame, now_s + defer_s)
        else:
            self.queue.put(frames, now_s)

    def _defer(self, frame: bytes, until_s: float) -> None:
        heappush(self._deferred, (until_s, next(self._serial), frame))

    def subscribe(self, consumer: Connection) -> None:
        """Add a subscriber."""
        self.consumers.append(consumer)
        self._holders.append(consumer.in_flight)

    def unsubscribe(self, consumer: Connection) -> None:
        """Remove a subscriber; its messages stay in flight until their timeout (seen on nsqd 1.3.0)."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            if self.ephemeral and not self.consumers:
                self.topic.delete_channel(self.name)

    def owner_of(self, ident: bytes) -> InFlight | None:
        """Return the holder of a message in flight, or None."""
        return next((holder for holder in self._holders if ident in holder), None)

    def requeue(self, consumer: Connection, ident: bytes, delay_s: float, now_s: float) -> None:
        """Requeue a message, which must be in flight at the consumer."""
        frame = _with_next_attempt(consumer.in_flight.take(ident))
        self.requeue_count += 1
        if delay_s:
            self._defer(frame, now_s + delay_s)
        else:
            self.queue.put([frame], now_s)

    def pump(self, now_s: float) -> None:
        """Send messages, distributed evenly over the consumers with room."""
        while self.queue.depth and not self.paused:
            ready = [consumer for consumer in self.consumers if consumer.room > 0]
            if not ready:
                return
            for number, consumer in enumerate(ready):
                share = -(-self.queue.depth // (len(ready) - number))
                frames = self.queue.take(min(share, consumer.room), now_s) if share else []
                if consumer.sample_rate:
                    # As in nsqd: draws 0 to 99, and drops messages with a higher draw.
                    frames = [frame for frame in frames if random.randrange(100) <= consumer.sample_rate]  # noqa: S311 - not for security
                if frames:
                    consumer.in_flight.add(frames, now_s, consumer.msg_timeout_s)
                    consumer.deliver(frames)
            # Rotate, so that single messages go to the consumers in turn.
            self.consumers.append(self.consumers.pop(0))

    def wake(self, now_s: float) -> None:
        """Requeue timed out messages and due deferred messages."""
        back: list[bytes] = []
        for holder in self._holders:
            back += holder.take_expired(now_s)
        self.timeout_count += len(back)
        frames = [_with_next_attempt(frame) for frame in back]
        while self._deferred and self._deferred[0][0] <= now_s:
            frames.append(heappop(self._deferred)[2])
        self.queue.put(frames, now_s)
        present = {id(consumer.in_flight) for consumer in self.consumers}
        self._holders = [holder for holder in self._holders if len(holder) or id(holder) in present]
        self.pump(now_s)

    def empty(self) -> None:
        """Delete all messages, including those in flight and deferred."""
        self.queue.clear()
        self._deferred.clear()
        for holder in self._holders:
            holder.take_all()

    def settle(self, now_s: float) -> None:
        """Restart cleanly: queue messages in flight or deferred again, and remove the subscribers."""
        back = [_with_next_attempt(frame) for holder in self._holders for frame in holder.take_all()]
        self.queue.close(back + [frame for _, _, frame in self._deferred], now_s)
        self._forget()

    def crash(self, now_s: float) -> None:
        """Lose messages in flight or deferred, except those read again from disk, as a kill does."""
        self.queue.crash(now_s)
        self._forget()

    def _forget(self) -> None:
        self.message_count = self.requeue_count = self.timeout_count = 0
        self._deferred.clear()
        self._holders.clear()
        self.consumers.clear()


class Topic:
    """A topic: keeps messages while it has no channel or is paused, then passes each message to all channels."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.paused = False
        self.channels: dict[str, Channel] = {}
        self.message_count = self.message_bytes = 0
        self.queue = Queue(broker.settings, ephemeral=self.ephemeral)
        self._deferred: list[tuple[list[bytes], float]] = []
        self._ids = MessageIds(broker.settings.effective_node_id)

    @property
    def depth(self) -> int:
        """The number of messages not yet passed to channels."""
        return self.queue.depth + sum(len(frames) for frames, _ in self._deferred)

    def publish(self, bodies: Sequence[bytes], defer_s: float, now_s: float, now_ns: int) -> None:
        """Add messages, all or none; they are sent when the channels are pumped."""
        idents = self._ids.take(len(bodies), now_ns)
        frames: list[bytes] = []
        size, head = -1, b""
        for ident, body in zip(idents, bodies, strict=True):
            if len(body) != size:
                size = len(body)
                head = _HEAD.pack(size + HEAD_SIZE - 4, 2, now_ns, 1)
            frames.append(head + ident + body)
        self.message_count += len(frames)
        self.message_bytes += sum(map(len, bodies))
        if defer_s:
            self._deferred.append((frames, defer_s))  # the disk queue does not store the delay
        else:
            self.queue.put(frames, now_s)
        self.flow(now_s)

    def flow(self, now_s: float) -> None:
        """Pass the backlog to the channels, unless there are none or the topic is paused."""
        if not self.channels or self.paused:
            return
        parts = [(self.queue.take_all(now_s), 0.0), *self._deferred]
        self._deferred.clear()
        for channel in self.channels.values():
            for frames, defer_s in parts:
                channel.put(frames, defer_s, now_s)
            self.broker.needs_pump(channel)

    def channel(self, name: str, now_s: float) -> Channel:
        """Return the channel of this name, created if missing; the first channel gets the backlog."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self, name)
            self.broker.on_change(self.name, name, True)
            self.flow(now_s)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with its messages and connections, and an ephemeral topic with its last channel."""
        channel = self.channels.pop(name)
        self.broker.on_change(self.name, name, False)
        for consumer in list(channel.consumers):
            consumer.close()
        channel.empty()
        channel.consumers.clear()
        if self.ephemeral and not self.channels:
            self.broker.delete_topic(self.name)

    def empty(self) -> None:
        """Delete the topic's backlog; the channels keep theirs."""
        self.queue.clear()
        self._deferred.clear()

    def settle(self, now_s: float) -> None:
        """Restart cleanly: deferred messages lose their delay."""
        self.queue.close([frame for frames, _ in self._deferred for frame in frames], now_s)
        self._restart(lambda channel: channel.settle(now_s), now_s)

    def crash(self, now_s: float) -> None:
        """Pass the messages that are read again from disk to the channels, after a kill."""
        self.queue.crash(now_s)
        self._restart(lambda channel: channel.crash(now_s), now_s)

    def _restart(self, restart_channel: Callable[[Channel], None], now_s: float) -> None:
        self.message_count = self.message_bytes = 0
        self._deferred.clear()
        for channel in list(self.channels.values()):
            if channel.ephemeral:
                del self.channels[channel.name]
            else:
                restart_channel(channel)
        self.flow(now_s)


class Broker:
    """All topics of one broker.

    Args:
        settings: the limits.
        on_change: called with topic, channel (None for the topic itself) and whether it exists now.
        known_channels: returns the channels to create with a new topic (those known to nsqlookupd).
    """

    def __init__(
        self,
        settings: NsqSettings,
        on_change: Callable[[str, str | None, bool], None],
        known_channels: Callable[[str], Iterable[str]],
    ) -> None:
        self.settings = settings
        self.topics: dict[str, Topic] = {}
        self.on_change = on_change
        self._known_channels = known_channels
        self._unpumped: dict[Channel, None] = {}

    def topic(self, name: str, now_s: float) -> Topic:
        """Return the topic of this name, created if missing."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(self, name)
            self.on_change(name, None, True)
            for channel in self._known_channels(name):
                if not channel.endswith("#ephemeral"):
                    topic.channel(channel, now_s)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels, messages and connections."""
        topic = self.topics.pop(name, None)
        if topic is None:  # already deleted with its last channel
            return
        topic.ephemeral = False
        for channel in list(topic.channels):
            topic.delete_channel(channel)
        self.on_change(name, None, False)

    def needs_pump(self, channel: Channel) -> None:
        """Mark a channel that may be able to send."""
        self._unpumped[channel] = None

    def pump(self, now_s: float) -> None:
        """Send the messages of marked channels."""
        while self._unpumped:
            self._unpumped.popitem()[0].pump(now_s)

    def wake(self, now_s: float) -> None:
        """Requeue timed out messages and due deferred messages of all channels."""
        for topic in list(self.topics.values()):
            for channel in list(topic.channels.values()):
                if channel.is_waiting:
                    channel.wake(now_s)

    def restart(self, now_s: float, *, crash: bool) -> None:
        """Restart cleanly or after a kill; topics and channels that are not ephemeral remain."""
        for topic in list(self.topics.values()):
            if topic.ephemeral:
                del self.topics[topic.name]
            elif crash:
                topic.crash(now_s)
            else:
                topic.settle(now_s)
