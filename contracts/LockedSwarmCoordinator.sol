// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

import {SwarmCoordinator} from "./SwarmCoordinator.sol";

/// @title The coordinator as it is put behind a proxy: nobody can initialise, and so own, the implementation itself.
/// @dev SwarmCoordinator stays initialisable on its own because programs written for the upstream contract count on
/// it.
contract LockedSwarmCoordinator is SwarmCoordinator {
    /// @dev Emits Initialized(2**64 - 1).
    constructor() {
        _disableInitializers();
    }
}
