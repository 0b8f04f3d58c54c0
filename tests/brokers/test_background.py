"""The setup of the brokers of `make brokers`."""

from __future__ import annotations

from brokers import background as brokers
from brokers.pulsar_admin import PulsarAdmin


class Started:
    """A running process, which is its own record."""

    alive = True

    @property
    def processes(self) -> dict[str, Started]:
        return {brokers.Pulsar.name: self}


class Admin(PulsarAdmin):
    """The admin interface of a stock broker that has just started, in memory."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}

    def request(self, method: str, path: str, body: object = None) -> object:
        if method == "POST":
            self.settings[path] = body
        return {"clusters": ["standalone"], "namespaces/public": ["public/default"]}.get(path)


def test_pulsar_takes_writes_of_every_guarantee() -> None:
    kind, admin = brokers.Pulsar(), Admin()
    admin.url = kind._broker.admin_url
    kind._broker._admin = admin
    kind.wait(Started())  # type: ignore[arg-type]  # has the attributes of a Record that are used
    assert admin.settings["namespaces/public/default/deduplication"] is True
    assert kind._broker._settings()["transactionCoordinatorEnabled"] == "true"
