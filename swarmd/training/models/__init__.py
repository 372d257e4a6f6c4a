"""The policy: which model is trained, on which device and in which dtype, and how much memory it takes."""
