import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.MessageImpl;

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
            case "consume":
                return consume(request);
            case "share":
                return share(request);
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
        ProducerBuilder<byte[]> builder = client(request).newProducer()
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

    private static ArrayNode consume(JsonNode request) throws Exception {
        ArrayNode messages = JSON.createArrayNode();
        try (Reader<byte[]> reader = client(request).newReader()
                .topic(request.get("topic").asText()).startMessageId(MessageId.earliest).create()) {
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

    private static void describe(Message<byte[]> message, ObjectNode node) {
        node.put("value", message.getValue());
        node.put("sequenceId", message.getSequenceId());
        node.put("eventTime", message.getEventTime());
        if (message.hasKey()) {
            node.put("key", message.getKeyBytes());
            node.put("isBase64", message.hasBase64EncodedKey());
        }
        node.put("orderingKey", message.getOrderingKey());
        node.put("compression", ((MessageImpl<byte[]>) message).getMessageBuilder().getCompression().name());
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
