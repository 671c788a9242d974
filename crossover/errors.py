"""What can go wrong between a job and its arbiter; every message names the value and the remedy."""


class CrossoverError(Exception):
    """Base of everything this package raises on purpose."""


class Refused(CrossoverError, ValueError):
    """The request is not acceptable: unknown job, seat taken, another user, a malformed message, a bad option."""


class Unavailable(Refused):
    """The machine has no room, descriptor or permission for what an arbiter needs."""


class ArbiterAbsent(CrossoverError, ValueError):
    """Nobody serves the socket path."""


class ArbiterLost(CrossoverError, ConnectionError):
    """The arbiter went away, or the participant has left; no turn can be granted on this connection any more."""


class LeaseLost(CrossoverError):
    """The lease was withdrawn before its release, so the end of the turn ran without the device's token."""
