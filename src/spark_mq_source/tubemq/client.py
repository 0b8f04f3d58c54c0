"""Where topics are, who may read them, and the connections to masters and brokers.

A sketch of what is being filled in; names and signatures stay::

    # session.py: one connection. Nothing here waits: futures, resolved in the order of the calls, pipeline on it.
    class Session:
        address: str                                     # "host:port", as errors name it
        closed: bool
        def call(self, *requests: Request) -> list[Future[Response]]    # one write; a refused call raises in result()
        def close(self) -> None

    class PartitionConsumer:                             # one client id on one partition, on its broker's connection
        partition: BrokerPartition                       # commands.py
        client_id: str; group: str; session: Session
        lost: MQSourceError | None                       # what a heartbeat of the connection found: 411, 412
        def register(self, *, curr_offset: int | None, read_status=ReadStatus.STORED_OR_MIN, filters=(),
                     qry_priority_id: int | None = None) -> Future[RegisterPartitionResponse]
        def get_message(self, *, last_pack_consumed=False, manual_commit_offset=False) -> Future[GetMessageResponse]
        def get_and_commit(self) -> tuple[Future[GetMessageResponse], Future[CommitOffsetResponse]]   # one write
        def commit(self, *, last_pack_consumed=True) -> Future[CommitOffsetResponse]
        def unregister(self, *, commit: bool = True) -> Future[RegisterPartitionResponse]
    # Registered partitions are kept by heartbeats that the connection itself sends every 10 s, whatever its users do.
    # Futures: get_message holds the response of 200, 404 and 452; everything else that is not 200 is raised as the
    # error of error_codes (`.code` is the broker's). 415 is answered once with a fresh visit token, underneath.

    # client.py: one per task or driver, used by one thread (its members have threads of their own).
    class TubeMQClient:
        def __init__(self, options: TubeMQOptions, *, authorized: AuthorizedInfo | None = None)
        authorized: AuthorizedInfo | None                # what executors should get with their range; it may be old
        def fetch_topics(self, topics, *, group: str, filters=()) -> ClusterMeta     # V2: register, meta, close
        def consumer(self, partition: BrokerPartition, *, client_id: str, group: str) -> PartitionConsumer
        def join(self, group, topics, *, filters=(), on_connect, on_disconnect) -> GroupMember           # V1
        def join_v2(self, group, topics, *, filters=()) -> ClientBalancedMember                          # V2
        def publish(self, topics) -> ProducerMember                                                      # producer
        def wait(self, answer: Future[T], what: str) -> T                                # within requestTimeout
        def close(self) -> None
    class ClusterMeta(NamedTuple): brokers: dict[int, Broker]; topics: list[TopicMeta]; partitions() -> list[BrokerPartition]
    class GroupMember:        # heartbeats in a thread; on_connect / on_disconnect(partitions: Sequence[BrokerPartition])
        client_id: str        # are called in a second one, one event at a time; DONE is reported when they return, FAILED
        assignment: frozenset[BrokerPartition]           # when they raise
        assigned: threading.Event                        # set when the first event was answered
        def close(self) -> None
    class ClientBalancedMember:
        client_id: str
        def fetch_topics(self) -> ClusterMeta            # as the last heartbeat said, or asked now
        def close(self) -> None
    def unique_client_id(group: str) -> str              # group_host-pid-time-counter-...; never twice
"""
