"""hivemind and libp2p: the DHT node, p2pd as a child process, connections, limits for each peer, and streams of bodies."""
