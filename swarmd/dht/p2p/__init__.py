"""hivemind and libp2p: the DHT node, p2pd as a child process, connections, peers and addresses."""
