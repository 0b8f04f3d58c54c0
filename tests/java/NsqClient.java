import com.github.brainlag.nsq.NSQConfig;
import com.github.brainlag.nsq.NSQConsumer;
import com.github.brainlag.nsq.NSQProducer;
import com.github.brainlag.nsq.ServerAddress;
import com.github.brainlag.nsq.lookup.DefaultNSQLookup;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * A JVM client of NSQ (brainlag's nsq-client) as a program; runs from its source (java -cp 'jars/*' NsqClient.java).
 *
 * <p>publish HOST PORT COMPRESSION TOPIC publishes the lines of standard input, base64 each; consume HOST PORT
 * COMPRESSION TOPIC CHANNEL COUNT writes so many messages to standard output in the same way.
 */
public class NsqClient {
    private static final int BATCH = 500;

    public static void main(String[] arguments) throws Exception {
        PrintStream found = System.out;
        // Log lines must not come between the messages.
        System.setOut(System.err);
        String host = arguments[1];
        int port = Integer.parseInt(arguments[2]);
        NSQConfig config = new NSQConfig();
        if (!arguments[3].equals("none")) {
            config.setCompression(NSQConfig.Compression.valueOf(arguments[3].toUpperCase()));
            config.setDeflateLevel(6);
        }
        if (arguments[0].equals("publish")) {
            publish(host, port, config, arguments[4]);
        } else {
            consume(host, port, config, arguments[4], arguments[5], Integer.parseInt(arguments[6]), found);
        }
        // The client's threads do not end by themselves.
        System.exit(0);
    }

    private static void publish(String host, int port, NSQConfig config, String topic) throws Exception {
        NSQProducer producer = new NSQProducer().addAddress(host, port).setConfig(config).start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        List<byte[]> batch = new ArrayList<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            batch.add(Base64.getDecoder().decode(line));
            if (batch.size() == BATCH) {
                producer.produceMulti(topic, batch);
                batch.clear();
            }
        }
        // The last ones singly: PUB is a command of its own.
        for (byte[] message : batch) {
            producer.produce(topic, message);
        }
        producer.shutdown();
    }

    private static void consume(String host, int port, NSQConfig config, String topic, String channel, int count,
            PrintStream found) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultNSQLookup lookup = new DefaultNSQLookup() {
            @Override
            public Set<ServerAddress> lookup(String asked) {
                return Set.of(new ServerAddress(host, port));
            }
        };
        NSQConsumer consumer = new NSQConsumer(lookup, topic, channel, message -> {
            synchronized (found) {
                found.println(Base64.getEncoder().encodeToString(message.getMessage()));
            }
            message.finished();
            left.countDown();
        }, config);
        consumer.start();
        if (!left.await(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " messages did not come");
        }
        found.flush();
        // What was finished last is still on its way.
        consumer.shutdown();
    }
}
