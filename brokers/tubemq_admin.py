"""A small client of TubeMQ's HTTP APIs (webapi.htm of masters, broker.htm of brokers), for tests and tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import urllib3

MODIFY_TOKEN = "abc"  # noqa: S105 - protects nothing: servers on loopback with made-up data
USER = "tests"
"""The user of changes; masters refuse names of one letter (seen on 2.4.0)."""


class AdminError(Exception):
    """A request was refused, or no server answered it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The definition of a topic.

    Attributes:
        name: its name.
        stores: stores per broker, each with its own partitions: those of the second are 10000, 10001, ...
        partitions: partitions per store.
        brokers: ids of its brokers; None for all brokers of the cluster.
        flush_ms: time after which a broker flushes its memory to disk, up to 10 s late; at least 4000.
        settings: more fields of admin_add_new_topic_record.
    """

    name: str
    stores: int = 1
    partitions: int = 1
    brokers: tuple[int, ...] | None = None
    flush_ms: int = 4000
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition_ids(self) -> list[int]:
        """The partition ids on each broker."""
        return [10_000 * store + partition for store in range(self.stores) for partition in range(self.partitions)]


class TubeAdmin:
    """Admin requests to the masters and brokers of one cluster.

    Args:
        masters: web addresses of the masters, e.g. http://127.0.0.1:8080; the active one is detected.
        brokers: web addresses of the brokers, by id.
    """

    def __init__(self, masters: Sequence[str], brokers: Mapping[int, str]) -> None:
        self.masters = tuple(masters)
        self.brokers = dict(brokers)
        # retries=False: refusals of a restarting server must be visible to callers.
        self._http = urllib3.PoolManager(timeout=30.0, retries=False)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.clear()

    def leader(self) -> str:
        """Return the address (host:port) of the active master.

        Raises:
            AdminError: no master is active.
        """
        for url in self.masters:
            try:
                answer = self._request(f"{url}/webapi.htm", "op_query", "admin_query_master_group_info", {})
            except AdminError:
                continue
            for node in answer["data"]:
                if node["statusInfo"]["nodeStatus"] == "Master":
                    return str(node["name"])
        raise AdminError(f"none of the masters {', '.join(self.masters)} is active")

    def query(self, method: str, **parameters: object) -> list[dict[str, Any]]:
        """Query the masters.

        Raises:
            AdminError: none answered, or the answer was an error.
        """
        return self._ask_masters("op_query", method, parameters)

    def modify(self, method: str, **parameters: object) -> list[dict[str, Any]]:
        """Send a change to the masters.

        Raises:
            AdminError: none answered, or one refused all or a part of it.
        """
        return self._ask_masters(
            "op_modify",
            method,
            {"createUser": USER, "modifyUser": USER, "confModAuthToken": MODIFY_TOKEN, **parameters},
        )

    # -- brokers

    def add_broker(self, broker_id: int, *, host: str, port: int, tls_port: int, web_port: int) -> None:
        """Register a broker and put it online; before that it refuses to start."""
        self.modify(
            "admin_add_broker_configure",
            brokerId=broker_id,
            brokerIp=host,
            brokerPort=port,
            brokerTLSPort=tls_port,
            brokerWebPort=web_port,
            acceptPublish="true",
            acceptSubscribe="true",
            deletePolicy="delete,168h",
        )
        self.modify("admin_online_broker_configure", brokerId=broker_id)

    def reload_brokers(self, broker_ids: Iterable[int]) -> None:
        """Have the active master send brokers their topics again."""
        self.modify("admin_reload_broker_configure", brokerId=",".join(map(str, broker_ids)))

    def broker_states(self) -> dict[int, dict[str, Any]]:
        """Return the active master's state of each broker: runStatus, subStatus, isBrokerOnline, isConfLoaded, ..."""
        return {int(broker["brokerId"]): broker for broker in self.query("admin_query_broker_run_status")}

    def brokers_online(self, broker_ids: Iterable[int]) -> bool:
        """Return whether all these brokers are online at the active master."""
        states = self.broker_states()
        return all(states.get(broker_id, {}).get("isBrokerOnline") == "true" for broker_id in broker_ids)

    # -- topics

    def add_topics(self, topics: Iterable[Topic]) -> None:
        """Add topics, which brokers load when they start."""
        alike: dict[tuple[object, ...], list[Topic]] = {}
        for topic in topics:
            key = (topic.stores, topic.partitions, topic.brokers, topic.flush_ms, tuple(sorted(topic.settings.items())))
            alike.setdefault(key, []).append(topic)
        for same in alike.values():
            first = same[0]
            # A request may have at most 50 brokers and 100 topics (CFG_BATCH_..._MAX_COUNT of 2.4.0).
            for begin in range(0, len(same), 50):
                self.modify(
                    "admin_add_new_topic_record",
                    brokerId=",".join(map(str, first.brokers or self.brokers)),
                    topicName=",".join(topic.name for topic in same[begin : begin + 50]),
                    numTopicStores=first.stores,
                    numPartitions=first.partitions,
                    memCacheFlushIntvl=first.flush_ms,
                    **first.settings,
                )

    def topics_ready(self, names: Iterable[str]) -> bool:
        """Return whether all brokers of these topics have them, and accept publishing and subscribing."""
        known = {topic["topicName"]: topic["topicInfo"] for topic in self.query("admin_query_topic_info")}
        status = self.query("admin_query_broker_run_status", withDetail="true")
        shared = {one["brokerId"]: one.get("BrokerRunStatusInfo", {}).get("BrokerSyncData") for one in status}

        def has(name: str, place: Mapping[str, Any]) -> bool:
            # A master that has just taken over sends the topics that it has read by then, and says of all that its
            # brokers accept them; it corrects that when it looks again (2.4.0).
            sync = shared.get(place["brokerId"])
            return (
                sync is not None
                and f"{name}={name}:" in sync["syncDownTopicConfInfoMap"]
                and sync["syncDownDataChkSumId"] == sync["syncUpDataChkSumId"]
            )

        return all(
            known.get(name)
            and all(
                place["runInfo"]["acceptPublish"] is True
                and place["runInfo"]["acceptSubscribe"] is True
                and has(name, place)
                for place in known[name]
            )
            for name in names
        )

    # -- groups

    def authorize_topic(self, topic: str, *, enabled: bool = True) -> None:
        """Enable or disable group control of a topic."""
        self.modify("admin_set_topic_authorize_control", topicName=topic, isEnable=str(enabled).lower())

    def authorize_group(self, topic: str, group: str) -> None:
        """Authorize a group for a topic with group control."""
        self.modify("admin_add_authorized_consumergroup_info", topicName=topic, groupName=group)

    def set_flow_control(self, rules: Sequence[Mapping[str, object]], *, priority: int = 301) -> None:
        """Limit the read rate of all groups; brokers leave a single group's rule to its consumers (2.4.0).

        Args:
            rules: e.g. `[{"type": 0, "rule": [{"start": "00:00", "end": "24:00", "dltInM": 21, "limitInM": 240,
                "freqInMs": 200}]}]`, times in GMT+8: a consumer 21 MB behind gets 240 MB per minute, 20 MB in 5 s, and
                must then wait for 200 ms. The minimum is 21 MB.
            priority: the groups' qryPriorityId, 1xx to 3xx.
        """
        self.modify(
            "admin_set_def_flow_control_rule", flowCtrlInfo=json.dumps(list(rules)), qryPriorityId=priority, statusId=1
        )

    def set_group_flow_control(self, group: str, rules: Sequence[Mapping[str, object]], *, priority: int = 301) -> None:
        """Limit the read rate of a group; its consumers obey that, brokers do not enforce it (2.4.0)."""
        self.modify(
            "admin_set_group_flow_control_rule",
            groupName=group,
            flowCtrlInfo=json.dumps(list(rules)),
            qryPriorityId=priority,
            statusId=1,
        )

    def remove_flow_control(self) -> None:
        """Remove the limit."""
        self.modify("admin_rmv_def_flow_control_rule")

    def group_members(self, group: str) -> list[dict[str, Any]]:
        """Return the consumers of a group at the active master, with their partitions."""
        return self.query("admin_query_consume_group_detail", consumeGroup=group)

    # -- queries to brokers

    def group_offset(self, broker_id: int, group: str, topic: str, partition: int) -> int:
        """Return the committed offset of a group in a partition; 0 if there is none.

        Raises:
            AdminError: the broker did not answer.
        """
        # Without the last two, 2.4.0 returns only the last fetched offset.
        answer = self.ask_broker(
            broker_id,
            "admin_query_group_offset",
            groupName=group,
            topicName=topic,
            partitionId=partition,
            requireRealOffset="true",
        )
        return int(answer["zkOffset"])

    def topic_range(self, broker_id: int, topic: str, partition: int) -> tuple[int, int]:
        """Return the lowest and highest offset of a partition's store, including memory.

        Raises:
            AdminError: the broker did not answer.
        """
        for entry in self.ask_broker(broker_id, "admin_query_pubinfo", topicName=topic)["dataSet"]:
            for place in entry["offsetInfo"]:
                if int(place["partitionId"]) == partition:
                    return int(place["offsetMin"]), int(place["offsetMax"])
        return 0, 0  # a store is created with its first message or reader

    def holders(self, broker_id: int, group: str) -> list[dict[str, Any]]:
        """Return the consumers of a group with their partitions of a broker and their offsets.

        Raises:
            AdminError: the broker did not answer.
        """
        answer = self.ask_broker(broker_id, "admin_query_broker_all_consumer_info", groupName=group)
        found: list[dict[str, Any]] = answer["dataSet"]
        return found

    def ask_broker(self, broker_id: int, method: str, **parameters: object) -> dict[str, Any]:
        """Query one broker.

        Raises:
            AdminError: no answer, or an error.
        """
        return self._request(f"{self.brokers[broker_id]}/broker.htm", "op_query", method, parameters)

    # -- requests

    def _ask_masters(self, kind: str, method: str, parameters: Mapping[str, object]) -> list[dict[str, Any]]:
        refusals = []
        for url in self.masters:
            try:
                answer: list[dict[str, Any]] = self._request(f"{url}/webapi.htm", kind, method, parameters)["data"]
            except AdminError as error:
                refusals.append(str(error))
            else:
                return answer
        raise AdminError("; ".join(refusals))

    def _request(self, url: str, kind: str, method: str, parameters: Mapping[str, object]) -> dict[str, Any]:
        fields = {"type": kind, "method": method} | {name: str(value) for name, value in parameters.items()}
        try:
            answer = self._http.request("POST", url, fields=fields, encode_multipart=False)
        except urllib3.exceptions.HTTPError as error:
            raise AdminError(f"{method}: no answer from {url}: {error}") from error
        text = answer.data.decode(errors="replace")
        try:
            found: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            found = {"result": False, "errMsg": text[:300]}
        refused = [entry["errInfo"] for entry in found.get("data", []) if entry.get("success") is False]
        if answer.status >= 300 or found.get("result") is False or found.get("errCode") or refused:
            msg = f"{method} at {url}: {found.get('errMsg')} {'; '.join(map(str, refused))}"
            raise AdminError(msg.strip())
        return found
