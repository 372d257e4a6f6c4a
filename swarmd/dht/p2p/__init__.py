"""hivemind and libp2p: the DHT node, p2pd as a child process, connections, limits per peer, and streams of bodies."""
