"""What `scripts/sweep_torch.py` consists of: ops, networks of them, and the clock."""
