"""Load generators in C, their compilation, and one function for each way to run them."""
