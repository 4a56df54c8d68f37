"""Tests of certificates and names."""
