"""One library each behind the vocabulary of tests/clients/transactional/library.py."""
