// Transactions of Apache Kafka's own Java clients, of 3.9 and of 4.3: one JSON object a line on standard input, one
// answer a line on standard output. Values travel as base64. Only what both versions have is called.

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
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<Integer, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private String address;

    public static void main(String[] arguments) throws Exception {
        Transactions driver = new Transactions();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", driver.perform(JSON.readTree(line)));
            } catch (Exception exception) {
                Throwable cause = exception;
                while (cause.getCause() != null && (cause instanceof ExecutionException
                        || Errors.forException(cause) == Errors.UNKNOWN_SERVER_ERROR)) {
                    cause = cause.getCause();
                }
                answer.putObject("error").put("code", Errors.forException(cause).code())
                        .put("message", exception.toString());
            }
            output.println(JSON.writeValueAsString(answer));
            output.flush();
        }
    }

    private JsonNode perform(JsonNode request) throws Exception {
        int number = request.path("producer").asInt();
        var producer = producers.get(number);
        switch (request.get("op").asText()) {
            case "connect" -> address = request.get("address").asText();
            case "producer" -> producers.put(number, made(request));
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> send(producer, request);
            case "sendOffsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode each : request.get("offsets")) {
                    offsets.put(new TopicPartition(each.get(0).asText(), each.get(1).asInt()),
                            new OffsetAndMetadata(each.get(2).asLong()));
                }
                var group = new ConsumerGroupMetadata(request.get("group").asText());
                producer.sendOffsetsToTransaction(offsets, group);
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "closeProducer" -> producers.remove(number).close(Duration.ZERO);
            case "read" -> {
                return read(request);
            }
            default -> throw new IllegalArgumentException("no such operation: " + request);
        }
        return JSON.nullNode();
    }

    private KafkaProducer<byte[], byte[]> made(JsonNode request) {
        var bytes = new ByteArraySerializer();
        return new KafkaProducer<>(Map.of(
                "bootstrap.servers", address,
                "transactional.id", request.get("id").asText(),
                "transaction.timeout.ms", request.get("timeoutMs").asInt(),
                "max.block.ms", 60_000,
                "delivery.timeout.ms", 60_000), bytes, bytes);
    }

    private void send(KafkaProducer<byte[], byte[]> producer, JsonNode request) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : request.get("values")) {
            sent.add(producer.send(new ProducerRecord<>(
                    request.get("topic").asText(), request.get("partition").asInt(), null, bytes(value))));
        }
        for (var each : sent) {
            each.get();
        }
    }

    private JsonNode read(JsonNode request) {
        var bytes = new ByteArrayDeserializer();
        var place = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        String until = request.get("until").asText();
        long deadline = System.currentTimeMillis() + request.get("timeoutMs").asLong();
        ArrayNode values = JSON.createArrayNode();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(Map.of(
                "bootstrap.servers", address,
                "enable.auto.commit", false,
                "auto.offset.reset", "none",
                "fetch.max.wait.ms", 100,
                "isolation.level", request.get("committed").asBoolean() ? "read_committed" : "read_uncommitted"),
                bytes, bytes)) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            String last = null;
            while (!until.equals(last) && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    last = Base64.getEncoder().encodeToString(record.value());
                    values.add(last);
                }
            }
        }
        return values;
    }

    private static byte[] bytes(JsonNode text) {
        return Base64.getDecoder().decode(text.asText());
    }
}
