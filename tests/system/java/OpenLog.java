import java.io.File;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.zip.CRC32C;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Opens partition directories with the code by which Apache Kafka's broker opens them, and prints what is in them.
 *
 *   java OpenLog clean|killed DIRECTORY...
 *
 *   log DIRECTORY START END
 *   record OFFSET TIMESTAMP CRC-OF-KEY CRC-OF-VALUE        -1: null
 *   producer ID LAST-SEQUENCE
 *   aborted ID FIRST LAST
 */
public final class OpenLog {
    public static void main(String[] arguments) throws Exception {
        boolean clean = arguments[0].equals("clean");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (int i = 1; i < arguments.length; i++) {
            tell(new File(arguments[i]), clean, scheduler);
        }
        scheduler.shutdown();
    }

    private static void tell(File directory, boolean clean, KafkaScheduler scheduler) throws Exception {
        UnifiedLog log = UnifiedLog.create(directory, new LogConfig(Map.of()), 0L, 0L, scheduler,
            new BrokerTopicStats(false), Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false),
            600_000, new LogDirFailureChannel(1), clean, Optional.empty());
        StringBuilder out = new StringBuilder();
        out.append("log ").append(directory).append(' ').append(log.logStartOffset()).append(' ')
            .append(log.logEndOffset()).append('\n');
        long offset = log.logStartOffset();
        while (offset < log.logEndOffset()) {
            FetchDataInfo read = log.read(offset, 1 << 20, FetchIsolation.LOG_END, true);
            for (RecordBatch batch : read.records.batches()) {
                batch.ensureValid();
                if (!batch.isControlBatch()) {
                    for (Record record : batch) {
                        out.append("record ").append(record.offset()).append(' ').append(record.timestamp())
                            .append(' ').append(crc(record.key())).append(' ').append(crc(record.value()))
                            .append('\n');
                    }
                }
                offset = batch.nextOffset();
            }
        }
        new TreeMap<>(log.activeProducersWithLastSequence()).forEach((id, sequence) ->
            out.append("producer ").append(id).append(' ').append(sequence).append('\n'));
        log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()).forEach(aborted ->
            out.append("aborted ").append(aborted.producerId()).append(' ').append(aborted.firstOffset())
                .append(' ').append(aborted.lastOffset()).append('\n'));
        System.out.print(out);
        log.close();
    }

    private static long crc(ByteBuffer bytes) {
        if (bytes == null) {
            return -1;
        }
        CRC32C crc = new CRC32C();
        crc.update(bytes);
        return crc.getValue();
    }
}
