"""Where a follower's log and its leader's part ways, by leader epochs. Pure.

    leader     epoch 1: 0…40   epoch 3: 40…90   epoch 4: 90…
    follower   epoch 1: 0…40   epoch 2: 40…70                       cut at 40: the leader never had epoch 2
    follower   epoch 1: 0…40   epoch 3: 40…100                      cut at 90: where epoch 3 ended with the leader

An offset alone says nothing, for it may hold other records in another epoch. Both logs hold the same records in an
epoch that both have, as far as both have it, since one leader wrote them all. So the follower asks for the end of its
newest epoch; where the leader never had that one, it is told of the newest below, and asks again from there.

Source: KIP-101, KIP-279; `AbstractFetcherThread.getOffsetTruncationState`.
"""

from __future__ import annotations

from appliance.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, LeaderEpochs


def common_end(
    own: LeaderEpochs, own_end_offset: int, leader: LeaderEpochs, leader_end_offset: int
) -> int | None:
    """The offset below which both logs are the same; None where epochs do not say. O(epochs · log epochs)."""
    epoch, end = own.latest, own_end_offset
    while epoch != UNDEFINED_EPOCH:
        told, told_end = leader.end_offset(epoch, log_end_offset=leader_end_offset)
        if told_end == UNDEFINED_OFFSET:
            return None
        end = min(end, told_end)
        if told == epoch:
            return end
        known, known_end = own.end_offset(told, log_end_offset=own_end_offset)
        if known_end == UNDEFINED_OFFSET:
            return end
        end = min(end, known_end)
        if known in (told, epoch):
            return end
        epoch = known
    return None
