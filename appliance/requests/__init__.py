"""What requests mean: dispatch, handlers, and the clients of the processes that handlers ask. No socket."""
