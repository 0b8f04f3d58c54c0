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
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.inlong.tubemq.client.common.ConfirmResult;
import org.apache.inlong.tubemq.client.common.ConsumeResult;
import org.apache.inlong.tubemq.client.common.QueryMetaResult;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.consumer.ClientBalanceConsumer;
import org.apache.inlong.tubemq.client.consumer.ConsumeOffsetInfo;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.MessageSessionFactory;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.rv.ProcessResult;

/**
 * The official Java client as a program: one JSON request a line on standard input, one JSON answer a line on standard
 * output. It runs from its source with the servers' own libraries (java -cp 'lib/*' TubeClient.java).
 */
public class TubeClient {
    // A request holds all messages that are to be published, in one line.
    private static final ObjectMapper JSON = new ObjectMapper(JsonFactory.builder()
            .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(1 << 28).build()).build());
    private static final long PATIENCE_MS = 60_000;
    private static final long HEARTBEAT_MS = 1000;
    /** Six times the default, for a busy machine. */
    private static final long RPC_TIMEOUT_MS = 60_000;
    private static final int WINDOW = 500;
    private static final Map<String, MessageProducer> PRODUCERS = new HashMap<>();
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Log lines must not come between the answers.
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", answer(JSON.readTree(line)));
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        // Threads of the client would keep the program alive.
        System.exit(0);
    }

    private static JsonNode answer(JsonNode request) throws Throwable {
        switch (request.get("do").asText()) {
            case "produce":
                return produce(request);
            case "consume":
                return consume(request);
            case "consume_balanced":
                return consumeBalanced(request);
            case "join":
                MEMBERS.put(request.get("name").asText(), new Member(request));
                return null;
            case "member":
                return MEMBERS.get(request.get("name").asText()).state();
            case "leave":
                return MEMBERS.remove(request.get("name").asText()).leave();
            default:
                throw new IllegalArgumentException("unknown request: " + request.get("do"));
        }
    }

    // -- configuration

    private static ConsumerConfig consumerConfig(JsonNode request) {
        ConsumerConfig config = new ConsumerConfig(request.get("masters").asText(), request.get("group").asText());
        config.setHeartbeatPeriodMs(HEARTBEAT_MS);
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        config.setMsgNotFoundWaitPeriodMs(100);
        return config;
    }

    private static TreeSet<String> filters(JsonNode request) {
        if (!request.hasNonNull("filters")) {
            return null;
        }
        TreeSet<String> filters = new TreeSet<>();
        request.get("filters").forEach(filter -> filters.add(filter.asText()));
        return filters;
    }

    // -- publishing

    private static MessageProducer producer(String masters) throws Exception {
        MessageProducer producer = PRODUCERS.get(masters);
        if (producer == null) {
            TubeClientConfig config = new TubeClientConfig(masters);
            config.setHeartbeatPeriodMs(HEARTBEAT_MS);
            config.setRpcTimeoutMs(RPC_TIMEOUT_MS);
            producer = new TubeMultiSessionFactory(config).createProducer();
            PRODUCERS.put(masters, producer);
        }
        return producer;
    }

    private static ArrayNode produce(JsonNode request) throws Exception {
        MessageProducer producer = producer(request.get("masters").asText());
        String topic = request.get("topic").asText();
        publish(producer, topic, System.currentTimeMillis() + PATIENCE_MS);
        List<CompletableFuture<MessageSentResult>> sent = new ArrayList<>();
        Semaphore window = new Semaphore(WINDOW);
        for (JsonNode message : request.get("messages")) {
            sent.add(send(producer, filled(topic, message), window));
        }
        ArrayNode places = JSON.createArrayNode();
        for (CompletableFuture<MessageSentResult> future : sent) {
            MessageSentResult result = future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
            if (!result.isSuccess()) {
                throw new IllegalStateException(result.getErrCode() + " " + result.getErrMsg());
            }
            places.addArray().add(result.getPartition().getBrokerId()).add(result.getPartition().getPartitionId())
                    .add(result.getMessageId()).add(result.getAppendOffset());
        }
        return places;
    }

    private static void publish(MessageProducer producer, String topic, long deadline) throws Exception {
        for (;;) {
            try {
                // Asks a master once, and no other one: the next heartbeat finds the one that leads now.
                producer.publish(topic);
                return;
            } catch (TubeClientException error) {
                if (System.currentTimeMillis() > deadline) {
                    throw error;
                }
            }
            Thread.sleep(20);
        }
    }

    private static CompletableFuture<MessageSentResult> send(MessageProducer producer, Message message,
            Semaphore window) throws Exception {
        CompletableFuture<MessageSentResult> future = new CompletableFuture<>();
        window.acquire();
        producer.sendMessage(message, new MessageSentCallback() {
            @Override
            public void onMessageSent(MessageSentResult result) {
                window.release();
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                window.release();
                future.completeExceptionally(error);
            }
        });
        return future;
    }

    private static Message filled(String topic, JsonNode node) throws Exception {
        Message message = new Message(topic, node.get("value").binaryValue());
        if (node.hasNonNull("type") || node.hasNonNull("time")) {
            message.putSystemHeader(node.path("type").asText(null), node.path("time").asText(null));
        }
        if (node.hasNonNull("attributes")) {
            node.get("attributes").fields()
                    .forEachRemaining(pair -> message.setAttrKeyVal(pair.getKey(), pair.getValue().asText()));
        }
        return message;
    }

    // -- reading

    private static void add(ArrayNode messages, Message message, String partitionKey) {
        ObjectNode node = messages.addObject();
        node.put("value", message.getData());
        node.put("type", message.getMsgType());
        node.put("time", message.getMsgTime());
        node.put("attributes", message.getAttribute());
        node.put("id", message.getIndexId());
        node.put("partition", partitionKey);
    }

    private static ArrayNode consume(JsonNode request) throws Throwable {
        Member member = new Member(request);
        int wanted = request.get("count").asInt();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (member.count() < wanted) {
            if (System.currentTimeMillis() > deadline) {
                member.leave();
                throw new IllegalStateException("only " + member.count() + " of " + wanted + " messages came");
            }
            Thread.sleep(5);
        }
        return (ArrayNode) member.leave().get("messages");
    }

    /** One consumer of a group whose partitions the masters share out; it reads and confirms until it leaves. */
    private static class Member {
        private final MessageSessionFactory sessions;
        private final PullMessageConsumer consumer;
        private final Thread reading = new Thread(this::read);
        private ArrayNode messages = JSON.createArrayNode();
        private volatile boolean leaving;
        private volatile Throwable failure;

        Member(JsonNode request) throws Exception {
            ConsumerConfig config = consumerConfig(request);
            sessions = new TubeMultiSessionFactory(config);
            consumer = sessions.createPullConsumer(config);
            for (JsonNode topic : request.get("topics")) {
                consumer.subscribe(topic.asText(), filters(request));
            }
            if (request.hasNonNull("session")) {
                Map<String, Long> offsets = new TreeMap<>();
                request.get("offsets").fields().forEachRemaining(e -> offsets.put(e.getKey(), e.getValue().asLong()));
                consumer.completeSubscribe(
                        request.get("session").asText(), request.get("members").asInt(), true, offsets);
            } else {
                consumer.completeSubscribe();
            }
            if (request.path("reading").asBoolean(true)) {
                reading.start();
            }
        }

        private void read() {
            try {
                while (!leaving) {
                    ConsumerResult result = consumer.getMessage();
                    if (result.isSuccess()) {
                        // Confirmed first: what is confirmed in vain is given to another member.
                        ConsumerResult confirmed = consumer.confirmConsume(result.getConfirmContext(), true);
                        if (confirmed.isSuccess()) {
                            synchronized (this) {
                                result.getMessageList().forEach(m -> add(messages, m, result.getPartitionKey()));
                            }
                        }
                    } else if (result.getErrCode() == 400 || result.getErrCode() == 404) {
                        Thread.sleep(20);
                    }
                }
            } catch (Throwable error) {
                error.printStackTrace();
                failure = error;
            }
        }

        synchronized int count() {
            return messages.size();
        }

        /** What it holds now, and what it has read since it was asked last. */
        synchronized ObjectNode state() throws Exception {
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
            ObjectNode state = JSON.createObjectNode();
            ObjectNode held = state.putObject("held");
            for (Map.Entry<String, ConsumeOffsetInfo> part : consumer.getCurConsumedPartitions().entrySet()) {
                held.put(part.getKey(), part.getValue().getCurrOffset());
            }
            state.set("messages", messages);
            messages = JSON.createArrayNode();
            return state;
        }

        ObjectNode leave() throws Throwable {
            leaving = true;
            reading.join(PATIENCE_MS);
            ObjectNode state = state();
            consumer.shutdown();
            sessions.shutdown();
            return state;
        }
    }

    /** All of a topic by a consumer that chooses its partitions itself, from their starts. */
    private static ArrayNode consumeBalanced(JsonNode request) throws Throwable {
        ArrayNode messages = JSON.createArrayNode();
        ConsumerConfig config = consumerConfig(request);
        MessageSessionFactory sessions = new TubeMultiSessionFactory(config);
        ClientBalanceConsumer consumer = sessions.createBalanceConsumer(config);
        Map<String, TreeSet<String>> topics = new TreeMap<>();
        request.get("topics").forEach(topic -> topics.put(topic.asText(), filters(request)));
        ProcessResult result = new ProcessResult();
        if (!consumer.start(topics, -1, -1, result)) {
            throw new IllegalStateException(result.getErrMsg());
        }
        QueryMetaResult found = new QueryMetaResult();
        if (!consumer.getPartitionMetaInfo(found)) {
            throw new IllegalStateException(found.getErrMsg());
        }
        for (String partition : found.getPartStatusMap().keySet()) {
            if (!consumer.connect2Partition(partition, 0, result)) {
                throw new IllegalStateException(partition + ": " + result.getErrMsg());
            }
        }
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (messages.size() < request.get("count").asInt()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("only " + messages.size() + " messages came");
            }
            ConsumeResult came = new ConsumeResult();
            if (consumer.getMessage(came)) {
                came.getMessageList().forEach(message -> add(messages, message, came.getPartitionKey()));
                consumer.confirmConsume(came.getConfirmContext(), true, new ConfirmResult());
            }
        }
        for (String partition : consumer.getCurRegisteredPartSet()) {
            consumer.disconnectFromPartition(partition, result);
        }
        consumer.shutdown();
        sessions.shutdown();
        return messages;
    }
}
