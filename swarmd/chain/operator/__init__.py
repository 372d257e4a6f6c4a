"""An operator's own transactions: the deployment of a contract, and single orders."""
