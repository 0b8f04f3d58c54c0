import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.UUID;
import javax.naming.AuthenticationException;
import javax.net.ssl.SSLSession;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.authentication.AuthenticationDataSource;
import org.apache.pulsar.broker.authentication.AuthenticationProvider;
import org.apache.pulsar.broker.authentication.AuthenticationState;
import org.apache.pulsar.common.api.AuthData;

/** The broker's side of a method with two steps: the client begins with a word of its own, and then answers a challenge. */
public class StepsProvider implements AuthenticationProvider {
    @Override
    public void initialize(ServiceConfiguration configuration) {}

    @Override
    public String getAuthMethodName() {
        return "steps";
    }

    @Override
    public AuthenticationState newAuthState(AuthData first, SocketAddress peer, SSLSession session) {
        return new State();
    }

    @Override
    public void close() {}

    private static class State implements AuthenticationState {
        private final String challenge = UUID.randomUUID().toString();
        private String word;
        private boolean complete;

        @Override
        public AuthData authenticate(AuthData data) throws AuthenticationException {
            String text = new String(data.getBytes(), StandardCharsets.UTF_8);
            if (word == null) {
                word = text;
                return AuthData.of(challenge.getBytes(StandardCharsets.UTF_8));
            }
            if (!text.equals(digest("a-shared-secret" + word + challenge))) {
                throw new AuthenticationException("wrong answer");
            }
            complete = true;
            return null;
        }

        private static String digest(String text) {
            try {
                byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
            } catch (NoSuchAlgorithmException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public String getAuthRole() {
            return "admin";
        }

        @Override
        public AuthenticationDataSource getAuthDataSource() {
            return new AuthenticationDataSource() {};
        }

        @Override
        public boolean isComplete() {
            return complete;
        }
    }
}
