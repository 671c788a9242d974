"""Are our engine's strategies as fast as the systems they stand for?"""
