"""One library each behind the vocabulary of tests/clients/client.py."""
