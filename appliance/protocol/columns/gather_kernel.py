"""Copying the fields of many rows together, as a compiled kernel. Imports numba: only for who has it.

    data     ··key0···value0····key1···value1··        bounds   2 6 19 23   (of the keys)
    content  key0key1                                  offsets  0 4 8

Each field is one `memcpy`, which a loop over bytes is not turned into.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from appliance.protocol.columns.compiled import compiled

machine: Any = cgutils


def _copy(_typing: Any, into: Any, into_at: Any, data: Any, data_at: Any, length: Any) -> Any:
    """`into[into_at : into_at + length] = data[data_at : data_at + length]` of bytes. No bound is checked."""

    def instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length_bytes = arguments
        to = builder.gep(context.make_array(signature.args[0])(context, builder, target).data, [target_at])
        since = builder.gep(context.make_array(signature.args[2])(context, builder, source).data, [source_at])
        machine.raw_memcpy(builder, to, since, length_bytes, 1)
        return context.get_dummy_value()

    return types.void(into, types.intp, data, types.intp, types.intp), instructions


copy: Any = intrinsic(_copy)


@compiled
def lay_out(bounds: Any, offsets: Any) -> Any:
    """Says where each field `bounds[2n] : bounds[2n + 1]` goes, one behind another; returns how many bytes they take.

    `offsets` has one more than there are fields.
    """
    at = 0
    offsets[0] = 0
    for index in range(len(offsets) - 1):
        at += bounds[2 * index + 1] - bounds[2 * index]
        offsets[index + 1] = at
    return at


@compiled
def gather_fields(data: Any, bounds: Any, offsets: Any, content: Any) -> None:
    """Copies `data[bounds[2n] : bounds[2n + 1]]` for each n to `content`, where `lay_out` has said.

    The bounds lie in `data`, and `content` has room for all.
    """
    for index in range(len(offsets) - 1):
        at = offsets[index]
        copy(content, at, data, bounds[2 * index], offsets[index + 1] - at)
