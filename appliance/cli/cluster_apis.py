"""`appliance cluster apis`: the requests and versions that a broker knows, and the features of its cluster."""

from __future__ import annotations

from typing import Any, Final

import click

from appliance.cli.cluster_view import first_that_answers
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey, api_name
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.errors import ErrorCode
from appliance.version import VERSION

NEWEST: Final = ApiKey.API_VERSIONS.max_version


@click.command()
@json_option
@client_options
def apis(*, as_json: bool, bootstrap: str) -> None:
    """Show the requests that a broker knows, in which versions, and the features of its cluster."""
    address = first_that_answers(bootstrap)
    told = request(
        address, ApiKey.API_VERSIONS, NEWEST, ApiVersionsRequest("appliance-cli", VERSION), oldest=0
    )
    if told.error_code:
        raise BrokerError(f"{address}: {ErrorCode(told.error_code).message}")
    finalized = {each.name: each.max_version_level for each in told.finalized_features}
    found: dict[str, Any] = {
        "broker": address,
        "apis": [
            {
                "key": each.api_key,
                "name": api_name(each.api_key),
                "min": each.min_version,
                "max": each.max_version,
            }
            for each in sorted(told.api_keys, key=lambda each: each.api_key)
        ],
        "features": [
            {
                "name": each.name,
                "min": each.min_version,
                "max": each.max_version,
                "level": finalized.get(each.name),
            }
            for each in sorted(told.supported_features, key=lambda each: each.name)
        ],
    }
    if as_json:
        print_json(found)
        return
    numbers = ("KEY", "MIN", "MAX")
    print_table(
        ("KEY", "REQUEST", "MIN", "MAX"), [tuple(each.values()) for each in found["apis"]], right=numbers
    )
    if found["features"]:
        click.echo()
        print_table(
            ("FEATURE", "MIN", "MAX", "LEVEL"),
            [tuple(each.values()) for each in found["features"]],
            right=("MIN", "MAX", "LEVEL"),
        )
