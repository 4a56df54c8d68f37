"""What a client hears whose version does not know an error."""

from __future__ import annotations

from typing import Final

from appliance.protocol.errors import ErrorCode

_FENCED: Final = int(ErrorCode.PRODUCER_FENCED)
_INVALID_EPOCH: Final = int(ErrorCode.INVALID_PRODUCER_EPOCH)
_ABORTABLE: Final = int(ErrorCode.TRANSACTION_ABORTABLE)
_INVALID_STATE: Final = int(ErrorCode.INVALID_TXN_STATE)


def told(error: int, *, fenced: bool, abortable: bool = True) -> int:
    """Return what a client hears.

    Args:
        fenced: its version has PRODUCER_FENCED.
        abortable: its version has TRANSACTION_ABORTABLE.
    """
    if error == _FENCED and not fenced:
        return _INVALID_EPOCH
    return _INVALID_STATE if error == _ABORTABLE and not abortable else int(error)
