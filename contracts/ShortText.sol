// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

/// @title Texts that are written once, such as peer ids.
/// @dev One of up to 31 bytes takes one slot and one of up to 63 takes two, where Solidity's own strings take a third
/// for the length. Any longer one is such a string.
library ShortText {
    uint256 private constant FIRST = 31; // bytes beside the length in the first slot
    uint256 private constant SHORT = 63;
    bytes32 private constant IS_LONG = bytes32(uint256(255));

    struct Text {
        bytes32 head; // the first bytes, and in the last one the length; 0 for the empty text
        bytes32 tail;
    }

    struct Texts {
        mapping(bytes16 key => Text) short;
        mapping(bytes16 key => string) long;
    }

    /// @notice Keeps `text` unless `key` has one already.
    function put(Texts storage texts, bytes16 key, string calldata text) internal {
        Text storage place = texts.short[key];
        if (place.head != 0) return;
        bytes calldata content = bytes(text);
        uint256 length = content.length;
        if (length > SHORT) {
            place.head = IS_LONG;
            texts.long[key] = text;
        } else if (length > FIRST) {
            place.head = bytes32(content[:FIRST]) | bytes32(length);
            place.tail = bytes32(content[FIRST:]);
        } else {
            place.head = bytes32(content) | bytes32(length);
        }
    }

    /// @notice The text of `key`, empty where it has none.
    function get(Texts storage texts, bytes16 key) internal view returns (string memory) {
        bytes32 head = texts.short[key].head;
        if (head == IS_LONG) return texts.long[key];
        uint256 length = uint256(head) & 0xff;
        bytes32 tail = length > FIRST ? texts.short[key].tail : bytes32(0);
        bytes memory content = abi.encodePacked(bytes31(head), tail);
        assembly ("memory-safe") {
            mstore(content, length)
        }
        return string(content);
    }
}
