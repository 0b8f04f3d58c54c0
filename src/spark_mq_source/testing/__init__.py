"""An embedded NSQ broker for tests; nothing has to be installed.

`NsqBroker` behaves as nsqd 1.3.0, over TCP (with TLS, deflate, snappy and AUTH) and HTTP, and keeps all messages in
memory. It serves any NSQ client.

Example:
    >>> from spark_mq_source.testing import NsqBroker
    >>> with NsqBroker() as broker:
    ...     broker.create_channel("orders", "spark")
    ...     broker.publish("orders", b"first", b"second")
    ...     options = {"nsqlookupdHttpAddresses": broker.lookupd_address, "topic": "orders", "channel": "spark"}
    ...     broker.depth("orders", "spark")
    2

`python -m spark_mq_source.testing` runs a broker in the foreground on nsqd's default ports.
"""

from spark_mq_source.testing.broker import NsqBroker, NsqLookupd
from spark_mq_source.testing.settings import Authorization, AuthorizedClient, AuthRequest, NsqSettings

__all__ = ["AuthRequest", "Authorization", "AuthorizedClient", "NsqBroker", "NsqLookupd", "NsqSettings"]
