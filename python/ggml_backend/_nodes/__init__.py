"""Making nodes: the one way from Python to the builders of C, and what operators between tensors mean."""
