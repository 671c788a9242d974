"""The lab: the processes in which a trial happens, and what they say to each other."""
