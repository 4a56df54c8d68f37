"""Configuration: every option declared once, read from one TOML file and flags, shown to Kafka's clients."""

from appliance.config.client_metrics import WrongRange, describe_client_metrics, validate_client_metrics
from appliance.config.declaration import ConfigSource, ConfigType
from appliance.config.describe import (
    ConfigEntry,
    ConfigSynonym,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    effective_topic_configs,
)
from appliance.config.dynamic import BrokerConfigs, validate_broker_configs
from appliance.config.group_configs import ConsumerTimes, describe_group, validate_group_configs
from appliance.config.loading import load_settings
from appliance.config.sections.broker import BrokerSettings
from appliance.config.sections.groups import GroupSettings
from appliance.config.sections.io import IoSettings
from appliance.config.sections.metadata import MetadataSettings
from appliance.config.sections.network import NetworkSettings
from appliance.config.settings import Settings
from appliance.config.topic_configs import topic_config_declarations
from appliance.config.topic_validation import validate_topic_configs

__all__ = [
    "BrokerConfigs",
    "BrokerSettings",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConsumerTimes",
    "GroupSettings",
    "IoSettings",
    "MetadataSettings",
    "NetworkSettings",
    "Settings",
    "WrongRange",
    "describe_all_brokers",
    "describe_broker",
    "describe_client_metrics",
    "describe_group",
    "describe_topic",
    "effective_topic_configs",
    "load_settings",
    "topic_config_declarations",
    "validate_broker_configs",
    "validate_client_metrics",
    "validate_group_configs",
    "validate_topic_configs",
]
