"""Signal numbers that POSIX fixes. The `signal` module would pull in `enum` on the start path."""

SIGHUP = 1
SIGINT = 2
SIGQUIT = 3
SIGKILL = 9
SIGALRM = 14
SIGTERM = 15
SIGCHLD = 17
SIGCONT = 18
SIGSTOP = 19
SIGXCPU = 24
SIGXFSZ = 25
SIGSYS = 31

FORWARDED = (SIGHUP, SIGINT, SIGQUIT, SIGTERM)
"""What a client or a terminal sends to corral and means for the target."""
