import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of one record through Kafka's own client: HOST:PORT TOPIC WARM-UP-SECONDS SECONDS. Prints JSON.
 *
 * <p>`epoch` is that of the producer's last batch. Version 2 raises it at each end, version 1 never does.
 */
public class TransactionalClient {
    private static final int RECORD_BYTES = 100;

    public static void main(String[] words) throws Exception {
        String topic = words[1];
        double warmUp = Double.parseDouble(words[2]);
        double seconds = Double.parseDouble(words[3]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("transactional.id", topic + "-java");
        settings.put("linger.ms", "0");
        List<Long> commits = new ArrayList<>();
        List<Long> wholes = new ArrayList<>();
        long all = 0;
        long cpu = 0;
        double measured;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            byte[] value = new byte[RECORD_BYTES];
            long began = System.nanoTime();
            long counts = began + (long) (warmUp * 1e9);
            long until = counts + (long) (seconds * 1e9);
            long from = 0;
            long now;
            while ((now = System.nanoTime()) < until) {
                if (from == 0 && now >= counts) {
                    from = now;
                    cpu = cpuNs();
                }
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                long ends = System.nanoTime();
                producer.commitTransaction();
                all++;
                if (from != 0) {
                    long ended = System.nanoTime();
                    commits.add(ended - ends);
                    wholes.add(ended - now);
                }
            }
            measured = (System.nanoTime() - from) / 1e9;
            cpu = cpuNs() - cpu;
        }
        if (commits.isEmpty()) {
            System.err.println("no transaction was committed");
            System.exit(1);
        }
        Collections.sort(commits);
        Collections.sort(wholes);
        System.out.printf(
                "{\"transactions_of_all\": %d, \"commits_s\": %f, \"commit_p50_us\": %f, \"commit_p99_us\": %f,"
                        + " \"transaction_p50_us\": %f, \"transaction_p99_us\": %f, \"generator_share\": %f, \"epoch\": %d}%n",
                all,
                commits.size() / measured,
                at(commits, 50),
                at(commits, 99),
                at(wholes, 50),
                at(wholes, 99),
                cpu / 1e9 / measured,
                epoch(words[0], topic));
    }

    private static double at(List<Long> sorted, int percent) {
        return sorted.get(sorted.size() * percent / 100) / 1e3;
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static int epoch(String address, String topic) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(settings)) {
            int epoch = -1;
            for (ProducerState state :
                    admin.describeProducers(List.of(place)).all().get().get(place).activeProducers()) {
                epoch = Math.max(epoch, state.producerEpoch());
            }
            return epoch;
        }
    }
}
