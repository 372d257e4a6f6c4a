// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

/// @title Counts by key, and the keys with the highest counts in descending order.
/// @dev A count only ever grows by one, so one swap restores the order: the key that grew changes places with the
/// first key that now has strictly fewer. The order of ties is therefore not the order of arrival; readers of the
/// upstream contract see the same order here.
library Leaderboard {
    /// @dev Places on a board. A key enters a full board when its count is strictly above the last one's.
    uint256 internal constant CAPACITY = 100;

    /// @dev place counts from 1; 0 means not on the board.
    struct Score {
        uint128 count;
        uint128 place;
    }

    struct Board {
        bytes32[] keys;
        mapping(bytes32 key => Score) scores;
    }

    /// @notice Adds one to the count of `key` and moves it to its place.
    /// @return count The new count; 1 means that the key had not been counted before.
    function increment(Board storage board, bytes32 key) internal returns (uint256 count) {
        Score memory score = board.scores[key];
        count = ++score.count;
        uint256 place = score.place == 0 ? _enter(board, key, count) : score.place;
        if (place > 1) place = _rise(board, key, count, place);
        score.place = uint128(place);
        board.scores[key] = score;
    }

    function countOf(Board storage board, bytes32 key) internal view returns (uint256) {
        return board.scores[key].count;
    }

    /// @return place The last place on the board, or 0 when the board is full of keys that have at least `count`.
    function _enter(Board storage board, bytes32 key, uint256 count) private returns (uint256 place) {
        place = board.keys.length;
        if (place < CAPACITY) {
            board.keys.push(key);
            return place + 1;
        }
        Score storage last = board.scores[board.keys[place - 1]];
        if (count <= last.count) return 0;
        last.place = 0;
        board.keys[place - 1] = key;
    }

    /// @dev The counts before `place` descend, so the first one below `count` is found by halving.
    function _rise(Board storage board, bytes32 key, uint256 count, uint256 place) private returns (uint256 first) {
        first = 1;
        uint256 end = place;
        while (first < end) {
            uint256 middle = (first + end) / 2;
            if (board.scores[board.keys[middle - 1]].count < count) end = middle;
            else first = middle + 1;
        }
        if (first == place) return place;
        bytes32 displaced = board.keys[first - 1];
        board.keys[place - 1] = displaced;
        board.scores[displaced].place = uint128(place);
        board.keys[first - 1] = key;
    }
}
