"""A figure that must not be kept."""


class Void(Exception):  # noqa: N818 (it is no error of the program, it is a verdict)
    """The case saw an error, lost a record or a process, or the machine was busy: it counts for nothing."""


class Busy(Void):
    """Others used the machine meanwhile. Only then is a case tried again; an error of the broker stands."""
