// Moves a partition to another log directory with Apache Kafka's own AdminClient, and waits until it is there.
// Arguments: bootstrap, topic, directory. Prints a line for each look: current directory, future directory or -, lag.

import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartitionReplica;

public final class MoveLog {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String directory = arguments[2];
        var replica = new TopicPartitionReplica(topic, 0, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) arguments[0]))) {
            for (String wrong : List.of("/nowhere")) {
                try {
                    admin.alterReplicaLogDirs(Map.of(replica, wrong)).all().get();
                } catch (ExecutionException refused) {
                    System.out.println("refused " + refused.getCause().getClass().getSimpleName());
                }
            }
            admin.alterReplicaLogDirs(Map.of(replica, directory)).all().get();
            while (true) {
                var found = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
                String future = found.getFutureReplicaLogDir();
                System.out.println("at " + found.getCurrentReplicaLogDir() + " " + (future == null ? "-" : future)
                    + " " + found.getFutureReplicaOffsetLag());
                if (future == null && directory.equals(found.getCurrentReplicaLogDir())) {
                    return;
                }
            }
        }
    }
}
