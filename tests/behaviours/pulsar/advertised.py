"""A link to a broker through which everything passes: lookups answer with the link's own address."""

from __future__ import annotations

from tests.fix_net import HOST, Direction, Fault, FaultProxy, _Link, free_port


class AdvertisedProxy(FaultProxy):
    """A `FaultProxy` that puts its own address in place of the broker's into what the broker sends.

    A broker behind such a link advertises the link's address by its configuration; the shared brokers of the tests
    advertise their own. The two addresses have the same length, so that no size in a frame changes.
    """

    def __init__(self, host: str, port: int) -> None:
        listen_port = free_port()
        while len(str(listen_port)) != len(str(port)):
            listen_port = free_port()
        self._theirs = f"pulsar://{host}:{port}".encode()
        self._ours = f"pulsar://{HOST}:{listen_port}".encode()
        assert len(self._theirs) == len(self._ours)
        super().__init__(host, port, listen_port=listen_port)

    def _pass_on(self, link: _Link, direction: Direction, data: bytes, target: object, faults: list[Fault]) -> bool:
        if direction == "b2c":
            data = data.replace(self._theirs, self._ours)
        return super()._pass_on(link, direction, data, target, faults)  # type: ignore[arg-type]
