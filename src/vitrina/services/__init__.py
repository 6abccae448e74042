"""Business rules of the control plane: plain functions that take their dependencies as arguments."""
