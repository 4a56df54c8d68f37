"""APIs that need no log: one API, one file. Pure: a request and the local view in, an answer or a question out."""
