// Commits an offset without waiting for the answer, then asks which one is committed; prints how often it was another.
// Arguments: bootstrap, topic, group protocol, tries.

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class CommitThenAsk {
    public static void main(String[] arguments) throws Exception {
        var place = new TopicPartition(arguments[1], 0);
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[1] + "-" + arguments[2],
            "group.protocol", arguments[2],
            "enable.auto.commit", "false",
            "key.deserializer", ByteArrayDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class);
        int tries = Integer.parseInt(arguments[3]);
        int stale = 0;
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            consumer.assign(List.of(place));
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(0)));
            for (int offset = 1; offset <= tries; offset++) {
                consumer.commitAsync(Map.of(place, new OffsetAndMetadata(offset)), null);
                OffsetAndMetadata committed = consumer.committed(Set.of(place)).get(place);
                if (committed == null || committed.offset() != offset) {
                    stale++;
                }
            }
        }
        System.out.println(stale);
    }
}
