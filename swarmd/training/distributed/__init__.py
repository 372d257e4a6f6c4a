"""Several processes of one node that train one model: ranks, sharding, FSDP and DeepSpeed's ZeRO."""
