"""The policy: which model, on which device and with which dtype, and how much memory it takes."""
