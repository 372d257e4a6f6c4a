"""Who takes part: admission, invitations and their withdrawal, comings and leavings."""
