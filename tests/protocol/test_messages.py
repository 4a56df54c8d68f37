from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest

from appliance.errors import ApplianceDefect, MalformedFrame
from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.list_offsets import (
    SPECIAL_TIMESTAMP_SINCE,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from appliance.protocol.apis.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.headers import parse_request_header
from tests.protocol import judges

TOPIC_ID = UUID("12345678-1234-5678-9abc-123456789abc")


def body(api: ApiKey, version: int, request: object) -> memoryview:
    frame = memoryview(messages.encode_request(api, version, request, 1))
    return frame[parse_request_header(frame, 4, len(frame)).body_position :]


@pytest.mark.parametrize(("api", "version"), judges.MESSAGES)
def test_every_served_version_compiles(api: ApiKey, version: int) -> None:
    messages.prepare((api, version))


@pytest.mark.parametrize("version", [2, 7])
def test_a_long_request_is_read_and_a_long_answer_is_written_in_many_short_pieces(version: int) -> None:
    topics = tuple(CreatableTopic(f"topic-{number}", 1, 1) for number in range(1000))
    request = body(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest(topics, 1000, False))
    read = messages.decode_request_in_pieces(ApiKey.CREATE_TOPICS, version, request, 0, len(request))
    assert len(list(read)) >= 1000 // 64
    configs = tuple(CreatedTopicConfig(f"config-{number}", "value") for number in range(1000))
    response = CreateTopicsResponse((CreatableTopicResult("topic", configs=configs),))
    written = messages.encode_response_body_in_pieces(ApiKey.CREATE_TOPICS, 7, response)
    assert len(list(written)) >= 1000 // 64


def test_one_response_serves_every_version_of_metadata() -> None:
    response = MetadataResponse(
        brokers=(MetadataBroker(0, "localhost", 9092),),
        topics=(
            MetadataTopic(0, "t", TOPIC_ID, partitions=(MetadataPartition(0, 0, 0, 5, (0,), (0,), ()),)),
        ),
        cluster_id="cluster",
        controller_id=0,
    )
    for version in range(14):
        frame = memoryview(messages.encode_response(ApiKey.METADATA, version, response, 3))
        _, read = messages.decode_response(ApiKey.METADATA, version, frame)
        assert read.topics[0].partitions[0].isr_nodes == (0,)
        assert read.topics[0].partitions[0].leader_epoch == (5 if version >= 7 else -1)
        assert read.topics[0].topic_id == (TOPIC_ID if version >= 10 else None)
        assert read.cluster_id == ("cluster" if version >= 2 else None)


def test_names_and_ids_of_topics_to_delete_come_in_one_shape() -> None:
    by_name = DeleteTopicsRequest((TopicSelector("a"), TopicSelector("b")), 5)
    for version in range(1, 7):
        read = messages.decode_request(20, version, body(ApiKey.DELETE_TOPICS, version, by_name), 0)
        assert read == by_name


def test_metadata_v0_asks_for_all_with_an_empty_array_and_v1_for_none() -> None:
    nothing = MetadataRequest(topics=())
    assert messages.decode_request(3, 0, body(ApiKey.METADATA, 0, nothing), 0).topics is None
    assert messages.decode_request(3, 1, body(ApiKey.METADATA, 1, nothing), 0).topics == ()


def test_error_codes_are_written_where_a_message_has_several() -> None:
    result = CreatableTopicResult("t", TOPIC_ID, configs=None, topic_config_error_code=29)
    frame = memoryview(messages.encode_response(19, 7, CreateTopicsResponse((result,)), 0))
    assert messages.decode_response(19, 7, frame)[1].topics == (result,)


def test_null_that_a_version_cannot_say_is_our_defect() -> None:
    response = MetadataResponse(brokers=(), topics=(MetadataTopic(100, None, TOPIC_ID),))
    messages.encode_response(3, 12, response, 0)
    with pytest.raises(ApplianceDefect, match="name"):
        messages.encode_response(3, 11, response, 0)


def test_number_that_does_not_fit_is_our_defect_and_is_named() -> None:
    partition = ListOffsetsPartitionResponse(0, offset=1 << 63)
    response = ListOffsetsResponse((ListOffsetsTopicResponse("t", (partition,)),))
    with pytest.raises(ApplianceDefect, match="offset"):
        messages.encode_response(2, 7, response, 0)


def test_unknown_version_of_api_versions_is_answered_in_v0_with_our_range() -> None:
    frame = messages.encode_unsupported_api_versions(9)
    correlation_id, answer = messages.decode_response(18, 0, memoryview(frame))
    assert correlation_id == 9
    assert answer.error_code == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 4)]


def test_special_timestamps_are_allowed_from_the_version_that_brought_them() -> None:
    assert SPECIAL_TIMESTAMP_SINCE == {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}


def test_what_is_not_served_has_no_codec() -> None:
    with pytest.raises(MalformedFrame):
        messages.decode_request(8, 2, memoryview(b""), 0)
    with pytest.raises(ApplianceDefect):
        messages.decode_request(0, 9, memoryview(b""), 0)


def test_face_brings_neither_kio_s_codec_nor_a_test_library_into_the_process() -> None:
    program = (
        "import sys\n"
        "from appliance.protocol import messages\n"
        "assert 'kio' not in sys.modules\n"
        "messages.prepare((3, 13), (18, 4))\n"
        "print([name for name in ('kio.serial', 'asyncio', 'hypothesis') if name in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
