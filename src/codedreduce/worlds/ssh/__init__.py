"""Processes on other machines, over the system's ssh: nothing has to run there but sshd, with codedreduce installed."""

from codedreduce.worlds.ssh.connection import Way
from codedreduce.worlds.ssh.hosts import Host, parse_hosts
from codedreduce.worlds.ssh.opening import open_hosts

__all__ = ["Host", "Way", "open_hosts", "parse_hosts"]
