from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from appliance.errors import (
    ApplianceDefect,
    ApplianceError,
    ConfigurationError,
    CorruptFile,
    DiskFull,
    MalformedFrame,
    RejectedRequest,
    StorageFault,
)
from appliance.protocol.errors import ErrorCode, code_for, message_for


def test_every_code_of_kafka_is_there_under_its_name() -> None:
    assert [(int(code), code.name.lower()) for code in ErrorCode] == [
        (code.value, code.name) for code in KioErrorCode
    ]


def test_retriable_codes_are_kafka_s() -> None:
    assert [code.name for code in ErrorCode if code.retriable != KioErrorCode(int(code)).retriable] == []


def test_every_code_but_none_has_a_sentence() -> None:
    assert [code.name for code in ErrorCode if not code.message] == ["NONE"]
    assert all(code.message.endswith(".") for code in ErrorCode if code.message)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RejectedRequest(36, "there already"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (RejectedRequest(4711, "nonsense"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (MalformedFrame("short"), ErrorCode.INVALID_REQUEST),
        (StorageFault("gone"), ErrorCode.KAFKA_STORAGE_ERROR),
        (DiskFull("full"), ErrorCode.KAFKA_STORAGE_ERROR),
        (CorruptFile("bits"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ConfigurationError("what"), ErrorCode.INVALID_CONFIG),
        (ApplianceDefect("ours"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_every_branch_of_the_error_tree_has_a_code(error: ApplianceError, code: ErrorCode) -> None:
    assert code_for(error) is code


def test_only_a_rejected_request_speaks_in_its_own_words() -> None:
    assert message_for(RejectedRequest(36, "there already")) == "there already"
    assert "secret" not in message_for(StorageFault("/secret/path"))
    assert "secret" not in message_for(ApplianceDefect("secret"))
