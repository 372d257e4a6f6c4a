// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

// Stages of a round. The build replaces this file, once for each stage count it is asked for: see build.mjs.
uint256 constant STAGE_COUNT = 3;
