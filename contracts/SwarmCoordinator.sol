// SPDX-License-Identifier: MIT
pragma solidity 0.8.29;

import {Initializable} from "@openzeppelin/contracts/proxy/utils/Initializable.sol";
import {UUPSUpgradeable} from "@openzeppelin/contracts/proxy/utils/UUPSUpgradeable.sol";
import {Leaderboard} from "./Leaderboard.sol";
import {ShortText} from "./ShortText.sol";
import {STAGE_COUNT} from "./StageCount.sol";

/// @title Rounds, peers, rewards, votes and bootnodes of one swarm.
/// @notice Serves clients of the upstream SwarmCoordinator 0.4.2 to 0.6: names, selectors, topics, the order of checks
/// and the quirks that clients have come to rely on are theirs; docs/CONTRACT.md lists them. Two things are added,
/// both off until somebody turns them on: a round policy, under which anyone may advance the swarm, and an allow-list
/// of peer ids.
/// @dev Events and errors are declared here, not inherited, because programs name them through this contract. Peer ids
/// are opaque strings; storage knows each by the first half of its keccak256, two of which share a slot, and keeps its
/// text once. Nobody finds a second text for somebody else's half; whoever makes two texts of one half, which takes 2**64
/// tries, has one peer with two names.
contract SwarmCoordinator is Initializable, UUPSUpgradeable {
    using Leaderboard for Leaderboard.Board;
    using ShortText for ShortText.Texts;

    /// @notice May grant and revoke roles, upgrade the contract and set the round policy.
    bytes32 public constant OWNER_ROLE = keccak256("OWNER_ROLE");
    /// @notice May move the swarm to its next stage at any time.
    bytes32 public constant STAGE_MANAGER_ROLE = keccak256("STAGE_MANAGER_ROLE");
    /// @notice May change the list of bootnodes.
    bytes32 public constant BOOTNODE_MANAGER_ROLE = keccak256("BOOTNODE_MANAGER_ROLE");
    /// @notice May open and close membership and change the allow-list. Nobody has it until an owner grants it.
    bytes32 public constant MEMBERSHIP_MANAGER_ROLE = keccak256("MEMBERSHIP_MANAGER_ROLE");

    /// @notice The swarm is at stage `newStage`, counted from 0, of round `roundNumber`.
    event StageAdvanced(uint256 indexed roundNumber, uint256 newStage);
    /// @notice A round began. StageAdvanced(newRoundNumber, 0) follows.
    event RoundAdvanced(uint256 indexed newRoundNumber);
    event PeerRegistered(address indexed eoa, string peerId);
    /// @notice `count` bootnodes were appended, possibly none.
    event BootnodesAdded(address indexed manager, uint256 count);
    /// @notice The bootnode at `index` was removed, and the last one took its place.
    event BootnodeRemoved(address indexed manager, uint256 index);
    event AllBootnodesCleared(address indexed manager);
    /// @notice `peerId`, which belongs to `account`, voted for `winners` in `roundNumber`.
    event WinnerSubmitted(address indexed account, string peerId, uint256 indexed roundNumber, string[] winners);
    event RoleGranted(bytes32 indexed role, address indexed account, address indexed sender);
    event RoleRevoked(bytes32 indexed role, address indexed account, address indexed sender);
    /// @notice `peerId`, which belongs to `account`, reported its own `reward`, in units of the swarm's game.
    event RewardSubmitted(
        address indexed account, uint256 indexed roundNumber, uint256 indexed stageNumber, int256 reward, string peerId
    );
    /// @notice `totalRewards` is the sum of all that `peerId` has reported.
    event CumulativeRewardsUpdated(address indexed account, string peerId, int256 totalRewards);
    /// @notice See setRoundPolicy. Not in upstream.
    event RoundPolicyChanged(address indexed owner, uint256 minSubmissions, uint256 maxStageSeconds);
    /// @notice See setMembershipOpen. Not in upstream.
    event MembershipChanged(address indexed manager, bool open);
    /// @notice `peerIds` are on the allow-list from now on. Not in upstream.
    event PeersAllowed(address indexed manager, string[] peerIds);
    /// @notice `peerIds` are off the allow-list from now on. Not in upstream.
    event PeersDisallowed(address indexed manager, string[] peerIds);

    /// @notice The sender does not have OWNER_ROLE.
    error OnlyOwner();
    /// @notice The sender does not have STAGE_MANAGER_ROLE.
    error OnlyStageManager();
    /// @notice The sender does not have BOOTNODE_MANAGER_ROLE.
    error OnlyBootnodeManager();
    /// @notice There is no bootnode at this index.
    error InvalidBootnodeIndex();
    /// @notice The round has not begun.
    error InvalidRoundNumber();
    /// @notice The stage has not begun, or no round has it.
    error InvalidStageNumber();
    /// @notice The peer has voted in this round.
    error WinnerAlreadyVoted();
    /// @notice The peer id is registered, to the sender or to somebody else: ask getEoa.
    error PeerIdAlreadyRegistered();
    /// @notice The peer id is not registered to the sender. Also raised for rewards, in spite of its name.
    error InvalidVoterPeerId();
    /// @notice The peer has reported a reward for this stage of this round.
    error RewardAlreadySubmitted();
    /// @notice A peer id occurs twice in the list of winners.
    error InvalidVote();
    /// @notice Never raised; it is in the interface that clients know.
    error StageOutOfBounds();
    /// @notice The sender does not have MEMBERSHIP_MANAGER_ROLE. Not in upstream.
    error OnlyMembershipManager();
    /// @notice Membership is closed and the peer id is not on the allow-list. Not in upstream.
    error PeerNotAllowed();
    /// @notice The round policy is off, or neither of its conditions holds yet. Not in upstream.
    error AdvanceNotAllowed();

    /// @dev One slot. A stage is below 2**8, and no chain reaches the ends of the others.
    struct Progress {
        uint64 round;
        uint8 stage;
        uint64 stageStartedAt; // seconds, the time of the block
        uint32 submissions; // rewards reported for this stage of this round
        uint32 minSubmissions; // of the round policy, 0: off
        uint32 maxStageSeconds; // of the round policy, 0: off
        bool membershipClosed;
    }

    /// @dev One slot: how many peers each leaderboard has counted.
    struct Counted {
        uint128 voters;
        uint128 winners;
    }

    Progress private _progress;
    mapping(bytes32 role => mapping(address account => bool)) private _roles;
    string[] private _bootnodes;

    /// @dev The text of a peer id by its key, from the moment that it is registered or voted for.
    ShortText.Texts private _peerIds;
    mapping(bytes16 key => address) private _accounts;
    /// @dev An account's peers, the newest first, each naming the one before it: a first one takes one slot.
    mapping(address account => bytes16) private _newestPeerOf;
    mapping(bytes16 key => bytes16) private _peerBefore;
    mapping(bytes16 key => bool) private _allowed;

    mapping(uint256 round => mapping(bytes16 key => bytes16[])) private _votes;
    Leaderboard.Board private _voters;
    Leaderboard.Board private _winners;
    Counted private _counted;

    /// @dev Bit n of a word stands for stage n: one slot for a peer and a round, whatever the number of stages.
    mapping(uint256 round => mapping(bytes16 key => uint256)) private _submittedStages;
    mapping(uint256 round => mapping(uint256 stage => mapping(address account => int256))) private _stageRewards;
    mapping(bytes16 key => int256) private _totalRewards;

    modifier onlyOwner() {
        if (!_roles[OWNER_ROLE][msg.sender]) revert OnlyOwner();
        _;
    }

    modifier onlyStageManager() {
        if (!_roles[STAGE_MANAGER_ROLE][msg.sender]) revert OnlyStageManager();
        _;
    }

    modifier onlyBootnodeManager() {
        if (!_roles[BOOTNODE_MANAGER_ROLE][msg.sender]) revert OnlyBootnodeManager();
        _;
    }

    modifier onlyMembershipManager() {
        if (!_roles[MEMBERSHIP_MANAGER_ROLE][msg.sender]) revert OnlyMembershipManager();
        _;
    }

    /// @notice Starts the swarm at stage 0 of round 0, with `owner_` as owner, stage manager and bootnode manager.
    /// @dev Once for a proxy, in the transaction that creates it: InvalidInitialization() afterwards.
    function initialize(address owner_) external initializer {
        _progress.stageStartedAt = uint64(block.timestamp);
        _grant(OWNER_ROLE, owner_);
        _grant(STAGE_MANAGER_ROLE, owner_);
        _grant(BOOTNODE_MANAGER_ROLE, owner_);
    }

    /// @dev OnlyOwner().
    function _authorizeUpgrade(address) internal view override onlyOwner {}

    /// @notice Which additions to the upstream interface there are. 1: round policy and membership.
    function extensionsVersion() external pure returns (uint256) {
        return 1;
    }

    // Roles

    /// @notice Grants any role, known here or not; a second grant only emits again. OnlyOwner().
    function grantRole(bytes32 role, address account) external onlyOwner {
        _grant(role, account);
    }

    /// @notice Revokes a role. An owner may revoke any owner, also the last one: then nobody owns the swarm.
    /// OnlyOwner().
    function revokeRole(bytes32 role, address account) external onlyOwner {
        _roles[role][account] = false;
        emit RoleRevoked(role, account, msg.sender);
    }

    function hasRole(bytes32 role, address account) external view returns (bool) {
        return _roles[role][account];
    }

    function _grant(bytes32 role, address account) private {
        _roles[role][account] = true;
        emit RoleGranted(role, account, msg.sender);
    }

    // Rounds and stages

    /// @notice The round, counted from 0.
    function currentRound() external view returns (uint256) {
        return _progress.round;
    }

    /// @notice The stage of the round, from 0 to stageCount() - 1.
    function currentStage() external view returns (uint256) {
        return _progress.stage;
    }

    /// @notice Stages of a round; fixed when the contract was compiled.
    function stageCount() external pure returns (uint256) {
        return STAGE_COUNT;
    }

    /// @notice The time, in seconds since 1970, of the block in which this stage began.
    function stageStartedAt() external view returns (uint256) {
        return _progress.stageStartedAt;
    }

    /// @notice Peers that have reported a reward for this stage of this round. What came for earlier ones is not
    /// counted.
    function stageSubmissionCount() external view returns (uint256) {
        return _progress.submissions;
    }

    /// @notice See setRoundPolicy.
    function roundPolicy() external view returns (uint256 minSubmissions, uint256 maxStageSeconds) {
        return (_progress.minSubmissions, _progress.maxStageSeconds);
    }

    /// @notice Moves the swarm on by one stage, after the last stage to the next round. OnlyStageManager().
    /// @return round The round afterwards.
    /// @return stage The stage afterwards.
    function updateStageAndRound() external onlyStageManager returns (uint256 round, uint256 stage) {
        return _moveOn();
    }

    /// @notice Lets anyone advance the swarm once at least `minSubmissions` peers have reported a reward for the
    /// stage, or once the stage has lasted `maxStageSeconds`, whichever is first. 0 turns a condition off; 0 and 0, as
    /// at the beginning, leave it to stage managers alone. OnlyOwner().
    /// @dev Peer ids cost nothing. Where membership is open, one person can make up the number of submissions.
    function setRoundPolicy(uint32 minSubmissions, uint32 maxStageSeconds) external onlyOwner {
        _progress.minSubmissions = minSubmissions;
        _progress.maxStageSeconds = maxStageSeconds;
        emit RoundPolicyChanged(msg.sender, minSubmissions, maxStageSeconds);
    }

    /// @notice Whether advance() would succeed in a block of this time.
    function canAdvance() public view returns (bool) {
        Progress memory now_ = _progress;
        bool enough = now_.minSubmissions != 0 && now_.submissions >= now_.minSubmissions;
        bool late = now_.maxStageSeconds != 0 && block.timestamp >= now_.stageStartedAt + uint256(now_.maxStageSeconds);
        return enough || late;
    }

    /// @notice Moves the swarm on like updateStageAndRound, for anyone, when the round policy allows.
    /// AdvanceNotAllowed().
    /// @return round The round afterwards.
    /// @return stage The stage afterwards.
    function advance() external returns (uint256 round, uint256 stage) {
        if (!canAdvance()) revert AdvanceNotAllowed();
        return _moveOn();
    }

    function _moveOn() private returns (uint256, uint256) {
        Progress memory next = _progress;
        next.stage += 1;
        if (next.stage == STAGE_COUNT) {
            next.stage = 0;
            next.round += 1;
            emit RoundAdvanced(next.round);
        }
        next.stageStartedAt = uint64(block.timestamp);
        next.submissions = 0;
        _progress = next;
        emit StageAdvanced(next.round, next.stage);
        return (next.round, next.stage);
    }

    // Peers and membership

    /// @notice Registers `peerId` to the sender, for ever. Any text will do, and nothing proves that the sender has
    /// the peer's key. PeerIdAlreadyRegistered(), PeerNotAllowed().
    function registerPeer(string calldata peerId) external {
        bytes16 key = _keyOf(peerId);
        if (_accounts[key] != address(0)) revert PeerIdAlreadyRegistered();
        _requireMember(key);
        _peerIds.put(key, peerId);
        _accounts[key] = msg.sender;
        bytes16 before = _newestPeerOf[msg.sender];
        if (before != 0) _peerBefore[key] = before;
        _newestPeerOf[msg.sender] = key;
        emit PeerRegistered(msg.sender, peerId);
    }

    /// @notice For each account the peer ids registered to it, in the order of registration.
    function getPeerId(address[] calldata eoas) external view returns (string[][] memory peerIds) {
        peerIds = new string[][](eoas.length);
        for (uint256 i = 0; i < eoas.length; i++) peerIds[i] = _idsOf(_peersOf(eoas[i]));
    }

    /// @notice For each peer id the account that it is registered to, or the zero address.
    function getEoa(string[] calldata peerIds) external view returns (address[] memory eoas) {
        eoas = new address[](peerIds.length);
        for (uint256 i = 0; i < peerIds.length; i++) eoas[i] = _accounts[_keyOf(peerIds[i])];
    }

    /// @notice Whether any peer may take part. Otherwise only peers on the allow-list may register, report and vote.
    function membershipOpen() external view returns (bool) {
        return !_progress.membershipClosed;
    }

    /// @notice For each peer id whether it may take part: always where membership is open, else when it is on the
    /// allow-list. Says nothing about registration.
    function isMember(string[] calldata peerIds) external view returns (bool[] memory members) {
        members = new bool[](peerIds.length);
        for (uint256 i = 0; i < peerIds.length; i++) members[i] = _isMember(_keyOf(peerIds[i]));
    }

    /// @notice Opens membership to all or closes it to those on the allow-list, which stays as it is either way.
    /// OnlyMembershipManager().
    function setMembershipOpen(bool open) external onlyMembershipManager {
        _progress.membershipClosed = !open;
        emit MembershipChanged(msg.sender, open);
    }

    /// @notice Puts peer ids on the allow-list, registered or not. OnlyMembershipManager().
    function allowPeers(string[] calldata peerIds) external onlyMembershipManager {
        for (uint256 i = 0; i < peerIds.length; i++) _allowed[_keyOf(peerIds[i])] = true;
        emit PeersAllowed(msg.sender, peerIds);
    }

    /// @notice Takes peer ids off the allow-list. What they have reported stays; where membership is closed they
    /// report no more. OnlyMembershipManager().
    function disallowPeers(string[] calldata peerIds) external onlyMembershipManager {
        for (uint256 i = 0; i < peerIds.length; i++) _allowed[_keyOf(peerIds[i])] = false;
        emit PeersDisallowed(msg.sender, peerIds);
    }

    function _isMember(bytes16 key) private view returns (bool) {
        return !_progress.membershipClosed || _allowed[key];
    }

    function _requireMember(bytes16 key) private view {
        if (!_isMember(key)) revert PeerNotAllowed();
    }

    function _requireOwnPeer(bytes16 key) private view {
        if (_accounts[key] != msg.sender) revert InvalidVoterPeerId();
        _requireMember(key);
    }

    function _keyOf(string calldata peerId) private pure returns (bytes16) {
        return bytes16(keccak256(bytes(peerId)));
    }

    function _idsOf(bytes16[] memory keys) private view returns (string[] memory ids) {
        ids = new string[](keys.length);
        for (uint256 i = 0; i < keys.length; i++) ids[i] = _peerIds.get(keys[i]);
    }

    /// @dev In the order of registration.
    function _peersOf(address account) private view returns (bytes16[] memory keys) {
        uint256 count = 0;
        for (bytes16 key = _newestPeerOf[account]; key != 0; key = _peerBefore[key]) count++;
        keys = new bytes16[](count);
        for (bytes16 key = _newestPeerOf[account]; key != 0; key = _peerBefore[key]) keys[--count] = key;
    }

    // Bootnodes

    /// @notice Appends addresses that new nodes connect to first; any text will do. OnlyBootnodeManager().
    function addBootnodes(string[] calldata newBootnodes) external onlyBootnodeManager {
        for (uint256 i = 0; i < newBootnodes.length; i++) _bootnodes.push(newBootnodes[i]);
        emit BootnodesAdded(msg.sender, newBootnodes.length);
    }

    /// @notice Removes one bootnode and puts the last one in its place. OnlyBootnodeManager(), InvalidBootnodeIndex().
    function removeBootnode(uint256 index) external onlyBootnodeManager {
        uint256 count = _bootnodes.length;
        if (index >= count) revert InvalidBootnodeIndex();
        if (index != count - 1) _bootnodes[index] = _bootnodes[count - 1];
        _bootnodes.pop();
        emit BootnodeRemoved(msg.sender, index);
    }

    /// @notice Removes all bootnodes. OnlyBootnodeManager().
    function clearBootnodes() external onlyBootnodeManager {
        delete _bootnodes;
        emit AllBootnodesCleared(msg.sender);
    }

    function getBootnodes() external view returns (string[] memory) {
        return _bootnodes;
    }

    function getBootnodesCount() external view returns (uint256) {
        return _bootnodes.length;
    }

    // Votes

    /// @notice Records whom `peerId`, which must be the sender's, takes for the winners of a round that has begun;
    /// once a round, and for ever after it. Winners need not be registered, and a peer may vote for itself.
    /// InvalidRoundNumber(), WinnerAlreadyVoted(), InvalidVoterPeerId(), PeerNotAllowed(), InvalidVote().
    /// @dev An empty list counts as a vote but leaves no trace in the round, so it can be repeated, as in upstream.
    function submitWinners(uint256 roundNumber, string[] calldata winners, string calldata peerId) external {
        bytes16 voter = _keyOf(peerId);
        if (roundNumber > _progress.round) revert InvalidRoundNumber();
        if (_votes[roundNumber][voter].length != 0) revert WinnerAlreadyVoted();
        _requireOwnPeer(voter);
        bytes16[] memory keys = _distinctKeysOf(winners);

        _votes[roundNumber][voter] = keys;
        Counted memory counted = _counted;
        if (_voters.increment(voter, counted.voters)) counted.voters += 1;
        for (uint256 i = 0; i < keys.length; i++) {
            _peerIds.put(keys[i], winners[i]);
            if (_winners.incrementIn(keys[i], roundNumber, counted.winners)) counted.winners += 1;
        }
        _counted = counted;
        emit WinnerSubmitted(msg.sender, peerId, roundNumber, winners);
    }

    /// @notice Whom `peerId` voted for in a round, in the order of its list.
    function getVoterVotes(uint256 roundNumber, string calldata peerId) external view returns (string[] memory) {
        return _idsOf(_votes[roundNumber][_keyOf(peerId)]);
    }

    /// @notice How often `peerId` voted.
    function getVoterVoteCount(string calldata peerId) external view returns (uint256) {
        return _voters.countOf(_keyOf(peerId));
    }

    /// @notice How many votes `peerId` got, over all rounds.
    function getTotalWins(string calldata peerId) external view returns (uint256) {
        return _winners.countOf(_keyOf(peerId));
    }

    /// @notice How many votes `peerId` got in one round.
    function getPeerVoteCount(uint256 roundNumber, string calldata peerId) external view returns (uint256) {
        return _winners.countIn(_keyOf(peerId), roundNumber);
    }

    /// @notice How many peer ids have ever voted.
    function uniqueVoters() external view returns (uint256) {
        return _counted.voters;
    }

    /// @notice How many peer ids have ever been voted for.
    function uniqueVotedPeers() external view returns (uint256) {
        return _counted.winners;
    }

    /// @notice The peers that voted most, at most 100, from place `start`, counted from 0, up to but not with `end`.
    /// Both are cut to the board's length. Reverts with a text when `start` is after `end`.
    function voterLeaderboard(uint256 start, uint256 end) external view returns (string[] memory, uint256[] memory) {
        return _page(_voters, _counted.voters, start, end);
    }

    /// @notice The peers with the most votes; pages as voterLeaderboard does.
    function winnerLeaderboard(uint256 start, uint256 end) external view returns (string[] memory, uint256[] memory) {
        return _page(_winners, _counted.winners, start, end);
    }

    function _page(Leaderboard.Board storage board, uint256 counted, uint256 start, uint256 end)
        private
        view
        returns (string[] memory peerIds, uint256[] memory counts)
    {
        require(start <= end, "Start index must be less than or equal to end index");
        uint256 length = counted < Leaderboard.CAPACITY ? counted : Leaderboard.CAPACITY;
        if (end > length) end = length;
        if (start > end) start = end;
        peerIds = new string[](end - start);
        counts = new uint256[](end - start);
        for (uint256 i = start; i < end; i++) {
            bytes16 key = board.keys[i];
            peerIds[i - start] = _peerIds.get(key);
            counts[i - start] = board.countOf(key);
        }
    }

    function _distinctKeysOf(string[] calldata peerIds) private pure returns (bytes16[] memory keys) {
        keys = new bytes16[](peerIds.length);
        for (uint256 i = 0; i < peerIds.length; i++) {
            bytes16 key = _keyOf(peerIds[i]);
            for (uint256 j = 0; j < i; j++) if (keys[j] == key) revert InvalidVote();
            keys[i] = key;
        }
    }

    // Rewards

    /// @notice Records the reward, in units of the swarm's game, that `peerId`, which must be the sender's, claims for
    /// a stage that has begun; once a stage. InvalidRoundNumber(), InvalidStageNumber(), RewardAlreadySubmitted(),
    /// InvalidVoterPeerId(), PeerNotAllowed().
    function submitReward(uint256 roundNumber, uint256 stageNumber, int256 reward, string calldata peerId) external {
        _submitReward(roundNumber, stageNumber, reward, peerId);
    }

    /// @notice The same for clients that know rewards without a sign. From 2**255 on, a reward wraps to a negative
    /// one.
    function submitReward(uint256 roundNumber, uint256 stageNumber, uint256 reward, string calldata peerId) external {
        _submitReward(roundNumber, stageNumber, int256(reward), peerId);
    }

    function _submitReward(uint256 roundNumber, uint256 stageNumber, int256 reward, string calldata peerId) private {
        bytes16 key = _keyOf(peerId);
        bool current = _requireBegun(roundNumber, stageNumber);
        uint256 submitted = _submittedStages[roundNumber][key];
        uint256 bit = 1 << stageNumber;
        if (submitted & bit != 0) revert RewardAlreadySubmitted();
        _requireOwnPeer(key);

        _submittedStages[roundNumber][key] = submitted | bit;
        _stageRewards[roundNumber][stageNumber][msg.sender] += reward;
        int256 total = _totalRewards[key] + reward;
        _totalRewards[key] = total;
        if (current) _progress.submissions += 1;
        emit RewardSubmitted(msg.sender, roundNumber, stageNumber, reward, peerId);
        emit CumulativeRewardsUpdated(msg.sender, peerId, total);
    }

    /// @dev A past round takes stageCount() itself as a stage too. Upstream does, and clients of builds with one
    /// stage, which report the stage after the first, count on it.
    /// @return current Whether it is the stage at which the swarm is.
    function _requireBegun(uint256 roundNumber, uint256 stageNumber) private view returns (bool current) {
        Progress memory now_ = _progress;
        if (roundNumber > now_.round) revert InvalidRoundNumber();
        uint256 last = roundNumber == now_.round ? now_.stage : STAGE_COUNT;
        if (stageNumber > last) revert InvalidStageNumber();
        return roundNumber == now_.round && stageNumber == now_.stage;
    }

    /// @notice For each account the sum of the rewards that its peers reported for the stage.
    function getRoundStageReward(uint256 roundNumber, uint256 stageNumber, address[] calldata accounts)
        external
        view
        returns (int256[] memory rewards)
    {
        rewards = new int256[](accounts.length);
        for (uint256 i = 0; i < accounts.length; i++) {
            rewards[i] = _stageRewards[roundNumber][stageNumber][accounts[i]];
        }
    }

    /// @notice For each peer id the sum of the rewards that it reported.
    function getTotalRewards(string[] calldata peerIds) external view returns (int256[] memory rewards) {
        rewards = new int256[](peerIds.length);
        for (uint256 i = 0; i < peerIds.length; i++) rewards[i] = _totalRewards[_keyOf(peerIds[i])];
    }

    /// @notice Whether `peerId` reported a reward for the stage.
    function hasSubmittedRoundStageReward(uint256 roundNumber, uint256 stageNumber, string calldata peerId)
        external
        view
        returns (bool)
    {
        return _hasSubmitted(roundNumber, stageNumber, _keyOf(peerId));
    }

    /// @notice Whether any peer of `account` reported a reward for the stage. For clients from before 0.4.3; it takes
    /// longer the more peers the account has.
    function hasSubmittedRoundStageReward(uint256 roundNumber, uint256 stageNumber, address account)
        external
        view
        returns (bool)
    {
        for (bytes16 key = _newestPeerOf[account]; key != 0; key = _peerBefore[key]) {
            if (_hasSubmitted(roundNumber, stageNumber, key)) return true;
        }
        return false;
    }

    function _hasSubmitted(uint256 roundNumber, uint256 stageNumber, bytes16 key) private view returns (bool) {
        return (_submittedStages[roundNumber][key] >> stageNumber) & 1 == 1;
    }
}
