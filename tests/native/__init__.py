"""The native client (`appliance_client`): its core against a scripted broker and a clock that tests move."""
