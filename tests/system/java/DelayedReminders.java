import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends delayed records as docs/delayed-delivery.md says, alone and in transactions, and cancels one.
 *
 * usage: DelayedReminders BOOTSTRAP TOPIC SECONDS. Prints "value timestamp" of each record that arrives in so many seconds.
 */
public final class DelayedReminders {
    private static ProducerRecord<String, String> record(String topic, String value, String... headers) {
        ProducerRecord<String, String> made = new ProducerRecord<>(topic, "anna", value);
        for (int at = 0; at < headers.length; at += 2) {
            made.headers().add(headers[at], headers[at + 1].getBytes(StandardCharsets.UTF_8));
        }
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "linger.ms", 20);
        StringSerializer strings = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, strings, strings)) {
            producer.send(record(topic, "now"));
            producer.send(record(topic, "later", "delivery.delay", "700"));
            producer.send(record(topic, "cancelled", "delivery.delay", "2000", "delivery.id", "1"));
            producer.send(record(topic, null, "delivery.cancel", "1"));
            producer.flush();
        }
        Map<String, Object> transactional =
                Map.of("bootstrap.servers", arguments[0], "linger.ms", 20, "transactional.id", topic);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(transactional, strings, strings)) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                producer.send(record(topic, number + " now"));
                producer.send(record(topic, number + " later", "delivery.delay", "700"));
                producer.flush();
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        Map<String, Object> reading = Map.of("bootstrap.servers", arguments[0], "group.id", topic,
                "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        StringDeserializer read = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading, read, read)) {
            consumer.subscribe(List.of(topic));
            long until = System.nanoTime() + Long.parseLong(arguments[2]) * 1_000_000_000L;
            while (System.nanoTime() < until) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(each.value() + " " + each.timestamp());
                }
            }
        }
    }
}
