"""Why a host cannot be used, and what to do, in one line."""

from __future__ import annotations

#: Messages of ssh or the remote shell, and hints.
HINTS = (
    ("could not resolve hostname", "check the name, or write an address"),
    ("connection refused", "is sshd running there, and at this port?"),
    ("connection timed out", "is it up, and can this host reach its port 22?"),
    ("no route to host", "is it up, and in the same network?"),
    ("network is unreachable", "is it up, and in the same network?"),
    ("permission denied", "set up a login without a password: ssh-copy-id {host}"),
    ("too many authentication failures", "specify the key: IdentityFile in ~/.ssh/config"),
    ("host key verification failed", "connect once by hand, to check that it is the right host: ssh {host}"),
)

#: The exit code of ssh for errors of its own, and of a shell that does not find a command, or may not run it.
SSH_FAILED, NOT_FOUND, NOT_RUN = 255, 127, 126


def why_not(host: str, python: str, version: str, code: int | None, said: str) -> str:
    """Why there is no agent on a host.

    >>> why_not("b", "python3", "0.1.0", 255, "ssh: connect to host b port 22: Connection refused")
    'cannot use b: ssh: connect to host b port 22: Connection refused (is sshd running there, and at this port?)'
    """
    lower = said.lower()
    if code in (NOT_FOUND, NOT_RUN):
        return f"cannot use {host}: there is no {python} that can be run there; set another with --python"
    if "no module named" in lower and "codedreduce" in lower:
        return (
            f"cannot use {host}: {python} there has no codedreduce; install it (pip install codedreduce=={version}), "
            "or set another with --python"
        )
    hint = next((what for words, what in HINTS if words in lower), "")
    hint = f" ({hint.format(host=host)})" if hint else ""
    how = said or ("ssh ended without a message" if code == SSH_FAILED else f"it ended with exit code {code}")
    return f"cannot use {host}: {how}{hint}"
