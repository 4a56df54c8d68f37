"""The sections of the configuration, a file each: what a field declares is the option."""
