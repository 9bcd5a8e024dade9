import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Makes a share group by joining it for a moment: SERVERS GROUP TOPIC. */
public class ShareProbe {
    public static void main(String[] words) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("group.id", words[1]);
        try (var consumer = new KafkaShareConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(words[2]));
            consumer.poll(Duration.ofSeconds(3));
        }
    }
}
