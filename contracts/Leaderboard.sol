// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

/// @title Counts by key, and the keys with the highest counts in descending order.
/// @dev A count only ever grows by one, so one swap restores the order: the key that grew changes places with the
/// first key that now has strictly fewer. The order of ties is therefore not the order of arrival; readers of the
/// upstream contract see the same order here.
///
/// Nothing is ever uncounted, so a board has as many keys as were ever counted, CAPACITY at most. Whoever owns a board
/// keeps that number, and can keep those of several boards in one slot.
library Leaderboard {
    /// @dev Places on a board. A key enters a full board when its count is strictly above the last one's.
    uint256 internal constant CAPACITY = 100;

    /// @dev One slot. place counts from 1; 0 means not on the board.
    struct Score {
        uint64 count;
        uint64 place;
        uint64 round; // the latest that the key was counted in
        uint64 inRound; // how often, in that round
    }

    /// @dev A key's first round takes no slot of its own: it is in the score until there is a later one.
    struct Board {
        bytes16[CAPACITY] keys; // by place, from 0; two take a slot
        mapping(bytes16 key => Score) scores;
        mapping(uint256 round => mapping(bytes16 key => uint256)) earlier; // counts that are not in the scores
    }

    /// @notice Adds one to the count of `key` and moves it to its place.
    /// @param counted How many different keys have been counted so far.
    /// @return fresh Whether the key had not been counted before.
    function increment(Board storage board, bytes16 key, uint256 counted) internal returns (bool fresh) {
        Score memory score = board.scores[key];
        fresh = score.count == 0;
        _count(board, key, score, counted);
    }

    /// @notice As increment, and counts the key in a round.
    function incrementIn(Board storage board, bytes16 key, uint256 round, uint256 counted)
        internal
        returns (bool fresh)
    {
        Score memory score = board.scores[key];
        fresh = score.count == 0;
        if (!fresh && round < score.round) {
            board.earlier[round][key] += 1;
        } else {
            if (!fresh && round > score.round) {
                board.earlier[score.round][key] += score.inRound;
                score.inRound = 0;
            }
            score.round = uint64(round);
            score.inRound += 1;
        }
        _count(board, key, score, counted);
    }

    function countOf(Board storage board, bytes16 key) internal view returns (uint256) {
        return board.scores[key].count;
    }

    /// @notice How often `key` was counted in a round.
    function countIn(Board storage board, bytes16 key, uint256 round) internal view returns (uint256) {
        Score memory score = board.scores[key];
        return board.earlier[round][key] + (score.round == round ? score.inRound : 0);
    }

    function _count(Board storage board, bytes16 key, Score memory score, uint256 counted) private {
        uint256 count = ++score.count;
        uint256 place = score.place == 0 ? _enter(board, key, count, counted) : score.place;
        if (place > 1 && count > 1) place = _rise(board, key, count, place);
        score.place = uint64(place);
        board.scores[key] = score;
    }

    /// @return place The last place on the board, or 0 when the board is full of keys that have at least `count`.
    function _enter(Board storage board, bytes16 key, uint256 count, uint256 counted) private returns (uint256 place) {
        if (counted < CAPACITY) {
            board.keys[counted] = key;
            return counted + 1;
        }
        Score storage last = board.scores[board.keys[CAPACITY - 1]];
        if (count <= last.count) return 0;
        last.place = 0;
        board.keys[CAPACITY - 1] = key;
        return CAPACITY;
    }

    /// @dev The counts before `place` descend, so the first one below `count` is found by halving.
    function _rise(Board storage board, bytes16 key, uint256 count, uint256 place) private returns (uint256 first) {
        first = 1;
        uint256 end = place;
        while (first < end) {
            uint256 middle = (first + end) / 2;
            if (board.scores[board.keys[middle - 1]].count < count) end = middle;
            else first = middle + 1;
        }
        if (first == place) return place;
        bytes16 displaced = board.keys[first - 1];
        board.keys[place - 1] = displaced;
        board.scores[displaced].place = uint64(place);
        board.keys[first - 1] = key;
    }
}
