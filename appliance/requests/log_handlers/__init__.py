"""APIs that need a partition's owner: one API, one file. They place operations and put answers together."""
