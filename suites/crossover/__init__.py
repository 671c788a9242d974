"""Does sharing in turns reach what the theory allows?"""
