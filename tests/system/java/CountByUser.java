import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * A Kafka Streams application with exactly_once_v2: copies `events` (value `user number`) to `copies`, and counts and adds
 * up each user's numbers by way of a repartition topic and a state store. Each update of the store goes to `totals`, as
 * `count sum`, so that a user's updates count 1, 2, 3 … with nothing twice.
 *
 *   java CountByUser ADDRESS STATE-DIRECTORY SESSION-TIMEOUT-MS
 */
public final class CountByUser {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "count-by-user");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), Integer.parseInt(arguments[2]));
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), Integer.parseInt(arguments[2]) / 4);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 5_000);
        settings.put(StreamsConfig.producerPrefix("delivery.timeout.ms"), 5_000);
        settings.put(StreamsConfig.producerPrefix("request.timeout.ms"), 4_000);

        var builder = new StreamsBuilder();
        var events = builder.<String, String>stream("events");
        events.to("copies");
        events.selectKey((key, value) -> value.split(" ")[0])
                .groupByKey(Grouped.as("users"))
                .aggregate(() -> "0 0", (user, value, total) -> {
                    String[] before = total.split(" ");
                    long sum = Long.parseLong(before[1]) + Long.parseLong(value.split(" ")[1]);
                    return (Long.parseLong(before[0]) + 1) + " " + sum;
                }, Materialized.as("totals-store"))
                .toStream()
                .to("totals", Produced.with(Serdes.String(), Serdes.String()));

        var streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(exception -> {
            System.out.println("replaced a thread after " + exception);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        var end = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(10));
            end.countDown();
        }));
        streams.start();
        end.await();
    }
}
