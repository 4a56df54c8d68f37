"""A figure that must not be kept."""


class Void(Exception):
    """The case saw an error, lost a record or a process, or the machine was busy: it counts for nothing."""


class Busy(Void):
    """Others used the machine meanwhile. Only then is a case tried again; an error of the broker stands."""
