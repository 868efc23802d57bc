"""Processes on other machines, over the system's ssh: nothing has to run there but sshd, with codedreduce installed.

What lives here: `hosts` machines as people write them, `opening` whether a run can be run on them, `connection` one
of them, `over_ssh` processes on all, `agent` the far end, `words` what both say, `reaching` whether ports are open,
`host_errors` why a host cannot be used.
"""

from codedreduce.launch.ssh.connection import Way
from codedreduce.launch.ssh.hosts import SshHost, parse_hosts
from codedreduce.launch.ssh.opening import open_hosts

__all__ = ["SshHost", "Way", "open_hosts", "parse_hosts"]
