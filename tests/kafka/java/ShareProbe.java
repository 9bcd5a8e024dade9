import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Makes a share group by joining it until the cluster lists it: SERVERS GROUP TOPIC. */
public class ShareProbe {
    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("group.id", words[1]);
        try (var consumer = new KafkaShareConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                var admin = Admin.create(properties)) {
            consumer.subscribe(List.of(words[2]));
            do {
                consumer.poll(Duration.ofMillis(200));
            } while (admin.listGroups().all().get().stream().noneMatch(group -> group.groupId().equals(words[1])));
        }
    }
}
