"""Answers with more elements than a request may have: a broker lists as many ids as it has."""

from __future__ import annotations

import socket
import threading

import pytest

from appliance.cli.connecting import BrokerError
from appliance.cli.request import ELEMENTS_MAX, request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionRange, ApiVersionsResponse
from appliance.protocol.apis.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import encode_response

VERSION = 0
VERSIONS = encode_response(
    ApiKey.API_VERSIONS,
    0,
    ApiVersionsResponse(api_keys=(ApiVersionRange(ApiKey.LIST_TRANSACTIONS, VERSION, VERSION),)),
    1,
)


def asked(frame: bytes) -> ListTransactionsResponse:
    """What a client makes of `frame`, which a broker sends as its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                for each in (VERSIONS, frame):
                    connection.recv(1 << 16)
                    connection.sendall(each)

        broker = threading.Thread(target=answer)
        broker.start()
        try:
            told: ListTransactionsResponse = request(
                f"127.0.0.1:{server.getsockname()[1]}",
                ApiKey.LIST_TRANSACTIONS,
                VERSION,
                ListTransactionsRequest(),
            )
        finally:
            broker.join(30)
    return told


def test_a_list_of_120_000_transactional_ids_is_read() -> None:
    ids = tuple(ListedTransaction(f"id-{number}", number, "Empty") for number in range(120_000))
    told = asked(
        encode_response(
            ApiKey.LIST_TRANSACTIONS, VERSION, ListTransactionsResponse(transaction_states=ids), 1
        )
    )
    assert told.transaction_states == ids


def test_an_answer_with_more_elements_than_any_broker_has_is_refused_before_it_is_read() -> None:
    body = bytearray(encode_response(ApiKey.LIST_TRANSACTIONS, VERSION, ListTransactionsResponse(), 1))
    # The count of ids is the last but one byte: a varint of the count and 1. Tagged fields follow.
    assert body[-2:] == b"\x01\x00"
    count = ELEMENTS_MAX + 2
    body[-2:] = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14 & 0x7F | 0x80, count >> 21])
    body += bytes(16 * count)
    SIZE.pack_into(body, 0, len(body) - SIZE.size)
    with pytest.raises(BrokerError, match="more elements"):
        asked(bytes(body))
