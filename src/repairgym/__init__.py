"""RepairGym: train agents that repair real code with reinforcement learning, and prove what they can do."""

__version__ = "0.1.0"
