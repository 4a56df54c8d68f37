"""The services process: what the broker does with records after they were produced. Delayed delivery so far."""
