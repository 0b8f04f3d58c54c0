import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.MessageImpl;
import org.apache.pulsar.client.impl.TopicMessageImpl;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * The official Java client as a program: one JSON request a line on standard input, one JSON answer a line on standard
 * output. It runs from its source with the broker's own libraries (java -cp 'lib/*' JavaClient.java).
 */
public class JavaClient {
    // Messages of 20 MiB come as one string each.
    private static final ObjectMapper JSON = new ObjectMapper(JsonFactory.builder()
            .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(1 << 28).build()).build());
    private static final Map<String, PulsarClient> CLIENTS = new HashMap<>();
    private static final Map<String, Transaction> TRANSACTIONS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Log lines must not come between the answers.
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", answer(JSON.readTree(line)));
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        for (PulsarClient client : CLIENTS.values()) {
            client.shutdown();
        }
    }

    private static JsonNode answer(JsonNode request) throws Exception {
        switch (request.get("do").asText()) {
            case "produce":
                return produce(request);
            case "produceTyped":
                produceTyped(request);
                return null;
            case "consume":
                return consume(request);
            case "values":
                return values(request);
            case "share":
                return share(request);
            case "reconsume":
                return reconsume(request);
            case "reject":
                return reject(request);
            case "begin":
                TRANSACTIONS.put(request.get("name").asText(), client(request).newTransaction()
                        .withTransactionTimeout(10, TimeUnit.MINUTES).build().get(60, TimeUnit.SECONDS));
                return null;
            case "commit":
                TRANSACTIONS.remove(request.get("name").asText()).commit().get(60, TimeUnit.SECONDS);
                return null;
            case "abort":
                TRANSACTIONS.remove(request.get("name").asText()).abort().get(60, TimeUnit.SECONDS);
                return null;
            default:
                throw new IllegalArgumentException("unknown request: " + request.get("do"));
        }
    }

    private static PulsarClient client(JsonNode request) throws Exception {
        String url = request.get("url").asText();
        PulsarClient client = CLIENTS.get(url);
        if (client == null) {
            boolean secured = request.hasNonNull("token");
            ClientBuilder builder = PulsarClient.builder().serviceUrl(url).enableTransaction(secured);
            if (secured) {
                builder.authentication(AuthenticationFactory.token(request.get("token").asText()));
            }
            client = builder.build();
            CLIENTS.put(url, client);
        }
        return client;
    }

    private static ArrayNode produce(JsonNode request) throws Exception {
        boolean batching = request.path("batching").asBoolean(false);
        ProducerBuilder<byte[]> builder = client(request).newProducer(schema(request))
                .topic(request.get("topic").asText())
                .compressionType(CompressionType.valueOf(request.path("compression").asText("NONE")))
                // A transaction refuses a producer with a send timeout.
                .sendTimeout(0, TimeUnit.SECONDS)
                .blockIfQueueFull(true)
                .hashingScheme(HashingScheme.valueOf(request.path("hashing").asText("JavaStringHash")))
                .enableBatching(batching);
        if (batching) {
            int delayMs = request.hasNonNull("transaction") ? 50 : 60_000;
            builder.batchingMaxMessages(request.path("batchMessages").asInt(1000))
                    .batchingMaxPublishDelay(delayMs, TimeUnit.MILLISECONDS);
        }
        if (request.hasNonNull("chunkBytes")) {
            builder.enableChunking(true).chunkMaxMessageSize(request.get("chunkBytes").asInt());
        }
        if (request.hasNonNull("publicKeys")) {
            Map<String, String> keys = keys(request.get("publicKeys"));
            builder.defaultCryptoKeyReader(keys);
            keys.keySet().forEach(builder::addEncryptionKey);
        }
        if (request.hasNonNull("producer")) {
            builder.producerName(request.get("producer").asText());
        }
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        ArrayNode ids = JSON.createArrayNode();
        try (Producer<byte[]> producer = builder.create()) {
            for (JsonNode message : request.get("messages")) {
                TypedMessageBuilder<byte[]> next = request.hasNonNull("transaction")
                        ? producer.newMessage(TRANSACTIONS.get(request.get("transaction").asText()))
                        : producer.newMessage();
                sent.add(filled(next, message).sendAsync());
            }
            producer.flush();
            // Messages of a transaction are sent once the partition has joined it, which flush() does not wait for.
            for (CompletableFuture<MessageId> future : sent) {
                MessageIdAdv id = (MessageIdAdv) future.get(60, TimeUnit.SECONDS);
                ids.add(JSON.createArrayNode().add(id.getLedgerId()).add(id.getEntryId()).add(id.getBatchIndex())
                        .add(id.getPartitionIndex()));
            }
        }
        return ids;
    }

    /** The schema of messages that come as bytes; those of protobuf by a class that the broker's libraries have. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Schema<byte[]> schema(JsonNode request) throws Exception {
        if (!request.hasNonNull("schema")) {
            return Schema.BYTES;
        }
        Class made = Class.forName(request.get("schemaClass").asText());
        return Schema.AUTO_PRODUCE_BYTES(request.get("schema").asText().equals("PROTOBUF")
                ? Schema.PROTOBUF(made) : Schema.PROTOBUF_NATIVE(made));
    }

    /** The fields of a record: what Java's types become in schemas. */
    public static class Everything {
        public boolean flag;
        public int number;
        public Long big;
        public float part;
        public double ratio;
        public String text;
        public byte[] bytes;
        public Color color;
        public List<String> tags;
        public Map<String, Integer> counts;
        public Row row;
    }

    public enum Color { RED, GREEN }

    public static class Id {
        public long id;
    }

    public static class Row {
        public long id;
        public String name;
    }

    /** A change event, as Debezium writes it. */
    public static class Change {
        public Row before;
        public Row after;
        public String op;
    }

    private static void produceTyped(JsonNode request) throws Exception {
        if (request.hasNonNull("pair")) {
            publish(request, Schema.KeyValue(schema(request, Id.class), schema(request, Change.class),
                    KeyValueEncodingType.valueOf(request.get("pair").asText())), message -> new KeyValue<>(
                    JSON.treeToValue(message.get(0), Id.class), JSON.treeToValue(message.get(1), Change.class)));
        } else {
            publish(request, schema(request, Everything.class), message -> JSON.treeToValue(message, Everything.class));
        }
    }

    private interface Parser<T> {
        T read(JsonNode message) throws Exception;
    }

    private static <T> Schema<T> schema(JsonNode request, Class<T> type) {
        return request.get("kind").asText().equals("AVRO") ? Schema.AVRO(type) : Schema.JSON(type);
    }

    private static <T> void publish(JsonNode request, Schema<T> schema, Parser<T> reader) throws Exception {
        try (Producer<T> producer =
                client(request).newProducer(schema).topic(request.get("topic").asText()).create()) {
            for (JsonNode message : request.get("messages")) {
                producer.send(reader.read(message));
            }
        }
    }

    private static ArrayNode consume(JsonNode request) throws Exception {
        ArrayNode messages = JSON.createArrayNode();
        ReaderBuilder<byte[]> builder = client(request).newReader()
                .topic(request.get("topic").asText()).startMessageId(MessageId.earliest);
        if (request.hasNonNull("privateKeys")) {
            builder.defaultCryptoKeyReader(keys(request.get("privateKeys")));
        }
        try (Reader<byte[]> reader = builder.create()) {
            for (int left = request.get("count").asInt(); left > 0; left--) {
                Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                describe(message, messages.addObject());
            }
        }
        return messages;
    }

    /** Addresses of keys in files, by name. */
    private static Map<String, String> keys(JsonNode paths) {
        Map<String, String> keys = new HashMap<>();
        paths.fields().forEachRemaining(one -> keys.put(one.getKey(), "file://" + one.getValue().asText()));
        return keys;
    }

    /** A class of an application. */
    public static class Flight {
        public String carrier;
        public Integer number;
        public Double distance;
        public List<String> stops;

        @Override
        public String toString() {
            return carrier + "/" + number + "/" + distance + "/" + stops;
        }
    }

    /** Values as an application gets them, by a schema of its own or by the topic's; as texts. */
    private static ArrayNode values(JsonNode request) throws Exception {
        ArrayNode values = JSON.createArrayNode();
        try (Consumer<?> consumer = client(request).newConsumer(schema(request.get("schema").asText()))
                .topic(request.get("topic").asText())
                .subscriptionName("java-values")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int left = request.get("count").asInt(); left > 0; left--) {
                Message<?> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                Object value = message.getValue();
                if (value instanceof GenericObject) {
                    value = ((GenericObject) value).getNativeObject();
                }
                if (value instanceof KeyValue) {
                    KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
                    values.add(shown(pair.getKey()) + " -> " + shown(pair.getValue()));
                } else {
                    values.add(shown(value));
                }
            }
        }
        return values;
    }

    private static String shown(Object value) {
        return String.valueOf(value instanceof GenericObject ? ((GenericObject) value).getNativeObject() : value);
    }

    private static Schema<?> schema(String name) {
        switch (name) {
            case "avro":
                return Schema.AVRO(Flight.class);
            case "json":
                return Schema.JSON(Flight.class);
            case "inline":
                return Schema.KeyValue(Schema.AVRO(Flight.class), Schema.JSON(Flight.class), KeyValueEncodingType.INLINE);
            case "separated":
                return Schema.KeyValue(
                        Schema.AVRO(Flight.class), Schema.JSON(Flight.class), KeyValueEncodingType.SEPARATED);
            default:
                return Schema.AUTO_CONSUME();
        }
    }

    /** What several consumers of one subscription get, in the order in which it came. */
    private static ArrayNode share(JsonNode request) throws Exception {
        ArrayNode messages = JSON.createArrayNode();
        BlockingQueue<ObjectNode> received = new LinkedBlockingQueue<>();
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        try {
            for (int i = 0; i < request.get("consumers").asInt(); i++) {
                int number = i;
                consumers.add(client(request).newConsumer()
                        .topic(request.get("topic").asText())
                        .subscriptionName(request.get("subscription").asText())
                        .subscriptionType(SubscriptionType.valueOf(request.get("type").asText()))
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        // None begins before all are there.
                        .startPaused(true)
                        .messageListener((consumer, message) -> {
                            ObjectNode node = JSON.createObjectNode();
                            node.put("consumer", number);
                            node.put("receivedAt", System.currentTimeMillis());
                            describe(message, node);
                            received.add(node);
                            consumer.acknowledgeAsync(message);
                        }).subscribe());
            }
            consumers.forEach(Consumer::resume);
            for (int left = request.get("count").asInt(); left > 0; left--) {
                ObjectNode node = received.poll(60, TimeUnit.SECONDS);
                if (node == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                messages.add(node);
            }
        } finally {
            for (Consumer<byte[]> consumer : consumers) {
                consumer.close();
            }
        }
        return messages;
    }

    /** What a consumer's own dead letter policy makes of the messages of a topic, none of which it acknowledges. */
    private static ArrayNode reject(JsonNode request) throws Exception {
        String letters = request.get("letters").asText();
        ArrayNode found = JSON.createArrayNode();
        // Of a batch that comes again, the client stores letters that it has stored already.
        Set<ByteBuffer> stored = new HashSet<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        try (Consumer<byte[]> consumer = client(request).newConsumer()
                .topic(request.get("topic").asText())
                .subscriptionName("java-rejects")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableBatchIndexAcknowledgment(true)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic(letters).build())
                .subscribe();
                Reader<byte[]> reader = client(request).newReader()
                        .topic(letters).startMessageId(MessageId.earliest).create()) {
            for (int left = request.get("count").asInt(); left > 0;) {
                Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumer.negativeAcknowledge(message);
                }
                Message<byte[]> letter = reader.readNext(10, TimeUnit.MILLISECONDS);
                if (letter != null && stored.add(ByteBuffer.wrap(letter.getData()))) {
                    describe(letter, found.addObject());
                    left--;
                }
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(left + " dead letters did not come");
                }
            }
        }
        return found;
    }

    /** What a consumer with a retry topic gets, which puts off everything; and then what is in its dead letter topic. */
    private static ArrayNode reconsume(JsonNode request) throws Exception {
        String topic = request.get("topic").asText();
        String subscription = request.get("subscription").asText();
        ArrayNode found = JSON.createArrayNode();
        try (Consumer<byte[]> consumer = client(request).newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(request.get("most").asInt()).build())
                .subscribe()) {
            for (int left = request.get("count").asInt(); left > 0; left--) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                describe(message, found.addObject().put("topic", message.getTopicName()));
                consumer.reconsumeLater(message, request.get("delayMs").asLong(), TimeUnit.MILLISECONDS);
            }
        }
        if (request.get("dead").asInt() == 0) {
            return found;
        }
        String letters = topic + "-" + subscription + "-DLQ";
        try (Reader<byte[]> reader = client(request).newReader()
                .topic(letters).startMessageId(MessageId.earliest).create()) {
            for (int left = request.get("dead").asInt(); left > 0; left--) {
                Message<byte[]> letter = reader.readNext(60, TimeUnit.SECONDS);
                if (letter == null) {
                    throw new IllegalStateException(left + " dead letters did not come");
                }
                describe(letter, found.addObject().put("topic", letters));
            }
        }
        return found;
    }

    private static void describe(Message<byte[]> message, ObjectNode node) {
        node.put("value", message.getValue());
        node.put("sequenceId", message.getSequenceId());
        node.put("eventTime", message.getEventTime());
        if (message.hasKey()) {
            node.put("key", message.getKeyBytes());
            node.put("isBase64", message.hasBase64EncodedKey());
        }
        node.put("orderingKey", message.getOrderingKey());
        Message<byte[]> inner = message instanceof TopicMessageImpl
                ? ((TopicMessageImpl<byte[]>) message).getMessage() : message;
        node.put("compression", ((MessageImpl<byte[]>) inner).getMessageBuilder().getCompression().name());
        node.set("properties", JSON.valueToTree(message.getProperties()));
    }

    private static TypedMessageBuilder<byte[]> filled(TypedMessageBuilder<byte[]> next, JsonNode message)
            throws Exception {
        // A value of null is a tombstone.
        next.value(message.hasNonNull("value") ? message.get("value").binaryValue() : null);
        if (message.hasNonNull("key")) {
            next.key(message.get("key").asText());
        }
        if (message.hasNonNull("keyBytes")) {
            next.keyBytes(message.get("keyBytes").binaryValue());
        }
        if (message.hasNonNull("orderingKey")) {
            next.orderingKey(message.get("orderingKey").binaryValue());
        }
        if (message.hasNonNull("eventTime")) {
            next.eventTime(message.get("eventTime").asLong());
        }
        if (message.hasNonNull("properties")) {
            message.get("properties").fields().forEachRemaining(p -> next.property(p.getKey(), p.getValue().asText()));
        }
        return next;
    }
}
