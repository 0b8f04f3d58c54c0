"""Sessions against scripted servers on real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.core.errors import (
    BrokerError,
    ConnectionLostError,
    MQSourceError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from tests.unit.tubemq.conftest import options_for
from tests.unit.tubemq.scripted import TOKEN, Link, Server, cut

Servers = Callable[..., Server]
Clients = Callable[..., TubeMQClient]
AUTH = {"authUser": "alice", "authPassword": "secret"}


def consumer_of(client: TubeMQClient, server: Server) -> PartitionConsumer:
    return client.consumer(BrokerPartition(server.broker, "t", 0), client_id="client", group="group")


# -- one connection


def test_answers_are_matched_to_calls_in_any_order(server: Servers, client: Clients) -> None:
    one = server({c.GetMessage: lambda _, __: c.GetMessageResponse(True, 200, curr_offset=28)})
    made = client(one)
    consumer = consumer_of(made, one)
    registered = consumer.register(curr_offset=0)
    pairs = [consumer.get_and_commit() for _ in range(50)]
    assert made.wait(registered, "register").max_offset == 2800
    for got, committed in pairs:
        assert made.wait(got, "fetch").curr_offset == 28
        assert made.wait(committed, "commit").err_code == 200
    kinds = [type(request) for request in one.links[0].requests]
    assert kinds == [c.RegisterPartition] + [c.GetMessage, c.CommitOffset] * 50


@pytest.mark.parametrize("code", [200, 404, 452])
def test_a_fetch_returns_codes_that_are_no_errors(server: Servers, client: Clients, code: int) -> None:
    one = server({c.GetMessage: lambda _, __: c.GetMessageResponse(False, code, "no", min_limit_time=70)})
    made = client(one)
    response = made.wait(consumer_of(made, one).get_and_commit()[0], "fetch")
    assert (response.err_code, response.min_limit_time) == (code, 70)


@pytest.mark.parametrize("code", [301, 400, 403, 411, 412, 455, 500, 503])
def test_a_fetch_that_is_refused_raises(server: Servers, client: Clients, code: int) -> None:
    one = server({c.GetMessage: lambda _, __: c.GetMessageResponse(False, code, "no")})
    made = client(one)
    with pytest.raises(
        BrokerError, match=rf"the fetch: broker {one.broker}: the server refused with .* \({code}\)"
    ) as e:
        made.wait(consumer_of(made, one).get_and_commit()[0], "the fetch")
    assert e.value.code == code


def test_an_exception_names_the_java_class(server: Servers, client: Clients) -> None:
    one = server({c.GetMessage: lambda _, __: c.RpcException(1, "java.lang.Foo", "words")})
    made = client(one)
    with pytest.raises(BrokerError, match=r"could not handle it \(Foo\): words"):
        made.wait(consumer_of(made, one).get_and_commit()[0], "fetch")


def test_a_call_without_an_answer_fails_and_others_continue(server: Servers, client: Clients) -> None:
    one = server({c.GetMessage: lambda _, __: None})
    made = client(one, requestTimeout="400ms")
    consumer = consumer_of(made, one)
    lost = consumer.get_and_commit()[0]
    while not lost.done():
        made.wait(consumer.get_and_commit()[1], "commit")
    with pytest.raises(RequestTimeoutError, match=r"no answer to GetMessage within requestTimeout \(400 ms\)"):
        made.wait(lost, "fetch")
    assert made.wait(consumer.get_and_commit()[1], "commit").err_code == 200


def test_the_end_of_the_connection_fails_every_call_and_consumer(server: Servers, client: Clients) -> None:
    one = server({c.CommitOffset: cut, c.GetMessage: lambda _, __: None})
    made = client(one)
    consumer = consumer_of(made, one)
    made.wait(consumer.register(curr_offset=0), "register")
    answers = [*consumer.get_and_commit(), *consumer.get_and_commit()]
    for answer in answers:
        with pytest.raises(ConnectionLostError, match=one.address):
            made.wait(answer, "it")  # type: ignore[arg-type]  # they are of several kinds
    assert isinstance(consumer.lost, ConnectionLostError)
    with pytest.raises(MQSourceError, match=one.address):
        made.wait(consumer.get_and_commit()[0], "it")
    # The next caller gets a new connection.
    assert made.wait(consumer_of(made, one).register(curr_offset=0), "register").err_code == 200


def test_a_peer_that_is_no_server_ends_the_connection(server: Servers, client: Clients) -> None:
    def speak_http(link: Link, _: Any) -> None:
        link.peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    one = server({c.GetMessage: speak_http})
    made = client(one)
    with pytest.raises(RemoteProtocolError, match="HTTP server"):
        made.wait(consumer_of(made, one).get_and_commit()[0], "fetch")


def test_a_refused_token_is_renewed_once_during_the_call(server: Servers, client: Clients) -> None:
    def register(_: Link, request: Any) -> object:
        good = request.auth_info == TOKEN
        return c.RegisterPartitionResponse(good, 200 if good else 415, "too old", 0, 0)

    one = server({c.RegisterPartition: register})
    with TubeMQClient(options_for(one), authorized=c.AuthorizedInfo(1)) as late:
        consumer = consumer_of(late, one)
        answers = [consumer.register(curr_offset=0) for _ in range(3)]
        assert [late.wait(answer, "register").err_code for answer in answers] == [200] * 3
        assert late.authorization.given == TOKEN
    # Registered once, as a producer without topics, for all of them.
    assert [request.topic_list for request in one.of(c.RegisterProducer)] == [()]
    assert len(one.of(c.RegisterPartition)) == 6
    refusing = server({c.RegisterPartition: lambda _, __: c.RegisterPartitionResponse(False, 415, "no")})
    made = client(refusing)
    with pytest.raises(BrokerError, match=r"\(415\)"):
        made.wait(consumer_of(made, refusing).register(curr_offset=0), "register")
    assert len(refusing.of(c.RegisterPartition)) == 2


def test_masters_and_brokers_receive_credentials(server: Servers, client: Clients) -> None:
    one = server()
    made = client(one, **AUTH)
    made.fetch_topics(["t"], group="g")
    made.wait(consumer_of(made, one).register(curr_offset=0), "register")
    for request in (*one.of(c.RegisterConsumerV2), *one.of(c.GetPartMeta), *one.of(c.CloseConsumer)):
        assert request.auth_info.auth_info.user_name == "alice"
        assert request.auth_info.auth_info.signature
    (registered,) = one.of(c.RegisterPartition)
    assert registered.auth_info.visit_authorized_token == 7
    assert registered.auth_info.auth_authorized_token.startswith("alice ")


def test_a_token_of_the_master_takes_precedence(server: Servers, client: Clients) -> None:
    given = c.AuthorizedInfo(8, "from the master")
    one = server({c.RegisterConsumerV2: lambda _, __: c.RegisterConsumerV2Response(200, "OK!", authorized_info=given)})
    made = client(one, **AUTH)
    made.fetch_topics(["t"], group="g")
    made.wait(consumer_of(made, one).register(curr_offset=0), "register")
    assert [request.auth_info for request in one.of(c.RegisterPartition)] == [given]
