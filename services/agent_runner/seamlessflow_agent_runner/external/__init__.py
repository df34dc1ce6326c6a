"""Episodes whose agents run elsewhere: handed out over HTTP, and matched with the agents that ask for one."""
