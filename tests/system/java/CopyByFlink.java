import java.util.Arrays;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaPartitioner;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A Flink job with DeliveryGuarantee.EXACTLY_ONCE: copies `events` (value `partition number`) to the same partition of
 * `copies`. It keeps its checkpoints when it is cancelled, which a line on standard input asks for.
 *
 *   java CopyByFlink ADDRESS CHECKPOINTS-DIRECTORY INCREMENTING|POOLING [CHECKPOINT]
 */
public final class CopyByFlink {
    /** Fails at the record `fail`, once for each run of the JVM: Flink then goes back to its last checkpoint itself. */
    private static final class Copied implements MapFunction<String, String> {
        private static volatile boolean hasFailed;

        @Override
        public String map(String value) {
            if (value.endsWith(" fail") && !hasFailed) {
                hasFailed = true;
                throw new IllegalStateException("told to fail");
            }
            return "copy of " + value;
        }
    }

    public static void main(String[] arguments) throws Exception {
        var settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.dir", "file://" + arguments[1]);
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("execution.checkpointing.num-retained", "3");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "100 ms");
        settings.setString("taskmanager.memory.managed.size", "16m");
        settings.setString("taskmanager.memory.network.min", "16m");
        settings.setString("taskmanager.memory.network.max", "16m");
        if (arguments.length > 3) {
            settings.setString("execution.state-recovery.path", "file://" + arguments[3]);
        }
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);

        KafkaSource<String> events = KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics("events")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .setProperty("isolation.level", "read_committed")
                .setProperty("commit.offsets.on.checkpoint", "false")
                .build();
        KafkaPartitioner<String> same = (value, key, bytes, topic, all) -> Integer.parseInt(value.split(" ")[2]);
        var records = KafkaRecordSerializationSchema.<String>builder()
                .setTopic("copies")
                .setValueSerializationSchema(new SimpleStringSchema())
                .setPartitioner(same)
                .build();
        KafkaSink<String> copies = KafkaSink.<String>builder()
                .setBootstrapServers(arguments[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("copy-by-flink")
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[2]))
                .setProperty("transaction.timeout.ms", "300000")
                .setRecordSerializer(records)
                .build();
        environment.fromSource(events, WatermarkStrategy.noWatermarks(), "events").uid("events")
                .map(new Copied()).uid("copied")
                .sinkTo(copies).uid("copies");

        JobClient job = environment.executeAsync(String.join(" ", Arrays.asList(arguments)));
        System.out.println("submitted");
        if (System.in.read() >= 0) {
            job.cancel().get();
            System.out.println("cancelled");
        }
        System.exit(0);
    }
}
