import java.io.File;
import java.util.Comparator;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Opens partition directories with the code by which Apache Kafka's broker opens them, and prints their transactions.
 *
 *   java OpenTransactions clean|killed DIRECTORY...
 *
 *   log DIRECTORY FIRST-UNSTABLE-OFFSET                                         -1: none
 *   producer ID EPOCH LAST-SEQUENCE COORDINATOR-EPOCH TRANSACTION-START
 *   aborted ID FIRST LAST LAST-STABLE-OFFSET
 */
public final class OpenTransactions {
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
        out.append("log ").append(directory).append(' ').append(log.firstUnstableOffset().orElse(-1L)).append('\n');
        log.activeProducers().stream().sorted(Comparator.comparingLong(each -> each.producerId())).forEach(each ->
            out.append("producer ").append(each.producerId()).append(' ').append(each.producerEpoch()).append(' ')
                .append(each.lastSequence()).append(' ').append(each.coordinatorEpoch()).append(' ')
                .append(each.currentTxnStartOffset()).append('\n'));
        log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()).forEach(aborted ->
            out.append("aborted ").append(aborted.producerId()).append(' ').append(aborted.firstOffset())
                .append(' ').append(aborted.lastOffset()).append(' ').append(aborted.lastStableOffset()).append('\n'));
        System.out.print(out);
        log.close();
    }
}
