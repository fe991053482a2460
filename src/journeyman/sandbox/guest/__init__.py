"""The guest agent, in C: PID 1 of a sandbox. Built by `node.agent_build`; no Python in here."""
