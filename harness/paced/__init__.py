"""A torch.distributed backend whose collectives take the time of a modelled link."""
