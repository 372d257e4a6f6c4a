"""A swarm's rounds on the DHT: the clock, reports, rollouts, leaderboards, and what is checked of them."""
