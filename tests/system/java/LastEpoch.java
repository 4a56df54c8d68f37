import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers whose second transaction begins where the epochs of their first producer id end. Each begins it at once.
 *
 *   java LastEpoch ADDRESS TOPIC PREFIX COUNT
 *
 * The producer n has the transactional id PREFIXn and writes to partition n modulo 4. Every second one aborts its first
 * transaction. Prints `done n`, or `failed n EXCEPTION`.
 */
public final class LastEpoch {
    private static final int PARTITIONS = 4;
    private static final int TRANSACTIONS = 3;

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[3]);
        for (int number = 0; number < count; number++) {
            try {
                work(arguments[0], arguments[1], arguments[2] + number, number);
                System.out.println("done " + number);
            } catch (Exception failure) {
                System.out.println("failed " + number + " " + failure);
            }
        }
    }

    private static void work(String address, String topic, String id, int number) {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "transactional.id", id, "linger.ms", 0);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (int transaction = 0; transaction < TRANSACTIONS; transaction++) {
                byte[] value = (id + " " + transaction).getBytes(StandardCharsets.UTF_8);
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value));
                if (transaction == 0 && number % 2 == 1) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }
}
