"""Who says what to whom: descriptors, messages and tables between processes."""
