import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The Java counterpart of librdkafka_consumer.py: a member of a group that keeps a journal. Its argument is the same JSON. */
public class JournalConsumer implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final JsonNode given;
    private final FileOutputStream file;
    private final Random dice;
    private final KafkaConsumer<String, String> consumer;
    private final Map<TopicPartition, Long> next = new HashMap<>();
    private volatile boolean isStopped = false;

    private JournalConsumer(JsonNode given) throws Exception {
        this.given = given;
        file = new FileOutputStream(given.get("journal").asText(), true);
        dice = new Random(given.get("seed").asLong());
        Properties properties = new Properties();
        properties.put("bootstrap.servers", given.get("servers").asText());
        properties.put("group.id", given.get("group").asText());
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        properties.put("fetch.max.wait.ms", "50");
        properties.put("max.poll.records", given.get("batch").asText());
        given.get("properties").properties().forEach(one -> properties.put(one.getKey(), one.getValue().asText()));
        consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] words) throws Exception {
        JournalConsumer one = new JournalConsumer(JSON.readTree(words[0]));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            one.isStopped = true;
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        one.run();
    }

    private void run() throws Exception {
        List<String> topics = new ArrayList<>();
        given.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics, this);
        for (int polls = 1; !isStopped;) {
            var records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) {
                continue;
            }
            StringBuilder lines = new StringBuilder();
            for (ConsumerRecord<String, String> record : records) {
                lines.append(line("read", record.topic(), record.partition(), record.offset(), record.value()));
                next.put(new TopicPartition(record.topic(), record.partition()), record.offset() + 1);
            }
            write(lines);
            if (polls++ % given.get("every").asInt() == 0) {
                commit(given.get("is_async").asBoolean());
            }
            if (dice.nextDouble() < given.get("rewinds").asDouble()) {
                rewind();
            }
            Thread.sleep(given.get("pause_ms").asLong()); // the speed of this consumer
        }
        commit(false);
        consumer.close();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        StringBuilder lines = new StringBuilder();
        partitions.forEach(one -> lines.append(line("assigned", one.topic(), one.partition(), 0, null)));
        write(lines);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit(false);
        partitions.forEach(next::remove);
    }

    private void rewind() {
        List<TopicPartition> all = new ArrayList<>(next.keySet());
        TopicPartition one = all.get(dice.nextInt(all.size()));
        long back = Math.max(0, next.get(one) - 1 - dice.nextInt(40));
        consumer.seek(one, back);
        next.put(one, back);
        write(line("rewound", one.topic(), one.partition(), back, null));
    }

    private void commit(boolean isAsync) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        next.forEach((one, offset) -> offsets.put(one, new OffsetAndMetadata(offset)));
        if (offsets.isEmpty()) {
            return;
        }
        write("committing", offsets);
        if (isAsync) {
            consumer.commitAsync(offsets, (done, error) -> {
                if (error == null) {
                    write("committed", done);
                }
            });
            return;
        }
        try {
            consumer.commitSync(offsets);
            write("committed", offsets);
        } catch (WakeupException error) {
            throw error;
        } catch (KafkaException error) {
            // without a confirmation, it may have happened or not
        }
    }

    private void write(String event, Map<TopicPartition, OffsetAndMetadata> offsets) {
        StringBuilder lines = new StringBuilder();
        offsets.forEach((one, offset) -> lines.append(line(event, one.topic(), one.partition(), offset.offset(), null)));
        write(lines);
    }

    private static String line(String event, String topic, int partition, long offset, String value) {
        ObjectNode row = JSON.createObjectNode();
        row.put("at_ms", System.currentTimeMillis()).put("event", event).put("topic", topic).put("partition", partition).put("offset", offset);
        if (value != null) {
            row.put("value", value);
        }
        return row + "\n";
    }

    private void write(CharSequence lines) {
        try {
            file.write(lines.toString().getBytes(StandardCharsets.UTF_8));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
