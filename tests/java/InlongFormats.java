import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.inlong.common.msg.InLongMsg;
import org.apache.inlong.sort.formats.common.BasicFormatInfo;
import org.apache.inlong.sort.formats.util.StringUtils;

/** InLong's own classes as a program: a list of requests a line, and the list of their answers. */
public class InlongFormats {
    private static final Gson JSON = new Gson();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<Object> answers = new ArrayList<>();
            for (JsonElement request : JSON.fromJson(line, JsonObject.class).getAsJsonArray("requests")) {
                try {
                    answers.add(answer(request.getAsJsonObject()));
                } catch (Throwable error) {
                    answers.add(Map.of("error", error.toString()));
                }
            }
            out.println(JSON.toJson(Map.of("ok", answers)));
        }
    }

    private static Object answer(JsonObject request) throws Exception {
        switch (request.get("op").getAsString()) {
            case "parse":
                return parse(bytes(request.get("payload")));
            case "build":
                return build(request);
            case "csv":
                return StringUtils.splitCsv(text(request, "text"), character(request, "field"),
                    character(request, "escape"), character(request, "quote"), character(request, "line"));
            case "kv":
                return StringUtils.splitKv(text(request, "text"), character(request, "field"),
                    character(request, "key"), character(request, "escape"), character(request, "quote"),
                    character(request, "line"));
            case "cell":
                String name = "org.apache.inlong.sort.formats.common." + text(request, "type") + "FormatInfo";
                Object cell = ((BasicFormatInfo<?>) Class.forName(name).getConstructor().newInstance())
                    .deserialize(text(request, "text"));
                return cell.toString();
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    /** The records by the text of their attributes, and these as a map. */
    private static Object parse(byte[] payload) {
        InLongMsg message = InLongMsg.parseFrom(payload);
        List<Object> found = new ArrayList<>();
        for (String attributes : message.getAttrs()) {
            List<String> records = new ArrayList<>();
            for (Iterator<byte[]> each = message.getIterator(attributes); each.hasNext();) {
                byte[] record = each.next();
                if (record.length > 1 << 20) {
                    // A damaged size: the class fills up what is not there with zeros.
                    throw new IllegalStateException(record.length + " bytes");
                }
                records.add(Base64.getEncoder().encodeToString(record));
            }
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("attributes", StringUtils.splitKv(attributes, '&', '=', null, null));
            one.put("records", records);
            found.add(one);
        }
        return found;
    }

    private static Object build(JsonObject request) {
        InLongMsg message =
            InLongMsg.newInLongMsg(1 << 20, request.get("compress").getAsBoolean(), request.get("version").getAsInt());
        for (JsonElement one : request.getAsJsonArray("parts")) {
            JsonArray part = one.getAsJsonArray();
            byte[] data = bytes(part.get(1));
            boolean isAdded = request.get("version").getAsInt() == 4
                ? message.addMsg(data) : message.addMsg(part.get(0).getAsString(), ByteBuffer.wrap(data));
            if (!isAdded) {
                throw new IllegalArgumentException("not added");
            }
        }
        return Base64.getEncoder().encodeToString(message.buildArray(request.get("time").getAsLong()));
    }

    private static byte[] bytes(JsonElement text) {
        return Base64.getDecoder().decode(text.getAsString());
    }

    private static String text(JsonObject request, String name) {
        return request.get(name).getAsString();
    }

    private static Character character(JsonObject request, String name) {
        JsonElement found = request.get(name);
        return found == null || found.isJsonNull() ? null : found.getAsString().charAt(0);
    }
}
