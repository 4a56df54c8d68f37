"""The metrics process: shows what all processes have counted, as pages for Prometheus (see the README)."""
