// Apache Kafka's own Java clients behind the common vocabulary: one JSON object a line on standard input, one
// answer a line on standard output. Bytes travel as base64.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Driver {
    private static final int DRIVER_TIMED_OUT = -2;
    private static final ObjectMapper JSON = new ObjectMapper();

    private String address;
    private Admin admin;

    private static final class OutOfTime extends RuntimeException {
        OutOfTime(String message) {
            super(message);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", driver.perform(JSON.readTree(line)));
            } catch (Exception exception) {
                Throwable cause = exception;
                while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                        && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.putObject("error").put("code", codeOf(cause)).put("message", cause.toString());
            }
            output.println(JSON.writeValueAsString(answer));
            output.flush();
        }
    }

    private JsonNode perform(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        return switch (request.get("op").asText()) {
            case "connect" -> connect(request.get("address").asText());
            case "close" -> close();
            case "produce" -> produce(topic, request);
            case "consume" -> consume(topic, request);
            case "offsetForTime" -> offsetForTime(place(request), request.get("timestamp").asLong());
            case "offsetRange" -> JSON.createArrayNode()
                    .add(offset(place(request), OffsetSpec.earliest()))
                    .add(offset(place(request), OffsetSpec.latest()));
            case "offsetOfMaxTimestamp" -> JSON.valueToTree(offset(place(request), OffsetSpec.maxTimestamp()));
            case "createTopic" -> createTopic(topic, request);
            case "deleteTopic" -> done(admin.deleteTopics(List.of(topic)).all());
            case "createPartitions" -> done(admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(request.get("total").asInt()))).all());
            case "topicSettings" -> topicSettings(topic);
            case "cluster" -> cluster();
            case "topics" -> topics();
            default -> throw new IllegalArgumentException("no such operation: " + request);
        };
    }

    private JsonNode connect(String where) {
        address = where;
        admin = Admin.create(Map.of("bootstrap.servers", address));
        return JSON.nullNode();
    }

    private JsonNode close() {
        admin.close();
        return JSON.nullNode();
    }

    private JsonNode produce(String topic, JsonNode request) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", address);
        settings.put("compression.type", request.get("codec").asText());
        settings.put("acks", request.get("acks").asText());
        settings.put("enable.idempotence", request.get("idempotent").asBoolean());
        settings.put("max.request.size", 20_000_000);
        settings.put("batch.size", 131_072);
        settings.put("linger.ms", 5);
        settings.put("max.block.ms", 5_000);
        ArrayNode told = JSON.createArrayNode();
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : request.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.get(2)) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                Long timestamp = record.get(3).isNull() ? null : record.get(3).asLong();
                Integer partition = record.get(4).isNull() ? null : record.get(4).asInt();
                sent.add(producer.send(new ProducerRecord<>(
                        topic, partition, timestamp, bytes(record.get(0)), bytes(record.get(1)), headers)));
            }
            for (Future<RecordMetadata> each : sent) {
                RecordMetadata metadata = each.get();
                told.addArray().add(metadata.partition()).add(metadata.offset());
            }
        }
        return told;
    }

    private JsonNode consume(String topic, JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", address);
        settings.put("auto.offset.reset", request.get("reset").asText());
        settings.put("enable.auto.commit", false);
        settings.put("allow.auto.create.topics", false);
        settings.put("fetch.max.wait.ms", request.get("maxWaitMs").asInt());
        settings.put("request.timeout.ms", request.get("maxWaitMs").asInt() + 60_000);
        settings.put("max.poll.records", 5_000);
        int count = request.get("count").asInt();
        long deadline = System.currentTimeMillis() + request.get("timeoutMs").asLong();
        ArrayNode received = JSON.createArrayNode();
        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes);
        try {
            TopicPartition place = place(request);
            consumer.assign(List.of(place));
            consumer.seek(place, request.get("start").asLong());
            while (received.size() < count) {
                if (System.currentTimeMillis() > deadline) {
                    throw new OutOfTime(received.size() + " of " + count + " records of " + place);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (received.size() == count) {
                        break;
                    }
                    ArrayNode told = received.addArray();
                    told.add(record.offset()).add(record.timestamp());
                    told.add(text(record.key())).add(text(record.value()));
                    ArrayNode headers = told.addArray();
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key()).add(text(header.value()));
                    }
                }
            }
        } finally {
            // A fetch that waits in the broker is not waited for: the next request of a connection queues behind it.
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        }
        return received;
    }

    private JsonNode offsetForTime(TopicPartition place, long timestamp) throws Exception {
        long found = offset(place, OffsetSpec.forTimestamp(timestamp));
        return found < 0 ? JSON.nullNode() : JSON.valueToTree(found);
    }

    private long offset(TopicPartition place, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    private JsonNode createTopic(String topic, JsonNode request) throws Exception {
        Map<String, String> settings = new HashMap<>();
        request.get("settings").fields().forEachRemaining(
                each -> settings.put(each.getKey(), each.getValue().asText()));
        var replicas = (short) request.get("replicas").asInt();
        var wanted = new NewTopic(topic, request.get("partitions").asInt(), replicas).configs(settings);
        return done(admin.createTopics(List.of(wanted)).all());
    }

    private JsonNode topicSettings(String topic) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ObjectNode told = JSON.createObjectNode();
        admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()
                .forEach(entry -> told.put(entry.name(), entry.value()));
        return told;
    }

    private JsonNode cluster() throws Exception {
        var told = admin.describeCluster();
        ObjectNode cluster = JSON.createObjectNode().put("clusterId", told.clusterId().get());
        cluster.put("controller", told.controller().get().id());
        ArrayNode nodes = cluster.putArray("nodes");
        told.nodes().get().forEach(node -> nodes.addArray().add(node.id()).add(node.host() + ":" + node.port()));
        return cluster;
    }

    private JsonNode topics() throws Exception {
        ObjectNode told = JSON.createObjectNode();
        var names = admin.listTopics().names().get();
        admin.describeTopics(names).allTopicNames().get()
                .forEach((name, description) -> told.put(name, description.partitions().size()));
        return told;
    }

    private static int codeOf(Throwable cause) {
        if (cause instanceof OutOfTime) {
            return DRIVER_TIMED_OUT;
        }
        // The consumer throws a class of its own for this one.
        if (cause instanceof org.apache.kafka.clients.consumer.OffsetOutOfRangeException) {
            return Errors.OFFSET_OUT_OF_RANGE.code();
        }
        return Errors.forException(cause).code();
    }

    private static JsonNode done(Future<Void> work) throws Exception {
        work.get();
        return JSON.nullNode();
    }

    private static TopicPartition place(JsonNode request) {
        return new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
