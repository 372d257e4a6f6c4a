"""The policy: which model is trained, on which device, in which dtype, and in how much memory."""
