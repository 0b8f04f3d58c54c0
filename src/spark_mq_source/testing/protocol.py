"""The TCP protocol of the embedded broker: one connection of NSQ's protocol V2.

Commands, states, limits and error texts are those of nsqd 1.3.0, as recorded (vectors/nsqd-1.3.0) and compared live. An
error closes the connection, except the three about a single message (E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.protocol.compression import DeflateStream, SnappyStream, Stream
from spark_mq_source.nsq.protocol.wire import ERROR, MAGIC, MESSAGE_ID_BYTES, RESPONSE, encode_frame
from spark_mq_source.testing.queues import Channel, InFlight, is_valid_name
from spark_mq_source.testing.settings import VERSION, AuthorizedClient, AuthRequest, NsqSettings

if TYPE_CHECKING:
    from spark_mq_source.testing.broker import NsqBroker

_MAX_LINE_BYTES: Final = 16 * 1024
_HIGH_WATER_BYTES: Final = 4 * 1024 * 1024
_TURN_BYTES: Final = 1024 * 1024
"""Bytes sent to one client before other clients, and its own commands (such as RDY 0), are processed."""
_TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
_FINS: Final = re.compile(rb"(?:FIN [^\n]{16}\n)+")
"""Complete FINs in a row: clients that answer many messages send such blocks, which need not be parsed one by one."""

_INIT, _SUBSCRIBED, _CLOSING = 0, 3, 4
"""States, numbered as in nsqd's statistics."""

_IDENTIFY_FIELDS: Final[Mapping[str, type]] = {
    "client_id": str,
    "hostname": str,
    "heartbeat_interval": int,
    "output_buffer_size": int,
    "output_buffer_timeout": int,
    "feature_negotiation": bool,
    "tls_v1": bool,
    "deflate": bool,
    "deflate_level": int,
    "snappy": bool,
    "sample_rate": int,
    "user_agent": str,
    "msg_timeout": int,
}


class _FatalError(Exception):
    """Error whose frame is sent before the connection is closed."""


class IncompleteError(Exception):
    """A command has not arrived completely."""


class Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, server: NsqBroker) -> None:
        self.server = server
        self.in_flight = InFlight()
        self.sample_rate = 0
        self.client_id = self.hostname = self.user_agent = ""
        self.state = _INIT
        self.ready_count = 0
        self.message_count = self.finish_count = self.requeue_count = 0
        self.published: dict[str, int] = {}
        self.authorized: AuthorizedClient | None = None
        self.connected_s = int(time.time())
        self.channel: Channel | None = None
        self.codec: Stream | None = None
        self.tls = False
        settings = server.settings
        self._heartbeat_interval_ms = settings.client_timeout_ms // 2
        self._msg_timeout_ms = settings.msg_timeout_ms
        self._output_buffer_size = 16 * 1024
        self._output_buffer_timeout_ms = settings.output_buffer_timeout_ms
        self._secret = ""
        self._authorized_until_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._last_command_s = time.monotonic()
        self._blocked_since_s: float | None = None
        self._turn_bytes = 0
        self._magic_read = False
        self._ended = False
        self._upgrading = False
        self._incomplete = b""
        self._answers: list[bytes] = []
        self._upgrade_task: asyncio.Task[None] | None = None

    # -- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a new connection, or switch it to TLS."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - true of TCP and TLS transports
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if self not in self.server.connections:
            self.server.connections[self] = None
            self.client_id = self.hostname = self.remote_address.rpartition(":")[0]
            self._start_heartbeats()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; its messages in flight wait for their timeout."""
        del exc
        self._ended = True
        self.server.connections.pop(self, None)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.channel is not None:
            self.channel.unsubscribe(self)

    def pause_writing(self) -> None:
        """Stop sending messages while the client does not read fast enough."""
        self._blocked_since_s = time.monotonic()

    def resume_writing(self) -> None:
        """Continue sending."""
        self._blocked_since_s = None
        self._resume_delivery()

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        self._resume_delivery()

    def _resume_delivery(self) -> None:
        if self.channel is not None:
            self.channel.pump(time.monotonic())

    def data_received(self, data: bytes) -> None:
        """Execute the complete commands."""
        if self.codec is not None:
            try:
                data = b"".join(self.codec.decompress(data))
            except RemoteProtocolError:  # nsqd sees the end of the stream and closes
                self.close()
                return
        data = self._incomplete + data
        self._incomplete = data[self._execute_all(data) :]
        self._send_answers()
        self.server.broker.pump(time.monotonic())

    # -- called by the channel

    @property
    def room(self) -> int:
        """The number of messages that the client accepts now."""
        if self._blocked_since_s is not None or self._turn_bytes >= _TURN_BYTES or self._ended:
            return 0
        return self.ready_count - len(self.in_flight)

    @property
    def msg_timeout_s(self) -> float:
        """Seconds until an unanswered message times out."""
        return self._msg_timeout_ms / 1000

    def deliver(self, frames: Sequence[bytes]) -> None:
        """Send messages."""
        self.message_count += len(frames)
        data = b"".join(frames)
        self._write(data)
        self._turn_bytes += len(data)
        if self._turn_bytes >= _TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.server.start_timer()

    def close(self) -> None:
        """Close the connection after sending written data."""
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection as a crash does."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    # -- statistics

    @property
    def remote_address(self) -> str:
        """The client's host and port."""
        host, port = self._extra("peername")[:2]
        return f"{host}:{port}"

    def stats(self, topic: str) -> dict[str, object]:
        """Return the client's entry in nsqd's statistics."""
        cipher = self._extra("cipher") if self.tls else None
        counts = [{"topic": t, "count": c} for t, c in self.published.items() if topic in ("", t)][:1]
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": "V2",
            "remote_address": self.remote_address,
            "state": self.state,
            "ready_count": self.ready_count,
            "in_flight_count": len(self.in_flight),
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connected_s,
            "sample_rate": self.sample_rate,
            "deflate": isinstance(self.codec, DeflateStream),
            "snappy": isinstance(self.codec, SnappyStream),
            "user_agent": self.user_agent,
            **(
                {
                    "authed": True,
                    "auth_identity": self.authorized.identity,
                    "auth_identity_url": self.authorized.identity_url,
                }
                if self.authorized is not None
                else {}
            ),
            **({"pub_counts": counts} if counts else {}),
            "tls": self.tls,
            "tls_cipher_suite": cipher[0] if cipher else "",
            "tls_version": cipher[1].replace("v", "") if cipher else "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }

    def _extra(self, name: str) -> Any:  # noqa: ANN401 - as in asyncio
        assert self._transport is not None  # noqa: S101 - called while connected
        return self._transport.get_extra_info(name)

    # -- writing

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data if self.codec is None else self.codec.compress(data))

    def _answer(self, body: bytes, kind: int = RESPONSE) -> None:
        self._answers.append(encode_frame(kind, body))

    def _send_answers(self) -> None:
        if self._answers:
            self._write(b"".join(self._answers))
            self._answers.clear()

    # -- heartbeats

    def _start_heartbeats(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._heartbeat_interval_ms > 0:
            loop = asyncio.get_running_loop()
            self._heartbeat = loop.call_later(self._heartbeat_interval_ms / 1000, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        now_s = time.monotonic()
        interval_s = self._heartbeat_interval_ms / 1000
        if self._blocked_since_s is not None and now_s - self._blocked_since_s > interval_s:
            self.abort()
            return
        if not self._upgrading:
            self._answer(b"_heartbeat_")
            self._send_answers()
        # Close at the second heartbeat without a command; timers may be early by their resolution.
        if now_s - self._last_command_s >= 2 * interval_s - 0.01:
            self.close()
            return
        self._start_heartbeats()

    # -- commands

    def _execute_all(self, data: bytes) -> int:
        """Execute the complete commands in the data; return the start of the first incomplete one."""
        start = 0
        if not self._magic_read:
            if len(data) < len(MAGIC):
                return 0
            start = len(MAGIC)
            self._magic_read = True
            if data[:start] != MAGIC:
                self._answer(b"E_BAD_PROTOCOL", ERROR)
                self._end()
        try:
            while start < len(data) and not self._ended:
                start = self._execute(data, start)
                self._last_command_s = time.monotonic()
        except IncompleteError:
            pass
        except _FatalError as error:
            self._answer(str(error).encode(), ERROR)
            self._end()
        return start

    def _end(self) -> None:
        self._send_answers()
        self.close()

    def _execute(self, data: bytes, start: int) -> int:
        """Execute one command, or a block of FINs; return the start of the next one."""
        if self.channel is not None and (fins := _FINS.match(data, start)):
            self._finish(data[start + 4 : fins.end() - 1].split(b"\nFIN "))
            return fins.end()
        newline = data.find(b"\n", start)
        if newline < 0:
            if len(data) - start > _MAX_LINE_BYTES:
                self._end()
            raise IncompleteError
        line = data[start:newline]
        parameters = line.removesuffix(b"\r").split(b" ")
        name = parameters[0].decode(errors="replace")
        if self.server.settings.needs_tls and not self.tls and name != "IDENTIFY":
            raise _FatalError(f"E_INVALID cannot {name} in current state (TLS required)")
        with_body = _WITH_BODY.get(name)
        if with_body is not None:
            return with_body(self, parameters, data, newline + 1)
        command = _COMMANDS.get(name)
        if command is None:
            raise _FatalError(f"E_INVALID invalid command {name}")
        command(self, parameters)
        return newline + 1

    def _nop(self, parameters: Sequence[bytes]) -> None:
        pass

    def _identify(self, parameters: Sequence[bytes], data: bytes, start: int) -> int:
        del parameters
        if self.state != _INIT:
            raise _FatalError("E_INVALID cannot IDENTIFY in current state")
        body, end = self._body(data, start, "IDENTIFY")
        given = _parse_identify(body)
        self._negotiate(given)
        self._start_heartbeats()
        if not given["feature_negotiation"]:
            self._answer(b"OK")
            return end
        settings = self.server.settings
        tls = self.server.tls_context is not None and given["tls_v1"]
        deflate = settings.deflate and given["deflate"]
        snappy = settings.snappy and given["snappy"]
        level = given["deflate_level"] if deflate and given["deflate_level"] > 0 else 6
        level = min(level, settings.max_deflate_level)
        if deflate and snappy:
            raise _FatalError("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
        self._answer(
            _compact_json(
                {
                    "max_rdy_count": settings.max_rdy_count,
                    "version": VERSION,
                    "max_msg_timeout": settings.max_msg_timeout_ms,
                    "msg_timeout": self._msg_timeout_ms,
                    "tls_v1": tls,
                    "deflate": deflate,
                    "deflate_level": level,
                    "max_deflate_level": settings.max_deflate_level,
                    "snappy": snappy,
                    "sample_rate": self.sample_rate,
                    "auth_required": settings.authorize is not None,
                    "output_buffer_size": self._output_buffer_size,
                    "output_buffer_timeout": self._output_buffer_timeout_ms,
                }
            )
        )
        stream = SnappyStream() if snappy else DeflateStream(level) if deflate else None
        if tls:
            self._upgrade_to_tls(stream)
            return len(data)  # data before the handshake is lost, as in nsqd
        if stream is not None:
            self._upgrade_to(stream)
            return len(data)
        return end

    def _negotiate(self, given: Mapping[str, Any]) -> None:
        settings = self.server.settings
        self.client_id, self.hostname = given["client_id"], given["hostname"]
        self.user_agent = given["user_agent"]
        self._heartbeat_interval_ms = _setting(
            "heartbeat interval", given, 1000, settings.max_heartbeat_interval_ms, self._heartbeat_interval_ms, off=0
        )
        least_ms, most_ms = settings.min_output_buffer_timeout_ms, settings.max_output_buffer_timeout_ms
        self._output_buffer_timeout_ms = _setting(
            "output buffer timeout", given, least_ms, most_ms, self._output_buffer_timeout_ms, off=0
        )
        most_bytes = settings.max_output_buffer_size
        self._output_buffer_size = _setting(
            "output buffer size", given, 64, most_bytes, self._output_buffer_size, off=1
        )
        if self._output_buffer_size == 1:
            self._output_buffer_timeout_ms = 0
        if not 0 <= given["sample_rate"] <= 99:
            raise _FatalError(f"E_BAD_BODY IDENTIFY sample rate ({given['sample_rate']}) is invalid")
        self.sample_rate = given["sample_rate"]
        most_ms = settings.max_msg_timeout_ms
        self._msg_timeout_ms = _setting("msg timeout", given, 1000, most_ms, self._msg_timeout_ms)

    def _upgrade_to(self, stream: Stream) -> None:
        self._send_answers()
        self.codec = stream
        self._answer(b"OK")

    def _upgrade_to_tls(self, stream: Stream | None) -> None:
        transport = self._transport
        assert transport is not None  # noqa: S101 - set while commands arrive
        # Paused before the answer, because no byte of the handshake may arrive here.
        transport.pause_reading()
        self._send_answers()
        self._upgrading = True

        async def upgrade() -> None:
            assert self.server.tls_context is not None  # noqa: S101 - set if TLS was offered
            try:
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self.server.tls_context,
                    server_side=True,
                    ssl_handshake_timeout=_TLS_HANDSHAKE_TIMEOUT_S,
                )
            except (OSError, asyncio.CancelledError):
                transport.abort()
                self.connection_lost(None)
                return
            assert encrypted is not None  # noqa: S101 - None only for a closed transport, which raises above
            self.connection_made(encrypted)
            self.tls = True
            self._upgrading = False
            self._answer(b"OK")
            self._send_answers()
            if stream is not None:
                self._upgrade_to(stream)
                self._send_answers()

        self._upgrade_task = asyncio.get_running_loop().create_task(upgrade())

    def _auth(self, parameters: Sequence[bytes], data: bytes, start: int) -> int:
        if self.state != _INIT:
            raise _FatalError("E_INVALID cannot AUTH in current state")
        if len(parameters) != 1:
            raise _FatalError("E_INVALID AUTH invalid number of parameters")
        body, end = self._body(data, start, "AUTH")
        if self.authorized is not None:
            raise _FatalError("E_INVALID AUTH already set")
        if self.server.settings.authorize is None:
            raise _FatalError("E_AUTH_DISABLED AUTH disabled")
        self._secret = body.decode(errors="replace")
        client = self._request_authorization()
        if client is None:
            raise _FatalError("E_AUTH_FAILED AUTH failed")
        if not client.authorizations:
            raise _FatalError("E_UNAUTHORIZED AUTH no authorizations found")
        self._answer(
            _compact_json(
                {
                    "identity": client.identity,
                    "identity_url": client.identity_url,
                    "permission_count": len(client.authorizations),
                }
            )
        )
        return end

    def _request_authorization(self) -> AuthorizedClient | None:
        authorize = self.server.settings.authorize
        assert authorize is not None  # noqa: S101 - checked by the callers
        host = self.remote_address.rpartition(":")[0]
        try:
            self.authorized = authorize(AuthRequest(self._secret, host, self.tls, self._common_name()))
        except Exception:  # noqa: BLE001 - user code; nsqd does not report the reason either
            self.authorized = None
        if self.authorized is not None:
            self._authorized_until_s = time.monotonic() + self.authorized.ttl_s
        return self.authorized

    def _common_name(self) -> str:
        certificate = self._extra("peercert") if self.tls else None
        names = (certificate or {}).get("subject", ())
        return next((value for part in names for name, value in part if name == "commonName"), "")

    def _check_authorized(self, command: str, topic: str, channel: str = "") -> None:
        if self.server.settings.authorize is None:
            return
        if self.authorized is None:
            raise _FatalError(f"E_AUTH_FIRST AUTH required before {command}")
        if time.monotonic() >= self._authorized_until_s and self._request_authorization() is None:
            raise _FatalError("E_AUTH_FAILED AUTH failed")
        permission = "subscribe" if channel else "publish"
        for allowed in self.authorized.authorizations:
            if (
                permission in allowed.permissions
                and re.search(allowed.topic, topic)
                and any(re.search(pattern, channel) for pattern in allowed.channels)
            ):
                return
        raise _FatalError(f"E_UNAUTHORIZED AUTH failed for {command} on {_quoted(topic)} {_quoted(channel)}")

    def _sub(self, parameters: Sequence[bytes]) -> None:
        if self.state != _INIT:
            raise _FatalError("E_INVALID cannot SUB in current state")
        if self._heartbeat_interval_ms <= 0:
            raise _FatalError("E_INVALID cannot SUB with heartbeats disabled")
        _need(parameters, 3, "SUB", "parameters")
        topic = _valid_name(parameters[1], "E_BAD_TOPIC", "SUB topic")
        name = _valid_name(parameters[2], "E_BAD_CHANNEL", "SUB channel")
        self._check_authorized("SUB", topic, name)
        now_s = time.monotonic()
        channel = self.server.broker.topic(topic, now_s).channel(name, now_s)
        most = self.server.settings.max_channel_consumers
        if most and len(channel.consumers) >= most:
            raise _FatalError(f"E_SUB_FAILED SUB failed consumers for {topic}:{name} exceeds limit of {most}")
        self.state = _SUBSCRIBED
        self.channel = channel
        channel.subscribe(self)
        self._answer(b"OK")

    def _rdy(self, parameters: Sequence[bytes]) -> None:
        if self.state == _CLOSING:
            return
        channel = self._subscribed("RDY")
        ready = 1
        if len(parameters) > 1:
            ready = _number(parameters[1], "RDY could not parse count")
        if ready > self.server.settings.max_rdy_count:
            raise _FatalError(f"E_INVALID RDY count {ready} out of range 0-{self.server.settings.max_rdy_count}")
        self.ready_count = ready
        self.server.broker.needs_pump(channel)

    def _fin(self, parameters: Sequence[bytes]) -> None:
        self._finish([self._message_id(parameters, 2)])

    def _finish(self, idents: Sequence[bytes]) -> None:
        channel = self._subscribed("FIN")
        missing = self.in_flight.finish_all(idents)
        self.finish_count += len(idents) - len(missing)
        for ident in missing:
            self._refuse_message("FIN", ident)
        self.server.broker.needs_pump(channel)

    def _req(self, parameters: Sequence[bytes]) -> None:
        ident = self._message_id(parameters, 3)
        delay_ms = _number(parameters[2], "REQ could not parse timeout")
        delay_ms = min(delay_ms, self.server.settings.max_req_timeout_ms)
        if ident not in self.in_flight:
            self._refuse_message("REQ", ident)
            return
        channel = self._subscribed("REQ")
        channel.requeue(self, ident, delay_ms / 1000, time.monotonic())
        self.requeue_count += 1
        self.server.broker.needs_pump(channel)
        self.server.start_timer()

    def _touch(self, parameters: Sequence[bytes]) -> None:
        ident = self._message_id(parameters, 2)
        if ident not in self.in_flight:
            self._refuse_message("TOUCH", ident)
            return
        longest_s = self.server.settings.max_msg_timeout_ms / 1000
        self.in_flight.touch(ident, time.monotonic(), self.msg_timeout_s, longest_s)

    def _cls(self, parameters: Sequence[bytes]) -> None:
        del parameters
        if self.state != _SUBSCRIBED:
            raise _FatalError("E_INVALID cannot CLS in current state")
        self.state = _CLOSING
        self.ready_count = 0
        self._answer(b"CLOSE_WAIT")

    def _pub(self, parameters: Sequence[bytes], data: bytes, start: int) -> int:
        """PUB, and DPUB with a delay."""
        command = parameters[0].decode()
        _need(parameters, 3 if command == "DPUB" else 2, command, "parameters")
        topic = _valid_name(parameters[1], "E_BAD_TOPIC", f"{command} topic")
        delay_ms = _number(parameters[2], "DPUB could not parse timeout") if command == "DPUB" else 0
        longest_ms = self.server.settings.max_req_timeout_ms
        if delay_ms > longest_ms:
            raise _FatalError(f"E_INVALID DPUB timeout {delay_ms} out of range 0-{longest_ms}")
        body, end = self._body(data, start, command, is_message=True)
        self._check_authorized(command, topic)
        self._publish(topic, [body], delay_ms / 1000)
        return end

    def _mpub(self, parameters: Sequence[bytes], data: bytes, start: int) -> int:
        _need(parameters, 2, "MPUB", "parameters")
        # nsqd repeats the error code, too.
        topic = _valid_name(parameters[1], "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic")
        self._check_authorized("MPUB", topic)
        # A refused MPUB creates its topic, too.
        self.server.broker.topic(topic, time.monotonic())
        self._body(data, start, "MPUB")
        try:
            bodies, end = take_mpub(data, start + 4, self.server.settings)
        except ValueError as error:
            raise _FatalError(str(error)) from error
        self._publish(topic, bodies)
        return end

    def _publish(self, topic: str, bodies: Sequence[bytes], defer_s: float = 0.0) -> None:
        now_s = time.monotonic()
        self.server.broker.topic(topic, now_s).publish(bodies, defer_s, now_s, time.time_ns())
        if defer_s:
            self.server.start_timer()
        self.published[topic] = self.published.get(topic, 0) + len(bodies)
        self._answer(b"OK")

    def _subscribed(self, command: str) -> Channel:
        if self.channel is None:
            raise _FatalError(f"E_INVALID cannot {command} in current state")
        return self.channel

    def _message_id(self, parameters: Sequence[bytes], least: int) -> bytes:
        command = parameters[0].decode()
        self._subscribed(command)
        _need(parameters, least, command, "params")
        if len(parameters[1]) != MESSAGE_ID_BYTES:
            raise _FatalError("E_INVALID invalid message ID")
        return parameters[1]

    def _refuse_message(self, command: str, ident: bytes) -> None:
        assert self.channel is not None  # noqa: S101 - checked by the callers
        reason = "ID not in flight" if self.channel.owner_of(ident) is None else "client does not own message"
        text = f"E_{command}_FAILED {command} {ident.decode(errors='replace')} failed {reason}"
        self._answer(text.encode(), ERROR)

    def _body(self, data: bytes, start: int, command: str, *, is_message: bool = False) -> tuple[bytes, int]:
        size = _size(data, start)
        settings = self.server.settings
        most = settings.max_msg_size if is_message else settings.max_body_size
        code, noun = ("E_BAD_MESSAGE", "message") if is_message else ("E_BAD_BODY", "body")
        if size > most:
            raise _FatalError(f"{code} {command} {noun} too big {size} > {most}")
        if size <= 0:
            raise _FatalError(f"{code} {command} invalid {'message ' * is_message}body size {size}")
        end = start + 4 + size
        if len(data) < end:
            raise IncompleteError
        return data[start + 4 : end], end


_COMMANDS: Final[Mapping[str, Callable[[Connection, Sequence[bytes]], None]]] = {
    "FIN": Connection._fin,
    "RDY": Connection._rdy,
    "REQ": Connection._req,
    "NOP": Connection._nop,
    "TOUCH": Connection._touch,
    "SUB": Connection._sub,
    "CLS": Connection._cls,
}
_WITH_BODY: Final[Mapping[str, Callable[[Connection, Sequence[bytes], bytes, int], int]]] = {
    "IDENTIFY": Connection._identify,
    "PUB": Connection._pub,
    "MPUB": Connection._mpub,
    "DPUB": Connection._pub,
    "AUTH": Connection._auth,
}


def take_mpub(data: bytes, start: int, settings: NsqSettings) -> tuple[list[bytes], int]:
    """Return the messages of an MPUB's body, and the end of the last message (regardless of the body's size field).

    Raises:
        ValueError: the body is malformed or above a limit; the text is nsqd's, with its error code.
        IncompleteError: the body is longer than the data.
    """
    number = _size(data, start)
    if number <= 0 or number > (settings.max_body_size - 4) // 5:
        raise ValueError(f"E_BAD_BODY MPUB invalid message count {number}")
    most = settings.max_msg_size
    position = start + 4
    bodies: list[bytes] = []
    from_bytes = int.from_bytes
    for index in range(number):
        size = from_bytes(data[position : position + 4], "big", signed=True)
        end = position + 4 + size
        if size <= 0 or size > most or end > len(data):
            if len(data) < position + 4:
                raise IncompleteError
            if size <= 0:
                raise ValueError(f"E_BAD_MESSAGE MPUB invalid message({index}) body size {size}")
            if size > most:
                raise ValueError(f"E_BAD_MESSAGE MPUB message too big {size} > {most}")
            raise IncompleteError
        bodies.append(data[position + 4 : end])
        position = end
    return bodies, position


def _size(data: bytes, start: int) -> int:
    if len(data) < start + 4:
        raise IncompleteError
    return int.from_bytes(data[start : start + 4], "big", signed=True)


def _need(parameters: Sequence[bytes], number: int, command: str, word: str) -> None:
    if len(parameters) < number:
        raise _FatalError(f"E_INVALID {command} insufficient number of {word}")


def _valid_name(raw: bytes, code: str, what: str) -> str:
    name = raw.decode(errors="backslashreplace")
    if not is_valid_name(name):
        raise _FatalError(f"{code} {what} name {_quoted(name)} is not valid")
    return name


def _number(raw: bytes, complaint: str) -> int:
    if raw.strip(b"0123456789"):
        raise _FatalError(f"E_INVALID {complaint} {raw.decode(errors='replace')}")
    return int(raw or b"0")


def _parse_identify(body: bytes) -> dict[str, Any]:
    """Return the fields of an IDENTIFY, empty values for missing ones; names are case-insensitive as in Go's JSON."""
    given: dict[str, Any] = {name: kind() for name, kind in _IDENTIFY_FIELDS.items()}
    try:
        document = json.loads(body)
    except ValueError:
        document = False
    if not isinstance(document, dict | None):
        raise _FatalError("E_BAD_BODY IDENTIFY failed to decode JSON body")
    for key, value in (document or {}).items():
        kind = _IDENTIFY_FIELDS.get(key.lower())
        if kind is None or value is None:
            continue
        if type(value) is not kind:
            raise _FatalError("E_BAD_BODY IDENTIFY failed to decode JSON body")
        given[key.lower()] = value
    return given


def _setting(
    what: str, given: Mapping[str, Any], least: int, most: int, default: int, *, off: int | None = None
) -> int:
    """Return a client's setting: `default` for 0, `off` for -1."""
    wished: int = given[what.replace(" ", "_")]
    if wished == 0:
        return default
    if wished == -1 and off is not None:
        return off
    if least <= wished <= most:
        return wished
    raise _FatalError(f"E_BAD_BODY IDENTIFY {what} ({wished}) is invalid")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact_json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
