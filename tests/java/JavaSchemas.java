import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.avro.reflect.AvroSchema;
import org.apache.avro.reflect.Union;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.SchemaDefinition;

/**
 * The schemas of the official Java client as a program: what each makes of a value. Requests and answers as JavaClient's;
 * it needs no broker.
 */
public class JavaSchemas {
    private static final ObjectMapper JSON = new ObjectMapper();

    public enum Gate { A, B }

    public static class Leg {
        public String city;
        public double[] position;

        public Leg() {
        }

        Leg(String city, double... position) {
            this.city = city;
            this.position = position;
        }
    }

    public static class Everything {
        public byte int8 = -128;
        public short int16 = 32767;
        public int int32 = -5;
        public long int64 = Long.MIN_VALUE;
        public Long none;
        public float nan = Float.NaN;
        public float float32 = 0.1f;
        public double infinite = Double.NEGATIVE_INFINITY;
        public double float64 = 1e-7;
        public boolean flag = true;
        public char letter = 'x';
        public char[] letters = {'a', 'b'};
        public String text = "\u00fc\ud83d\ude00\n\u0000\"/";
        public byte[] data = {0, 1, (byte) 0xff, 7};
        public BigDecimal amount = new BigDecimal("1234567890123456789.10");
        public BigInteger large = BigInteger.TEN.pow(30);
        @AvroSchema("{\"type\":\"bytes\",\"logicalType\":\"decimal\",\"precision\":10,\"scale\":3}")
        public BigDecimal price = new BigDecimal("1E+3");
        public Gate gate = Gate.B;
        public Map<String, Integer> counts = new TreeMap<>(Map.of("a", 1, "b", 2));
        public Map<Integer, String> names = Map.of(7, "seven");
        public Leg leg = new Leg("x", 1.5, -0.0);
        public List<Leg> legs = List.of(new Leg(null), new Leg("y", 2));
        public UUID id = new UUID(1, 2);
        @AvroSchema("{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}")
        public Date moment = new Date(1_700_000_000_123L);
        public Instant instant = Instant.ofEpochSecond(1_700_000_000L, 123_456_789);
        public Instant early = Instant.ofEpochSecond(-2, 500_000_000);
        public LocalDate day = LocalDate.of(2024, 2, 29);
        public LocalTime time = LocalTime.of(3, 4, 5, 123_456_789);
        public LocalTime minute = LocalTime.of(3, 4);
        public LocalDateTime local = LocalDateTime.of(2020, 1, 2, 3, 4, 5, 6000);
        public LocalDateTime hour = LocalDateTime.of(2020, 1, 2, 3, 0);
        @Union({String.class, Integer.class})
        public Object either = 1;
        public Object any = List.of(1, "x");
        public Optional<String> maybe = Optional.of("x");
        public Date date = new Date(5);
        public Timestamp timestamp = new Timestamp(1_700_000_000_123L);
        public OffsetDateTime offset = OffsetDateTime.of(2020, 1, 2, 3, 4, 5, 6000, ZoneOffset.ofHours(1));
    }

    private static final String LONG = "{\"type\":\"long\",\"logicalType\":\"";

    /** What Avro has types for, or logical types that the client converts; without local timestamps, which it does not. */
    public static class AvroTypes {
        public boolean flag = true;
        public int int32 = -5;
        public long int64 = Long.MIN_VALUE;
        public Long none;
        public float nan = Float.NaN;
        public double infinite = Double.NEGATIVE_INFINITY;
        public String text = "\u00fc\ud83d\ude00";
        public byte[] data = {0, (byte) 0xff};
        @AvroSchema("{\"type\":\"bytes\",\"logicalType\":\"decimal\",\"precision\":30,\"scale\":3}")
        public BigDecimal price = new BigDecimal("-1234567890123456789.125");
        @AvroSchema("{\"type\":\"fixed\",\"name\":\"Cents\",\"size\":4,\"logicalType\":\"decimal\",\"precision\":9,"
                + "\"scale\":2}")
        public BigDecimal cents = new BigDecimal("-0.01");
        @AvroSchema("{\"type\":\"int\",\"logicalType\":\"date\"}")
        public LocalDate day = LocalDate.of(1969, 12, 31);
        @AvroSchema("{\"type\":\"int\",\"logicalType\":\"time-millis\"}")
        public LocalTime millis = LocalTime.of(3, 4, 5, 123_000_000);
        @AvroSchema(LONG + "time-micros\"}")
        public LocalTime micros = LocalTime.of(3, 4, 5, 123_456_000);
        @AvroSchema(LONG + "timestamp-millis\"}")
        public Instant atMillis = Instant.ofEpochMilli(-1);
        @AvroSchema(LONG + "timestamp-micros\"}")
        public Instant atMicros = Instant.ofEpochSecond(1_700_000_000L, 123_456_000);
        @AvroSchema("{\"type\":\"string\",\"logicalType\":\"uuid\"}")
        public UUID id = new UUID(1, 2);
        public Gate gate = Gate.B;
        public Map<String, Integer> counts = new TreeMap<>(Map.of("a", 1, "b", 2));
        public Leg leg = new Leg("x", 1.5, -0.0);
        public List<Leg> legs = List.of(new Leg("y", 2));
        @Union({String.class, Integer.class})
        public Object either = 1;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Log lines must not come between the answers.
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            answer.set("ok", encoded());
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
    }

    private static ObjectNode encoded() {
        ObjectNode all = JSON.createObjectNode();
        add(all, "bool", Schema.BOOL, true);
        add(all, "int8", Schema.INT8, (byte) -2);
        add(all, "int16", Schema.INT16, (short) 258);
        add(all, "int32", Schema.INT32, -3);
        add(all, "int64", Schema.INT64, Long.MAX_VALUE);
        add(all, "float", Schema.FLOAT, -0.1f);
        add(all, "double", Schema.DOUBLE, 0.1);
        add(all, "string", Schema.STRING, "ü");
        add(all, "bytes", Schema.BYTES, new byte[] {0, 1});
        add(all, "date", Schema.DATE, new Date(-1));
        add(all, "time", Schema.TIME, new Time(3_600_000));
        add(all, "timestamp", Schema.TIMESTAMP, new Timestamp(1_700_000_000_123L));
        add(all, "instant", Schema.INSTANT, Instant.ofEpochSecond(-2, 500_000_999));
        add(all, "local_date", Schema.LOCAL_DATE, LocalDate.of(1969, 12, 31));
        add(all, "local_time", Schema.LOCAL_TIME, LocalTime.of(1, 2, 3, 4));
        add(all, "local_date_time", Schema.LOCAL_DATE_TIME, LocalDateTime.of(1960, 1, 2, 3, 4, 5, 6999));
        add(all, "json", Schema.JSON(Everything.class), new Everything());
        add(all, "avro", Schema.AVRO(SchemaDefinition.<AvroTypes>builder().withPojo(AvroTypes.class)
                .withJSR310ConversionEnabled(true).build()), new AvroTypes());
        return all;
    }

    private static <T> void add(ObjectNode all, String name, Schema<T> schema, T value) {
        all.putObject(name).put("type", schema.getSchemaInfo().getType().name())
                .put("definition", new String(schema.getSchemaInfo().getSchema(), StandardCharsets.UTF_8))
                .put("payload", schema.encode(value));
    }
}
