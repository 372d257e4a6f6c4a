"""What the coordinator does: members, stages, the leaderboard."""
