"""Processes on other hosts, over the system's ssh: the hosts need only sshd, and codedreduce installed.

- `hosts`: the syntax of lists of hosts; `opening`: connects to all hosts and checks them
- `connection`: one host, and why it cannot be used
- `over_ssh`: processes on all hosts; `agent`: the remote end; `words`: messages between both ends
- `reaching`: whether ports are open
"""

from codedreduce.launch.ssh.connection import Way
from codedreduce.launch.ssh.hosts import SshHost, parse_hosts
from codedreduce.launch.ssh.opening import open_hosts

__all__ = ["SshHost", "Way", "open_hosts", "parse_hosts"]
