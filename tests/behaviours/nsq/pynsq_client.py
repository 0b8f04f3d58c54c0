"""pynsq as a program, with the arguments of tests/java/NsqClient.java.

publish HOST PORT COMPRESSION TOPIC, or consume HOST PORT COMPRESSION TOPIC CHANNEL COUNT; messages are lines of base64.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Mapping

import nsq

BATCH = 500


async def publish(address: str, topic: str, how: Mapping[str, bool]) -> None:
    messages = [base64.b64decode(line) for line in sys.stdin]
    writer = nsq.Writer([address], **how)
    while not writer.conns:
        await asyncio.sleep(0.01)  # pynsq has no event for a connection

    async def send(data: bytes | list[bytes]) -> None:
        done = asyncio.get_running_loop().create_future()
        write = writer.mpub if isinstance(data, list) else writer.pub
        write(topic, data, callback=lambda _, answer: done.set_result(answer))
        answer = await done
        if answer != b"OK":
            raise RuntimeError(answer)

    whole = len(messages) - len(messages) % BATCH
    for start in range(0, whole, BATCH):
        await send(messages[start : start + BATCH])
    # The last ones singly, because PUB is a separate command.
    for message in messages[whole:]:
        await send(message)


async def consume(address: str, topic: str, channel: str, count: int, how: Mapping[str, bool]) -> None:
    found: list[bytes] = []
    done = asyncio.Event()

    def handle(message: nsq.Message) -> bool:
        found.append(base64.b64encode(message.body))
        if len(found) == count:
            # After pynsq has sent the FIN of this one.
            asyncio.get_running_loop().call_later(0.1, done.set)
        return True

    reader = nsq.Reader(topic, channel, handle, nsqd_tcp_addresses=[address], max_in_flight=200, **how)
    await done.wait()
    reader.close()
    sys.stdout.write(b"\n".join(found).decode() + "\n")


def main() -> None:
    mode, host, port, compression, topic, *rest = sys.argv[1:]
    assert compression != "deflate", "pynsq's deflate fails with the tornado of today"
    how = {"snappy": compression == "snappy"}
    address = f"{host}:{port}"
    if mode == "publish":
        asyncio.run(publish(address, topic, how))
    else:
        asyncio.run(consume(address, topic, rest[0], int(rest[1]), how))


if __name__ == "__main__":
    main()
